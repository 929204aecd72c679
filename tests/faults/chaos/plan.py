"""What a run is to do, from its seed alone: acts, their lengths, crews and faults.

Pure. What cannot run on this machine is given, and is left out with its reason; the rest
of the plan stays as it is.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SHORTEST_S = 8.0
LEASES_S = (1.0, 1.5, 2.0)
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")


@dataclass(frozen=True)
class Shape:
    """What an act is made of: its share of the time, its faults, and its crew."""

    share: float
    faults: tuple[str, ...]
    workers: int
    servers: str = "one"
    """``one``; ``sync`` or ``async``: a primary with such a standby; ``small``: one, whose
    data lie on a small file system; ``old``: one, with the schema of the revision before."""
    shortest_s: float = SHORTEST_S
    """In less time its faults cannot show what they do."""


SHAPES: Mapping[str, Shape] = {
    "storm": Shape(
        0.5,
        ("F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F11", "F12", "F13", "F14", "F15",
         "F17", "F18", "F19", "F20"),
        8,
    ),
    "sync": Shape(0.15, ("F9", "F1", "F3", "F6", "F20"), 6, "sync"),
    "async": Shape(0.15, ("F9", "F1", "F3", "F6", "F20"), 6, "async"),
    "disk": Shape(0.1, ("F10", "F1", "F2"), 5, "small", 14.0),
    "mixed": Shape(0.1, ("F16", "F1", "F20"), 6, "old", 14.0),
}  # fmt: skip


@dataclass(frozen=True)
class Seat:
    """One worker of an act: by which way it comes, and in which role."""

    name: str
    variant: str
    role: str


@dataclass(frozen=True)
class ActPlan:
    name: str
    seconds: float
    lease_s: float
    servers: str
    faults: tuple[str, ...]
    seats: tuple[Seat, ...]
    seed: str
    not_run: Mapping[str, str] = field(default_factory=dict)

    def dice(self, what: str) -> random.Random:
        """Dice of their own for each part, so that one more throw moves no other's."""
        return random.Random(f"{self.seed}/{what}")


@dataclass(frozen=True)
class Plan:
    seed: int
    duration_s: float
    acts: tuple[ActPlan, ...]
    not_run: Mapping[str, str] = field(default_factory=dict)
    """Acts that cannot run here, and why."""


@dataclass(frozen=True)
class Needs:
    """What a fault wants of a crew: variants of which it puts up, and roles."""

    variants: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


def plan(
    seed: int, duration_s: float, acts: Sequence[str], needs: Mapping[str, Needs],
    impossible: Mapping[str, str], plain_role: str, shapes: Mapping[str, Shape] = SHAPES,
) -> Plan:
    """The plan. ``impossible``: faults that this machine cannot have, by name, and why."""
    lost = {
        name: impossible[key] for name in acts
        if (key := _pillar(name)) is not None and key in impossible
    }
    wanted = [name for name in acts if name not in lost]
    total = sum(shapes[name].share for name in wanted) or 1.0
    found = [
        _act(seed, name, shapes[name], duration_s * shapes[name].share / total, needs,
             impossible, plain_role)
        for name in wanted
    ]
    return Plan(seed, duration_s, tuple(found), lost)


def _pillar(act: str) -> str | None:
    """The fault without which an act has no sense."""
    return {"disk": "F10", "mixed": "F16", "sync": "F9", "async": "F9"}.get(act)


def _act(
    seed: int, name: str, shape: Shape, seconds: float, needs: Mapping[str, Needs],
    impossible: Mapping[str, str], plain_role: str,
) -> ActPlan:
    own = f"{seed}/{name}"
    faults = tuple(fault for fault in shape.faults if fault not in impossible)
    dice = random.Random(f"{own}/crew")
    wanted = [needs.get(fault, Needs()) for fault in faults]
    if shape.servers == "old":
        variants = needs["F16"].variants
        crew = tuple(
            Seat(f"w{n}", variants[n % len(variants)], plain_role)
            for n in range(1, shape.workers + 1)
        )
    else:
        crew = seats(shape.workers, wanted, dice, plain_role)
    return ActPlan(
        name, max(shape.shortest_s, seconds), dice.choice(LEASES_S), shape.servers, faults,
        crew, own,
        {fault: impossible[fault] for fault in shape.faults if fault in impossible},
    )


def seats(
    count: int, needs: Sequence[Needs], dice: random.Random, plain_role: str
) -> tuple[Seat, ...]:
    """A crew in which each fault meets at least one of its variants, and all of its roles."""
    variants = [dice.choice(each.variants) for each in needs if each.variants]
    several = [each.variants for each in needs if len(each.variants) > 1]
    roles = [role for each in needs for role in each.roles]
    others = [name for each in several for name in each if name not in variants]
    dice.shuffle(others)
    variants += others[: max(0, count - 2 - len(variants))]
    variants += ["direct"] * max(count - len(variants), 2)
    # a pooler hands settings of a role to whoever comes next
    variants.sort(key=lambda variant: variant != "pooler")
    dice.shuffle(roles)
    # the last ones come straight: every setting of a role acts on those, whatever the way
    roles = [plain_role] * (len(variants) - len(roles)) + roles
    return tuple(
        Seat(f"w{n}", variant, role)
        for n, (variant, role) in enumerate(zip(variants, roles, strict=False), 1)
    )


def read_duration(text: str) -> float:
    """``90``, ``60s``, ``10m``, ``2h`` in seconds. Raises ValueError, saying what is wanted."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or (seconds := float(found[1]) * _UNITS[found[2]]) <= 0:
        raise ValueError(f"DURATION: a number with s, m or h, such as 10m, not {text!r}")
    return seconds


def read_acts(text: str) -> list[str]:
    """``storm,sync``; nothing: all of them. Raises ValueError."""
    found = [name.strip() for name in text.split(",") if name.strip()] or list(SHAPES)
    for name in found:
        if name not in SHAPES:
            raise ValueError(f"ACTS: some of {', '.join(SHAPES)}, not {name!r}")
    return found

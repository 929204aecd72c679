"""What producers enqueue: specs of tasks, from dice. Pure."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from tests.faults.chaos.handlers import FULL, POISON_ERRORS, POISON_RESULTS

KEYS = 12
RETRY = {"max_attempts": 4, "initial": 0.05, "max": 0.3, "jitter": 0.5}
Spec = dict[str, Any]


def spec(dice: random.Random, lease_s: float) -> Spec:
    """One task: topic, kind, data and options."""
    (make,) = dice.choices(_MAKERS, _WEIGHTS)
    found: Spec = make(dice, lease_s)
    found.setdefault("topic", "a")
    found.setdefault("priority", dice.choice((3, 5, 5, 5, 7)))
    # Most must outlast many losses; some are to fail by them.
    found.setdefault("max_losses", 1 if dice.random() < 0.05 else 50)
    return found


def delayed(found: Spec, dice: random.Random, now: datetime) -> Spec:
    return {**found, "run_at": now + timedelta(seconds=dice.uniform(0.05, 1.5))}


def expiring(found: Spec, dice: random.Random, now: datetime) -> Spec:
    return {**found, "expires_at": now + timedelta(seconds=dice.uniform(0.3, 3))}


def keyed(found: Spec, dice: random.Random) -> Spec:
    conflict = "error" if dice.random() < 0.3 else "existing"
    return {**found, "unique_key": f"k{dice.randrange(KEYS)}", "on_conflict": conflict}


def _quick(dice: random.Random, lease_s: float) -> Spec:
    seconds = round(dice.uniform(0, 0.3) ** 2, 3) if dice.random() < 0.7 else 0.0
    return {"kind": "work", "data": {"how": "done", "seconds": seconds}}


def _otherwise(dice: random.Random, lease_s: float) -> Spec:
    how = dice.choice(("retry", "snooze", "fail", "error"))
    data = {"how": how, "seconds": round(dice.uniform(0, 0.1), 3)}
    return {"kind": "work", "data": data, "retry": RETRY}


def _timed_out(dice: random.Random, lease_s: float) -> Spec:
    return {"kind": "work", "data": {"how": "done", "seconds": dice.choice((0.0, 0.6))},
            "timeout": 0.3, "retry": {**RETRY, "max_attempts": 2}}


def _parts(dice: random.Random, lease_s: float) -> Spec:
    data = {"parts": dice.randint(2, 5), "seconds": round(dice.uniform(0.01, 0.15), 3)}
    return {"kind": "resume", "data": data, "retry": RETRY}


def _steps(dice: random.Random, lease_s: float) -> Spec:
    data = {"count": dice.randint(1, 4), "seconds": round(dice.uniform(0.01, 0.1), 3)}
    return {"kind": "steps", "data": data}


def _fenced(dice: random.Random, lease_s: float) -> Spec:
    data = {"ends": dice.random() < 0.6, "seconds": round(dice.uniform(0, 0.3), 3)}
    return {"kind": "fenced", "data": data, "retry": RETRY}


def _long(lease_s: float, dice: random.Random) -> float:
    return round(dice.uniform(0.3, 2.0) * lease_s, 3)


def _stubborn(dice: random.Random, lease_s: float) -> Spec:
    return {"kind": "stubborn", "topic": "b", "data": {"seconds": _long(lease_s, dice)}}


def _blocking(dice: random.Random, lease_s: float) -> Spec:
    return {"kind": "blocking", "topic": "b", "data": {"seconds": _long(lease_s, dice)},
            "retry": RETRY}


def _child(dice: random.Random, lease_s: float) -> Spec:
    return {"kind": "in_child", "topic": "b", "retry": RETRY,
            "data": {"seconds": round(dice.uniform(0, 0.5), 3)}}


def _spread(dice: random.Random, lease_s: float) -> Spec:
    data = {"count": dice.randint(2, 8), "seconds": round(dice.uniform(0, 0.1), 3)}
    return {"kind": "spread", "data": data}


def _gather(dice: random.Random, lease_s: float) -> Spec:
    count = dice.randint(2, 6)
    data = {"count": count, "needed": dice.randint(1, count),
            "seconds": round(dice.uniform(0, 0.1), 3)}
    return {"kind": "gather", "data": data}


_MAKERS = (_quick, _otherwise, _timed_out, _parts, _fenced, _stubborn, _blocking, _child,
           _steps, _spread, _gather)
_WEIGHTS = (58, 12, 1, 7, 7, 3.5, 3, 0.5, *((4, 1.2, 0.8) if FULL else (0, 0, 0)))


def poison(dice: random.Random) -> Spec:
    """Something hostile: refused at once, or found so by its handler."""
    refused: tuple[Any, ...] = (
        {"how": "a\x00b"}, {"how": "\ud800"}, {"how": float("nan")}, {"how": {1, 2}},
        {"how": object()}, {"how": "x" * (2 << 20)}, _deep(2_000), {"a\x00": 1},
    )
    accepted: tuple[Spec, ...] = (
        {"kind": "work", "data": {"nothing": "fits"}}, {"kind": "work", "data": [1, 2]},
        {"kind": "work", "data": {"how": "done", "seconds": "soon"}},
        {"kind": "poison_result", "topic": "b", "data": {"which": _any(dice, POISON_RESULTS)}},
        {"kind": "poison_error", "topic": "b", "data": {"which": _any(dice, POISON_ERRORS)}},
    )
    if dice.random() < 0.4:
        return {"topic": "a", "kind": "work", "data": dice.choice(refused)}
    return {"topic": "a", **dice.choice(accepted)}


def _any(dice: random.Random, names: Any) -> str:
    return str(dice.choice(sorted(names)))


def _deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found

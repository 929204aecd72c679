"""Schedules: I13, I23. A tick becomes one task, each tick is one of the schedule's, and those
that were missed are made up as its policy says."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.chaos.judging.reading import Reading, instant
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import FAIL, OK, Change

_EVERY = re.compile(r"@every (\d+(?:\.\d+)?)s")


@dataclass
class Schedule:
    """One generation of a schedule, as it was put: all that anybody may have meant by it."""

    every_us: set[int] = field(default_factory=set)
    first_us: set[int] = field(default_factory=set)
    missed: set[str] = field(default_factory=set)
    unclear: bool = False


def check(reading: Reading, of_task: dict[str, list[Change]]) -> Iterator[Fault]:
    act = reading.act
    fires = [c for c in act.changes if c.source == "schedule_fires" and c.new is not None]
    yield from once(act.name, of_task, fires)
    yield from as_planned(act.name, schedules(reading), fires)


def once(act: str, of_task: dict[str, list[Change]], fires: Sequence[Change]) -> Iterator[Fault]:
    seen: set[tuple[object, ...]] = set()
    for change in fires:
        tick = tuple(change.row[name] for name in ("name", "generation", "at", "extra"))
        if tick in seen:
            yield Fault("I13", act, change.id, f"{tick} fired twice", change.pos)
        seen.add(tick)
        if change.id not in of_task:
            yield Fault("I13", act, change.id, f"{tick} fired, and made no task", change.pos)
    made: dict[str, str] = {}
    rows = {change.id for change in fires}
    for task, changes in of_task.items():
        fire = changes[0].row.get("fire")
        if not fire or changes[0].old is not None or changes[0].row.get("resubmit_of"):
            continue
        if fire in made:
            yield Fault("I13", act, task, f"{fire} became two tasks", changes[0].pos)
        if task not in rows:
            yield Fault("I13", act, task, "a task of a tick without its row", changes[0].pos)
        made.setdefault(fire, task)


Key = tuple[str, int]


def schedules(reading: Reading) -> dict[Key, Schedule]:
    """By name and generation: each edit begins a new one. Those of a name that was paused, or
    put without an answer, are unclear; a deletion only ends one."""
    found: dict[Key, Schedule] = defaultdict(Schedule)
    vague: set[str] = set()
    for call in reading.calls.get("put_schedule", ()):
        if reading.state(call) == FAIL:
            continue
        name, spec = str(call.arguments.get("name")), _spec(call.arguments.get("spec"))
        every = _EVERY.fullmatch(str(spec.get("schedule")))
        if reading.state(call) != OK or not call.rows or every is None or "next_at" not in spec:
            vague.add(name)
            continue
        schedule = found[name, int(call.rows[0]["generation"])]
        schedule.every_us.add(round(float(every[1]) * 1e6))
        schedule.first_us.add(instant(spec["next_at"]))
        schedule.missed.add(str(spec.get("missed", "one")))
        schedule.unclear |= bool(spec.keys() & {"max_catch_up", "serial", "repeats", "expires_at"})
    for function in ("pause_schedule", "resume_schedule"):
        for call in reading.calls.get(function, ()):
            vague.add(str(call.arguments.get("name")))
    return {key: schedule for key, schedule in found.items() if key[0] not in vague}


def _spec(text: Any) -> dict[str, Any]:
    return dict(json.loads(text) if isinstance(text, str) else text or {})


def as_planned(act: str, planned: dict[Key, Schedule], fires: Sequence[Change]) -> Iterator[Fault]:
    """Each tick lies on the interval, and where all missed ticks are to be made up none is left
    out between the first and the last."""
    ticks: dict[Key, list[Change]] = defaultdict(list)
    for change in fires:
        if not change.row["extra"]:
            ticks[change.row["name"], change.row["generation"]].append(change)
    for key, of_one in ticks.items():
        name, schedule = key[0], planned.get(key, Schedule(unclear=True))
        if schedule.unclear or len(schedule.first_us) != 1:
            continue
        (every,), (first,) = schedule.every_us, schedule.first_us
        numbers = set()
        for change in of_one:
            number, rest = divmod(change.row["at"] - first, every)
            if rest or number < 0:
                message = f"{name} fired for {change.row['at']}, which is none of its ticks"
                yield Fault("I13", act, change.id, message, change.pos)
            if change.row["now"] < change.row["at"]:
                message = f"{name} fired for {change.row['at']} before that had come"
                yield Fault("I10", act, change.id, message, change.pos)
            numbers.add(number)
        left_out = set(range(max(numbers))) - numbers
        if schedule.missed == {"all"} and left_out:
            message = f"{name} has left out {len(left_out)} of its ticks, and was to make up all"
            yield Fault("I23", act, "", message)

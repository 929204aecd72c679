"""Schedules that a program declares, and how they get into the database."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypedDict

from sokka_pg import calls, durations
from sokka_pg.calls import arguments
from sokka_pg.context.plans import Ask, Plan
from sokka_pg.durations import Duration
from sokka_pg.model import ScheduleRow
from sokka_pg.schedules import Durable, Every, MissedPolicy, Schedule, durable, next_of

_ANY_SIZE = 2**30


class PeriodicOptions(TypedDict, total=False):
    """What may be said of a periodic task; all optional."""

    name: str
    """What it is kept under, one for the whole database; default: the task's kind."""
    tz: str
    """The zone of a cron expression that names none, such as ``Europe/Berlin``."""
    missed: MissedPolicy
    """What becomes of ticks that nobody fired in time: ``skip``, ``one`` (default: the
    newest fires) or ``all``."""
    max_catch_up: int
    """How many of those fire at most, with ``all``; default 100."""
    grace: Duration
    """How late a tick still fires, with ``skip``; default one minute."""
    serial: bool
    """A tick waits until the task of the one before has ended."""
    repeats: int
    """It is over after so many ticks; default: never."""
    expires_at: datetime
    """It is over after this instant (aware); default: never."""
    description: str
    """For readers: at most 2,000 characters."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A schedule that a program declares: when, and which task."""

    name: str
    schedule: Durable
    task: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, schedule: Schedule | str, task: Mapping[str, Any], kind: str,
        options: PeriodicOptions,
    ) -> Periodic:
        """A declaration, checked. Raises BadArgument."""
        rest: dict[str, Any] = dict(options)
        name = arguments.name(rest.pop("name", kind), "name")
        found = cls(name, durable(schedule, rest.pop("tz", None)), task, rest)
        found.stored(durations.EARLIEST, "declared")
        return found

    def first_tick(self, clock: datetime) -> datetime | None:
        """Its first tick if it is put now; None if there is none any more."""
        found = next_of(self.schedule, clock)
        end = self.options.get("expires_at")
        return None if found is None or (end is not None and found > end) else found

    def spec(self, first_tick: datetime, source: str) -> dict[str, Any]:
        """What ``put_schedule`` takes. Intervals are counted from the first tick."""
        anchor = self.schedule.anchor if isinstance(self.schedule, Every) else None
        return {
            "missed": "one", **self.options, "schedule": self.schedule.text,
            "next_at": first_tick, "anchor_at": anchor or first_tick, "task": self.task,
            "source": source,
        }

    def stored(self, first_tick: datetime, source: str) -> dict[str, Any]:
        """The spec as the database is sent it. Raises BadArgument."""
        spec = self.spec(first_tick, source)
        # how large a payload may be, the store says
        sent = calls.put_schedule(self.name, spec, True, _ANY_SIZE).params["spec"]
        found: dict[str, Any] = json.loads(sent or "{}")
        return found

    def stands_as(self, row: ScheduleRow) -> bool:
        """Whether a schedule in the database says the same."""
        ours = self.stored(durations.EARLIEST, row.source)
        end = self.options.get("expires_at")
        return (row.schedule, row.task, row.missed, row.max_catch_up, row.grace, row.serial) == (
            ours["schedule"], ours["task"], ours["missed"], ours.get("max_catch_up", 100),
            durations.delay(self.options.get("grace", timedelta(minutes=1))),
            ours.get("serial", False),
        ) and (row.repeats, row.expires_at, row.description) == (
            ours.get("repeats"), end, ours.get("description"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What became of the declared schedules, by name.

    ``taken``: somebody else declared one of this name, which was left as it is.
    ``over``: it has no tick any more. ``deleted``: of this source, and not declared now.
    """

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


def synced(declared: Collection[Periodic], source: str, prune: bool = False) -> Plan[SyncReport]:
    """Put what is declared; with ``prune`` delete what the same source declared once,
    and does not now. Schedules of other sources stay as they are."""
    fates: dict[str, list[str]] = {}
    clock = yield Ask("clock")
    for each in declared:
        fate = yield from _put(each, source, clock)
        fates.setdefault(fate, []).append(each.name)
    if prune:
        kept = {each.name for each in declared}
        fates["deleted"] = yield from _pruned(kept, source)
    return SyncReport(**{fate: tuple(names) for fate, names in fates.items()})


def _put(each: Periodic, source: str, clock: datetime) -> Plan[str]:
    row: ScheduleRow | None = yield Ask("schedule", each.name)
    if row is not None and row.state != "finished" and row.source != source:
        return "taken"
    if row is not None and row.state == "finished" and each.stands_as(row):
        return "over"
    first_tick = each.first_tick(clock)
    if first_tick is None:
        return "over"
    put = yield Ask("put_schedule", each.name, each.spec(first_tick, source))
    if not put.changed:
        return "unchanged"
    return "created" if put.created else "changed"


def _pruned(kept: Collection[str], source: str) -> Plan[list[str]]:
    gone: list[str] = []
    cursor = None
    while True:
        page = yield Ask("list_schedules", {"source": source}, cursor, 1_000)
        for row in page.items:
            if row.name not in kept and (yield Ask("delete_schedule", row.name, "not declared")):
                gone.append(row.name)
        if (cursor := page.cursor) is None:
            return gone

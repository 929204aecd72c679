"""What becomes of schedules that are due: which ticks fire, and which is next. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sokka_pg.errors import BadArgument
from sokka_pg.model import DueSchedule, ScheduleFire, ScheduleRow
from sokka_pg.schedules.plain import At, Every, Schedule
from sokka_pg.schedules.texts import Durable, parse
from sokka_pg.schedules.ticks import (
    POLICIES,
    Missed,
    MissedPolicy,
    Occurrence,
    fires,
    missed,
    occurrences,
)
from sokka_pg.schedules.zones import TICK

MOST_TICKS = 10_000
"""Ticks that are planned for one transaction; what is left stays due."""
MOST_COUNTED = 1_000
"""Ticks that were passed over are counted up to here."""


def plan_fires(due: Iterable[DueSchedule], most: int = MOST_TICKS) -> list[ScheduleFire]:
    """What to hand in for schedules that are due: of the first ones, as many as have
    ``most`` ticks together, and one in any case."""
    found: list[ScheduleFire] = []
    ticks = 0
    for each in due:
        fire = plan_fire(each)
        ticks += len(fire.ticks)
        if found and ticks > most:
            break
        found.append(fire)
    return found


def plan_fire(due: DueSchedule) -> ScheduleFire:
    """What to hand in for one; with ``error`` if it cannot be worked out."""
    key = (due.schedule_id, due.generation, due.due_at)
    if due.busy:
        return ScheduleFire(*key, busy=True)
    try:
        ticks, next_at, skipped = _ticks(due)
    except Exception as error:
        # a text that another version wrote, or a fault of ours: no other shall wait for it
        return ScheduleFire(*key, error=f"{type(error).__name__}: {error}")
    return ScheduleFire(*key, ticks=ticks, next_at=next_at, skipped=skipped)


def durable(schedule: Schedule | str, tz: str | None = None) -> Durable:
    """A schedule that can be stored, from its text or as it is. Raises BadArgument."""
    if isinstance(schedule, str):
        return parse(schedule, tz)
    if isinstance(schedule, Durable):
        return schedule
    raise BadArgument.of("schedule", "must be text, or an Every, At or Cron: it is stored")


def upcoming(row: ScheduleRow, most: int = 10, after: datetime | None = None) -> list[Occurrence]:
    """The next ticks of a schedule in the database, if all goes well; those later than
    ``after``. Raises BadArgument."""
    if row.next_at is None:
        return []
    schedule = parse(row.schedule)
    if isinstance(schedule, Every):
        schedule = schedule.anchored(row.anchor_at)
    start = row.next_at - TICK
    if row.repeats is None:
        found = occurrences(schedule, max(start, after or start), row.expires_at, most)
    else:
        left = min(row.repeats - row.runs, MOST_TICKS)
        found = occurrences(schedule, start, row.expires_at, left)
    if not found or found[0].at > row.next_at:
        # the first tick need not lie where the others do
        found.insert(0, occurrences(At(row.next_at), start)[0])
    return [each for each in found if after is None or each.at > after][:most]


def policy(text: str) -> MissedPolicy:
    """A policy for late ticks from its name. Raises BadArgument."""
    for known in POLICIES:
        if text == known:
            return known
    raise BadArgument.of("missed", f"must be one of {', '.join(POLICIES)}")


def _ticks(due: DueSchedule) -> tuple[tuple[datetime, ...], datetime | None, int]:
    schedule = parse(due.schedule)
    if isinstance(schedule, Every):
        schedule = schedule.anchored(due.anchor_at)
    end = due.clock if due.expires_at is None else min(due.clock, due.expires_at)
    if due.due_at > end:
        return (), None, 0
    found = _missed(schedule, due, end)
    next_at = found.next_at
    if next_at is not None and next_at <= end:
        if due.serial:  # one after another: the rest stays due
            return found.fires, next_at, 0
        # All that may be caught up with: no flood of what was due long ago.
        next_at = missed(schedule, next_at, end, "one").next_at
    most = min(len(found.fires) + MOST_COUNTED - 1, MOST_TICKS)
    late = 1 + len(fires(schedule, due.due_at, end, most))
    return found.fires, next_at, late - len(found.fires)


def _missed(schedule: Durable, due: DueSchedule, end: datetime) -> Missed:
    most = 1 if due.serial else due.max_catch_up
    if due.repeats is not None:
        most = max(1, min(most, due.repeats - due.runs))
    # Late is what is late by the clock, though the schedule ended before.
    grace = due.grace - (due.clock - end)
    return missed(schedule, due.due_at, end, policy(due.missed), most, grace)

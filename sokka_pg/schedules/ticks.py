"""The ticks of a schedule: looked at beforehand, and made up for when they are late."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Literal, TypeAlias

from sokka_pg.errors import BadArgument
from sokka_pg.schedules.cron import Cron, Mark
from sokka_pg.schedules.plain import At, Every, Schedule, utc
from sokka_pg.schedules.zones import TICK, zone

MissedPolicy: TypeAlias = Literal["skip", "one", "all"]

POLICIES: tuple[MissedPolicy, ...] = ("skip", "one", "all")
MOST_TICKS = 10_000
GRACE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One tick: the instant in UTC, and how it looks in the schedule's zone.

    ``mark``: ``gap`` for one that was moved out of a gap, ``overlap first`` and
    ``overlap second`` for a time of the clock that comes twice, else empty.
    """

    at: datetime
    local: datetime
    zone: str
    offset: timedelta
    mark: Mark


@dataclass(frozen=True, slots=True)
class Missed:
    """What to do about late ticks.

    ``fires``: the ticks that fire now, oldest first. ``next_at``: the next tick that
    is due, which may be late as well; None when the schedule is over. ``skipped``:
    whether there were ticks that never fire.
    """

    fires: tuple[datetime, ...]
    next_at: datetime | None
    skipped: bool = False


def next_of(schedule: Schedule, after: datetime) -> datetime | None:
    """The schedule's next instant, in UTC. Raises BadArgument if it is not after ``after``."""
    start = utc(after, "after")
    found = schedule.next(start)
    if found is None:
        return None
    found = utc(found, "schedule")
    if found <= start:
        raise BadArgument.of("schedule", "does not advance")
    return found


def fires(
    schedule: Schedule, after: datetime, until: datetime | None = None, most: int = 10
) -> list[datetime]:
    """The ticks after ``after``, up to and including ``until``, at most ``most`` of them.

    Raises BadArgument.
    """
    _whole(most)
    end = None if until is None else utc(until, "until")
    return list(islice(_walk(schedule, after, end), most))


def occurrences(
    schedule: Schedule, after: datetime, until: datetime | None = None, most: int = 10
) -> list[Occurrence]:
    """Like ``fires``, with what the clock of the schedule's zone shows. Raises BadArgument."""
    return [_occurrence(schedule, at) for at in fires(schedule, after, until, most)]


def missed(
    schedule: Schedule,
    due_at: datetime,
    now: datetime,
    policy: MissedPolicy = "all",
    most: int = 1,
    grace: timedelta = GRACE,
) -> Missed:
    """Which of the ticks from ``due_at`` to ``now`` fire, and which is due next.

    ``skip``: the newest one, if it is at most ``grace`` late. ``one``: the newest
    one. ``all``: the oldest ones, at most ``most``; the rest stay due. An interval
    without an anchor is counted from ``due_at``. Raises BadArgument.
    """
    _whole(most)
    if policy not in POLICIES:
        raise BadArgument.of("missed", f"must be one of {', '.join(POLICIES)}")
    first, end = utc(due_at, "due_at"), utc(now, "now")
    if first > end:
        return Missed((), first)
    if isinstance(schedule, Every):
        schedule = schedule.anchored(first)
    if policy == "all":
        found = (first, *islice(_walk(schedule, first, end), most - 1))
        return Missed(found, next_of(schedule, found[-1]))
    newest = _newest(schedule, first, end)
    kept = policy == "one" or end - newest <= grace
    return Missed(
        (newest,) if kept else (), next_of(schedule, newest), not kept or newest > first
    )


def _walk(schedule: Schedule, after: datetime, end: datetime | None) -> Iterator[datetime]:
    found = next_of(schedule, after)
    while found is not None and (end is None or found <= end):
        yield found
        found = next_of(schedule, found)


def _newest(schedule: Schedule, first: datetime, end: datetime) -> datetime:
    """The last tick up to ``end``; ``first`` is one."""
    if not isinstance(schedule, Cron | Every | At):
        return _walked(schedule, first, end)
    # A year of seconds is too many to walk: halve the time in which it lies.
    low, high = first, end
    while high - low > TICK:
        middle = low + (high - low) // 2
        found = schedule.next(middle)
        if found is None or found > end:
            high = middle
        else:
            low = found
    return low


def _walked(schedule: Schedule, first: datetime, end: datetime) -> datetime:
    # One's own function need not have answers that agree with each other.
    return max(islice(_walk(schedule, first, end), MOST_TICKS), default=first)


def _occurrence(schedule: Schedule, at: datetime) -> Occurrence:
    name = schedule.zone if isinstance(schedule, Cron) else "UTC"
    local = at.astimezone(zone(name))
    mark = schedule.mark(at) if isinstance(schedule, Cron) else ""
    return Occurrence(at, local, name, local.utcoffset() or timedelta(0), mark)


def _whole(most: int) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_TICKS:
        raise BadArgument.of("most", f"must be a whole number from 1 to {MOST_TICKS}")

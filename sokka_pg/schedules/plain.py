"""Schedules without a calendar: intervals, one instant, a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, runtime_checkable

from sokka_pg import durations
from sokka_pg.errors import BadArgument
from sokka_pg.schedules.intervals import interval_of, written

LONGEST_INTERVAL = durations.LONGEST_DELAY
_MICROSECOND = timedelta(microseconds=1)


@runtime_checkable
class Schedule(Protocol):
    """Anything that knows when it is due next."""

    def next(self, after: datetime) -> datetime | None:
        """The first instant strictly after ``after`` (aware); None when it is over."""


@runtime_checkable
class DurableSchedule(Schedule, Protocol):
    """A schedule that can be stored: ``parse(schedule.text)`` is equal to it."""

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Every:
    """Every ``interval`` (1 microsecond to 10 years).

    With an ``anchor`` the instants are ``anchor + n * interval``, the anchor being
    the first; without one the next is ``interval`` after whatever is asked for.
    Raises BadArgument.
    """

    interval: timedelta
    anchor: datetime | None = None

    def __post_init__(self) -> None:
        found = interval_of(self.interval)
        if not _MICROSECOND <= found <= LONGEST_INTERVAL:
            raise BadArgument.of("interval", "must be 1 microsecond to 10 years")
        object.__setattr__(self, "interval", found)
        if self.anchor is not None:
            object.__setattr__(self, "anchor", durations.instant(self.anchor, "anchor"))

    @property
    def text(self) -> str:
        """What ``parse`` reads as this schedule."""
        start = f" from {_instant_text(self.anchor)}" if self.anchor else ""
        return f"@every {written(self.interval)}{start}"

    def anchored(self, anchor: datetime) -> Every:
        """This schedule on a grid; one that has an anchor keeps it."""
        return self if self.anchor else Every(self.interval, anchor)

    def next(self, after: datetime) -> datetime | None:
        """The first instant strictly after ``after``, in UTC; None at the end of year 9999.

        Raises BadArgument for a naive datetime.
        """
        start = utc(after, "after")
        try:
            if self.anchor is None:
                return start + self.interval
            # from the grid, never from the last run: what is added up drifts
            passed = max(0, (start - self.anchor) // self.interval + 1)
            return self.anchor + passed * self.interval
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True)
class At:
    """One instant, from 1970 to before 9999. Raises BadArgument."""

    instant: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "instant", durations.instant(self.instant, "at"))

    @property
    def text(self) -> str:
        """What ``parse`` reads as this schedule."""
        return f"@at {_instant_text(self.instant)}"

    def next(self, after: datetime) -> datetime | None:
        """The instant, if it is later than ``after``. Raises BadArgument for a naive datetime."""
        return self.instant if self.instant > utc(after, "after") else None


@dataclass(frozen=True, slots=True)
class ScheduleFunc:
    """A function from an instant to the first one after it, None when it is over.

    It cannot be stored. It is asked with instants in UTC.
    """

    function: Callable[[datetime], datetime | None]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise BadArgument.of("function", "must be callable", self.function)

    def next(self, after: datetime) -> datetime | None:
        """What the function says, in UTC. Raises BadArgument for a naive datetime."""
        found = self.function(utc(after, "after"))
        return None if found is None else utc(found, "schedule")


def utc(value: datetime, argument: str) -> datetime:
    """An aware datetime, in UTC. Raises BadArgument."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise BadArgument.of(argument, "must be a datetime with a time zone", value)
    try:
        return value.astimezone(UTC)
    except OverflowError:
        end = datetime.min if value.year == 1 else datetime.max
        return end.replace(tzinfo=UTC)


def _instant_text(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")

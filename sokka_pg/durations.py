"""Durations and instants: what may be asked of the clock.

The database decides when anything happens; these rules refuse, before any SQL
is sent, what could not be meant: a negative wait, a lease of NaN seconds, a
wall-clock time without a zone. A duration is a ``timedelta``, or a number of
seconds. The bounds are those of the SQL functions.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from sokka_pg.errors import BadArgument

Duration: TypeAlias = timedelta | int | float
"""A length of time: a ``timedelta``, or a number of seconds."""

SHORTEST_LEASE = timedelta(milliseconds=1)
LONGEST_LEASE = timedelta(days=365.25)
LONGEST_DELAY = timedelta(days=3652.5)
LONGEST_RETENTION = timedelta(hours=876_000)
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)

_MICROSECOND = timedelta(microseconds=1)


def lease_duration(value: Duration | None, argument: str = "lease") -> timedelta | None:
    """A lease or lock time, 1 ms to 1 year; None stands for the default.

    Raises BadArgument.
    """
    if value is None:
        return None
    return _bounded(value, argument, SHORTEST_LEASE, LONGEST_LEASE, "1 ms to 1 year")


def delay(value: Duration, argument: str = "delay") -> timedelta:
    """A snooze or a wait before a retry, 0 (at once) to 10 years. Raises BadArgument."""
    if value is None:
        raise BadArgument.of(argument, "is required")
    return _bounded(value, argument, timedelta(0), LONGEST_DELAY, "0 to 10 years")


def optional_delay(value: Duration | None, argument: str = "delay") -> timedelta | None:
    """Like ``delay``; None stands for the policy's own wait. Raises BadArgument."""
    return None if value is None else delay(value, argument)


def timeout(value: Duration, argument: str = "timeout") -> timedelta:
    """The time one attempt may take, 1 ms to 1 year. Raises BadArgument."""
    return _bounded(value, argument, SHORTEST_LEASE, LONGEST_LEASE, "1 ms to 1 year")


def retention(value: Duration, argument: str = "retention") -> timedelta:
    """How long finished tasks are kept, 1 hour to 100 years. Raises BadArgument."""
    return _bounded(value, argument, timedelta(hours=1), LONGEST_RETENTION, "1 hour to 100 years")


def instant(value: datetime, argument: str) -> datetime:
    """An aware instant in UTC, from 1970 to before 9999. Raises BadArgument.

    A naive ``datetime`` is refused: read by the zone of a host or a session it
    would mean another moment on another machine.
    """
    if not isinstance(value, datetime):
        raise BadArgument.of(argument, "must be a datetime with a time zone", value)
    if value.utcoffset() is None:
        raise BadArgument.of(argument, "needs a time zone: a naive datetime names no moment", value)
    try:
        found = value.astimezone(UTC)
    except OverflowError:
        found = END_OF_TIME
    if not EARLIEST <= found < END_OF_TIME:
        raise BadArgument.of(argument, "must lie from 1970 to before 9999 (UTC)")
    return found


def interval_text(value: timedelta) -> str:
    """A duration as PostgreSQL reads it under any IntervalStyle: ISO 8601, in seconds."""
    seconds, micros = divmod(value // _MICROSECOND, 1_000_000)
    return f"PT{seconds}.{micros:06d}S" if micros else f"PT{seconds}S"


def to_timedelta(value: Duration, argument: str) -> timedelta:
    """A ``timedelta`` from a duration, without bounds. Raises BadArgument."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadArgument.of(argument, "must be a timedelta or a number of seconds", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadArgument.of(argument, "must be a finite number of seconds", value)
    try:
        return timedelta(seconds=value)
    except OverflowError:
        return timedelta.max if value > 0 else timedelta.min


def _bounded(
    value: Duration, argument: str, least: timedelta, most: timedelta, words: str
) -> timedelta:
    found = to_timedelta(value, argument)
    if not least <= found <= most:
        raise BadArgument.of(argument, f"must be {words}")
    return found

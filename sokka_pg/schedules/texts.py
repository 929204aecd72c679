"""Schedules as text, and the constructors that take text."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument
from sokka_pg.schedules.cron import Cron
from sokka_pg.schedules.intervals import interval_of
from sokka_pg.schedules.plain import At, Every, ScheduleFunc

Durable: TypeAlias = Every | At | Cron

NICKNAMES = {
    "@hourly": "0 0 * * * *",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@weekly": "0 0 0 * * 0",
    "@monthly": "0 0 0 1 * *",
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
}
_ZONED = re.compile(r"(?:CRON_)?TZ=(\S*)[ \t]+(.*)")
_EVERY = re.compile(r"@every[ \t]+(\S+)(?:[ \t]+from[ \t]+(\S+))?")
_AT = re.compile(r"@at[ \t]+(\S+)")
# RFC 3339; the library also reads dates alone and times without colons
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def every(interval: Duration | str, anchor: datetime | None = None) -> Every:
    """Every ``interval``: a timedelta, seconds, or text such as ``1h30m``. Raises BadArgument."""
    return Every(interval_of(interval), anchor)


def at(instant: datetime) -> At:
    """Once, at ``instant``. Raises BadArgument."""
    return At(instant)


def cron(expression: str, tz: str | None = None) -> Cron:
    """A cron expression: six fields with the seconds first, five, or ``@daily`` and its like.

    The zone is that of a prefix ``TZ=`` or ``CRON_TZ=``, else ``tz``, else UTC.
    Raises BadArgument.
    """
    found = parse(expression, tz)
    if not isinstance(found, Cron):
        raise BadArgument.of("schedule", "must be a cron expression")
    return found


def schedule_func(function: Callable[[datetime], datetime | None]) -> ScheduleFunc:
    """A schedule of your own, which cannot be stored. Raises BadArgument."""
    return ScheduleFunc(function)


def parse(text: str, tz: str | None = None) -> Durable:
    """A schedule from its text; ``tz`` is the zone of a cron expression that names none.

    Raises BadArgument.
    """
    if not isinstance(text, str):
        raise BadArgument.of("schedule", "must be a str", text)
    words = text.strip(" \t")
    if found := _ZONED.fullmatch(words):
        return _cron(found[2], found[1])
    if found := _EVERY.fullmatch(words):
        anchor = None if found[2] is None else instant(found[2], "anchor")
        return Every(interval_of(found[1]), anchor)
    if found := _AT.fullmatch(words):
        return At(instant(found[1], "at"))
    return _cron(words, "UTC" if tz is None else tz)


def instant(text: str, argument: str = "instant") -> datetime:
    """An RFC 3339 instant, such as ``2026-03-08T02:30:00Z``. Raises BadArgument."""
    try:
        if _INSTANT.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    raise BadArgument.of(argument, "must be like 2026-03-08T02:30:00Z, with an offset or Z")


def _cron(text: str, zone: str) -> Cron:
    if not text.startswith("@"):
        return Cron(text, zone)
    if text.lower() not in NICKNAMES:
        known = ", ".join(["@every 5m", "@at 2026-03-08T02:30:00Z", *NICKNAMES])
        raise BadArgument.of("schedule", f"no such word; known are {known}")
    return Cron(NICKNAMES[text.lower()], zone)

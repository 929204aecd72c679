"""Intervals as Go writes them: ``1h30m``, ``250ms``."""

from __future__ import annotations

import re
from datetime import timedelta

import durationpy

from sokka_pg.durations import Duration, to_timedelta
from sokka_pg.errors import BadArgument

LONGEST_TEXT = 100
# durationpy alone would read 1mm as a month, and pass over what stands between two parts.
_GO = re.compile(r"(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h|d))+")


def interval_of(value: Duration | str, argument: str = "interval") -> timedelta:
    """A ``timedelta``, a number of seconds, or Go's text and ``d`` for 24 hours.

    What is finer than a microsecond is rounded. Raises BadArgument.
    """
    if not isinstance(value, str):
        return to_timedelta(value, argument)
    if len(value) > LONGEST_TEXT or not _GO.fullmatch(value):
        raise BadArgument.of(argument, "numbers with units h, m, s, ms, us (such as 1h30m)")
    try:
        return durationpy.from_str(value)
    except ValueError:
        raise BadArgument.of(argument, "is out of reach") from None


def written(value: timedelta) -> str:
    """A positive interval, as Go reads it, to the microsecond."""
    minutes, rest = divmod(value, timedelta(minutes=1))
    hours, minutes = divmod(minutes, 60)
    # durationpy keeps six digits of the seconds
    seconds, micros = divmod(rest // timedelta(microseconds=1), 1_000_000)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    parts = [(hours, f"{hours}h"), (minutes, f"{minutes}m"), (rest, f"{seconds}{fraction}s")]
    return "".join(text for value, text in parts if value)

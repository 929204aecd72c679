"""Cron by brute force: every minute or second is looked at, in the order of time.

Written from the rules alone, on the numbers that an expression was made from: it
neither reads expressions nor knows of ``fold``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = settings(
    max_examples=int(os.environ.get("SOKKA_SCHEDULE_EXAMPLES", "40")), deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip

ZONES = [
    "UTC", "America/New_York", "America/St_Johns", "America/Sao_Paulo", "Africa/Casablanca",
    "Africa/Cairo", "Asia/Beirut", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Tehran",
    "Australia/Lord_Howe", "Europe/Berlin", "Europe/Dublin", "Pacific/Apia",
    "Pacific/Kiritimati", "America/Caracas", "Asia/Pyongyang", "Antarctica/Troll",
]  # fmt: skip
BOUNDS = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]


@dataclass(frozen=True)
class Part:
    """One field: its text, its numbers, and what kind of star it has."""

    text: str
    values: frozenset[int]
    starred: bool = False
    free: bool = False


@dataclass(frozen=True)
class Expression:
    """Six fields, seconds first."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self.parts)

    @property
    def follows_the_clock(self) -> bool:
        return self.parts[1].starred or self.parts[2].starred

    def as_lists(self) -> list[str]:
        """The fields as numbers and bare stars, which every cron reads alike."""
        return ["*" if p.free else ",".join(map(str, sorted(p.values))) for p in self.parts]

    def matches(self, wall: datetime) -> bool:
        numbers = (wall.second, wall.minute, wall.hour, wall.day, wall.month,
                   wall.isoweekday() % 7)  # fmt: skip
        fits = [n in part.values for n, part in zip(numbers, self.parts, strict=True)]
        days = fits[3] and fits[5]
        if not self.parts[3].free and not self.parts[5].free:
            days = fits[3] or fits[5]
        return all(fits[:3]) and fits[4] and days


def part(number: int) -> st.SearchStrategy[Part]:
    """Stars, stars with steps, lists, ranges with steps."""
    least, most = BOUNDS[number]
    whole = st.integers(least, most)
    star = st.just(Part("*", frozenset(range(least, most + 1)), True, True))
    stepped = st.integers(2, most - least + 1).map(
        lambda step: Part(f"*/{step}", frozenset(range(least, most + 1, step)), True)
    )
    listed = st.lists(whole, min_size=1, max_size=4).map(
        lambda values: Part(",".join(map(str, values)), frozenset(values))
    )
    ranged = st.tuples(whole, whole, st.integers(1, 5)).map(_ranged)
    return st.one_of(star, stepped, listed, ranged)


def _ranged(drawn: tuple[int, int, int]) -> Part:
    first, last, step = min(drawn[:2]), max(drawn[:2]), drawn[2]
    return Part(f"{first}-{last}/{step}", frozenset(range(first, last + 1, step)))


def expressions(*fixed: tuple[int, st.SearchStrategy[Part]]) -> st.SearchStrategy[Expression]:
    """Any expression that has a day; ``fixed`` replaces fields by their number."""
    parts = [dict(fixed).get(number, part(number)) for number in range(6)]
    return st.tuples(*parts).map(Expression).filter(_has_a_day)


def _has_a_day(expression: Expression) -> bool:
    days, months, weekdays = expression.parts[3:]
    if not days.free and not weekdays.free:
        return True
    longest = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    return any(min(days.values) <= longest[month - 1] for month in months.values)


def walk(
    expression: Expression, zone: ZoneInfo, begin: datetime, end: datetime, step: timedelta
) -> list[datetime]:
    """Every instant from ``begin`` to before ``end`` at which it fires."""
    found = []
    latest = begin.astimezone(zone).replace(tzinfo=None) - step
    for at in _each(begin, end, step):
        wall = at.astimezone(zone).replace(tzinfo=None)
        if expression.follows_the_clock:
            fire = expression.matches(wall)
        else:
            # a time that is not later than all before it is shown again
            news = _each(latest + step, wall + step, step)
            fire = any(map(expression.matches, news))
        latest = max(latest, wall)
        if fire:
            found.append(at)
    return found


def _each(begin: datetime, end: datetime, step: timedelta) -> Iterator[datetime]:
    while begin < end:
        yield begin
        begin += step


@lru_cache
def turns(name: str) -> list[datetime]:
    """When the clocks of a zone were moved, from 1990 to 2040; the year 2000 for none."""
    zone = ZoneInfo(name)
    begin, end = datetime(1990, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC)
    days = pairwise(_each(begin, end, timedelta(days=1)))
    moved = [low for low, high in days if _offset(low, zone) != _offset(high, zone)]
    return [_turn(low, zone) for low in moved] or [datetime(2000, 1, 1, tzinfo=UTC)]


def _turn(low: datetime, zone: ZoneInfo) -> datetime:
    minutes = _each(low, low + timedelta(days=1, minutes=1), timedelta(minutes=1))
    return next(at for at in minutes if _offset(at, zone) != _offset(low, zone))


def _offset(at: datetime, zone: ZoneInfo) -> timedelta | None:
    return at.astimezone(zone).utcoffset()

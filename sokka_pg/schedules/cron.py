"""Cron expressions in a zone: which instants their wall-clock times are.

What happens where a clock is moved depends on the expression, as in Debian's cron:

- one that speaks of every hour or minute (a star in either field, with or without
  a step) follows the clock: nothing in a gap, both times in an overlap;
- one with fixed times fires as often as on any other day: what falls into a gap
  fires once, right after it; what would come twice fires the first time.

Either way the instants are a set that the expression and the zone make, so an
answer never depends on where one starts to ask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

from sokka_pg.errors import BadArgument
from sokka_pg.schedules import zones
from sokka_pg.schedules.fields import Fields, read
from sokka_pg.schedules.plain import utc
from sokka_pg.schedules.walls import Walls
from sokka_pg.schedules.zones import TICK

Mark: TypeAlias = Literal["", "gap", "overlap first", "overlap second"]

# Both ends of the calendar, less what a zone may add or take.
_FIRST = datetime.min.replace(tzinfo=UTC) + timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a zone.

    ``expression`` is kept with six fields, seconds first, in lower case. Raises
    BadArgument for one that is wrong or never fires, and for an unknown zone.
    """

    expression: str
    zone: str = "UTC"
    _plan: _Plan = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _text(self.expression, "schedule")
        _text(self.zone, "tz")
        plan = _planned(self.expression, self.zone)
        object.__setattr__(self, "expression", plan.fields.text)
        object.__setattr__(self, "_plan", plan)

    def __reduce__(self) -> tuple[type[Cron], tuple[str, str]]:
        return Cron, (self.expression, self.zone)

    @property
    def text(self) -> str:
        """What ``parse`` reads as this schedule."""
        return self.expression if self.zone == "UTC" else f"TZ={self.zone} {self.expression}"

    def next(self, after: datetime) -> datetime | None:
        """The first instant strictly after ``after``, in UTC; None at the end of year 9999.

        Raises BadArgument for a naive datetime.
        """
        start = max(utc(after, "after"), _FIRST)
        try:
            return self._plan.next(start)
        except OverflowError:
            return None

    def mark(self, at: datetime) -> Mark:
        """What is unusual about one of its instants."""
        return self._plan.mark(utc(at, "at"))


class _Plan:
    """An expression and its zone, made ready once."""

    def __init__(self, fields: Fields, zone: ZoneInfo) -> None:
        self.fields, self.zone, self.walls = fields, zone, Walls(fields)

    def next(self, after: datetime) -> datetime | None:
        here = zones.wall_of(after, self.zone)
        return self._following(after, here) if self.fields.follows_the_clock else self._fixed(here)

    def mark(self, at: datetime) -> Mark:
        here = zones.wall_of(at, self.zone)
        first, second = zones.readings(here, self.zone)
        if first < second:
            return "overlap second" if here.fold else "overlap first"
        return "" if self.walls.after(here - TICK) == here else "gap"

    def _fixed(self, here: datetime) -> datetime | None:
        if here.fold:
            # whatever is shown again has fired: go on behind the overlap
            turn = zones.turn(*zones.readings(here, self.zone), self.zone)
            here = zones.wall_of(turn - TICK, self.zone)
        wall = self.walls.after(here)
        if wall is None:
            return None
        first, second = zones.readings(wall, self.zone)
        return first if first <= second else zones.turn(second, first, self.zone)

    def _following(self, after: datetime, here: datetime) -> datetime | None:
        wall = self.walls.after(here)
        first, second = zones.readings(here, self.zone)
        if first < second and not here.fold:
            # times that have passed will be shown again, from the turn on
            turn = zones.turn(first, second, self.zone)
            if wall is not None:
                found, _ = zones.readings(wall, self.zone)
                if found < turn:
                    return found
            wall = self._from(turn)
        while wall is not None:
            first, second = zones.readings(wall, self.zone)
            if first <= second:
                return first if first > after else second
            # in one go: Samoa once left out a whole day
            wall = self._from(zones.turn(second, first, self.zone))
        return None

    def _from(self, turn: datetime) -> datetime | None:
        """The first wall-clock time from a turn of the clock on."""
        return self.walls.after(zones.wall_of(turn, self.zone) - TICK)


@lru_cache(maxsize=1024)
def _planned(expression: str, zone: str) -> _Plan:
    return _Plan(read(expression), zones.zone(zone))


def _text(value: object, argument: str) -> None:
    if not isinstance(value, str):
        raise BadArgument.of(argument, "must be a str", value)

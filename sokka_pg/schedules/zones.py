"""A zone's wall clock: where it skips an hour, and where it shows one twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from sokka_pg.errors import BadArgument

TICK = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
# Names that mean something else on the next machine.
_HOST_NAMES = {"localtime", "posixrules"}


def zone(name: str) -> ZoneInfo:
    """A zone of the tz database by its name. Raises BadArgument."""
    try:
        if name in _HOST_NAMES:
            raise ValueError(name)
        return ZoneInfo(name)
    # a folder of zones is an OSError, a name such as ../x a ValueError
    except (KeyError, ValueError, OSError):
        rule = "no zone of this name in the tz database (such as Europe/Berlin)"
        raise BadArgument.of("tz", rule) from None


def wall_of(at: datetime, where: ZoneInfo) -> datetime:
    """What the clock shows at an instant; ``fold`` is 1 when it shows it again."""
    return at.astimezone(where).replace(tzinfo=None)


def readings(wall: datetime, where: ZoneInfo) -> tuple[datetime, datetime]:
    """The instants that a time means by the offset of before and of after a turn.

    The same one, where no turn is near. The later one last for a time that the
    clock shows twice, first for a time that it skips.
    """
    before = wall.replace(tzinfo=where, fold=0).astimezone(UTC)
    after = wall.replace(tzinfo=where, fold=1).astimezone(UTC)
    return before, after


def turn(low: datetime, high: datetime, where: ZoneInfo) -> datetime:
    """The instant, after ``low`` and up to ``high``, at which the clock is moved.

    That is on a whole second.
    """
    low, high = low.replace(microsecond=0), high.replace(microsecond=0)
    before = low.astimezone(where).utcoffset()
    while high - low > _SECOND:
        middle = (low + (high - low) // 2).replace(microsecond=0)
        if middle.astimezone(where).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high

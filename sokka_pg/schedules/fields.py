"""The six fields of a cron expression: text in, sets of numbers out.

Stricter than the libraries, so that a slip is refused and not read as something
else: no ranges backwards, no steps wider than the field, no ``L``, ``W``, ``#``
or ``H``.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass

from sokka_pg.errors import BadArgument

LONGEST_TEXT = 1000
_LEAP_YEAR = 2000
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART = re.compile(
    r"(?:(?P<star>[*?])|(?P<first>[0-9]+|[a-z]{3})(?:-(?P<last>[0-9]+|[a-z]{3}))?)"
    r"(?:/(?P<step>[0-9]+))?"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field is called, and what it may hold."""

    name: str
    least: int
    most: int
    names: Mapping[str, int]

    @property
    def size(self) -> int:
        return self.most - self.least + 1


KINDS = (
    Kind("second", 0, 59, {}),
    Kind("minute", 0, 59, {}),
    Kind("hour", 0, 23, {}),
    Kind("day of month", 1, 31, {}),
    Kind("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    Kind("day of week", 0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


@dataclass(frozen=True, slots=True)
class Field:
    """The numbers that a field stands for.

    ``starred``: some part of it begins with a star, steps or not.
    ``free``: some part is a star without a step, so that it rules nothing out.
    """

    values: frozenset[int]
    starred: bool
    free: bool


@dataclass(frozen=True, slots=True)
class Fields:
    """A cron expression, read. ``text`` is its one way to be written."""

    text: str
    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def follows_the_clock(self) -> bool:
        """Whether it speaks of every hour or minute, not of fixed times of the day."""
        return self.minute.starred or self.hour.starred


def read(text: str) -> Fields:
    """Six fields, or five, which leave out the seconds. Raises BadArgument."""
    words = _words(text)
    fields = [_field(kind, word) for kind, word in zip(KINDS, words, strict=True)]
    found = Fields(" ".join(words), *fields)
    if not _ever(found):
        raise BadArgument.of("schedule", "never fires: no such day in any year")
    return found


def _words(text: str) -> list[str]:
    if len(text) > LONGEST_TEXT:
        raise BadArgument.of("schedule", f"at most {LONGEST_TEXT} characters")
    words = [word for word in re.split("[ \t]+", text.lower()) if word]
    if len(words) not in (5, 6):
        raise BadArgument.of("schedule", f"five or six fields, not {len(words)}")
    return words if len(words) == 6 else ["0", *words]


def _field(kind: Kind, word: str) -> Field:
    values: set[int] = set()
    starred = free = False
    for text in word.split(","):
        part = _PART.fullmatch(text)
        if part is None:
            raise _bad(kind, "numbers, names, ranges, stars and steps of them")
        step = _step(kind, part["step"])
        values.update(range(*_ends(kind, part), step))
        starred = starred or part["star"] is not None
        free = free or (part["star"] is not None and step == 1)
    # the seventh day is the first one
    return Field(frozenset(value % 7 if kind.size == 7 else value for value in values),
                 starred, free)  # fmt: skip


def _ends(kind: Kind, part: re.Match[str]) -> tuple[int, int]:
    if part["star"]:
        return kind.least, kind.most + 1
    first = _number(kind, part["first"])
    if part["last"] is None:
        return first, (max(first, kind.most) if part["step"] else first) + 1
    last = _number(kind, part["last"])
    if part["last"] == "sun" and first > 0:
        last = 7
    if last < first:
        raise _bad(kind, "a range goes upwards")
    return first, last + 1


def _number(kind: Kind, word: str) -> int:
    found = kind.names.get(word, -1) if word.isalpha() else int(word)
    most = 7 if kind.size == 7 else kind.most
    if not kind.least <= found <= most:
        names = f" or {'-'.join([*kind.names][:: kind.size - 1])}" if kind.names else ""
        raise _bad(kind, f"from {kind.least} to {most}{names}")
    return found


def _step(kind: Kind, word: str | None) -> int:
    step = 1 if word is None else int(word)
    if not 1 <= step <= kind.size:
        raise _bad(kind, f"a step from 1 to {kind.size}")
    return step


def _ever(fields: Fields) -> bool:
    """Whether any year has such a day: a month with it, or a day of the week beside it."""
    if not fields.day.free and not fields.weekday.free:
        return True
    longest = max(monthrange(_LEAP_YEAR, month)[1] for month in fields.month.values)
    return min(fields.day.values) <= longest


def _bad(kind: Kind, rule: str) -> BadArgument:
    return BadArgument.of("schedule", f"{kind.name}: {rule}")

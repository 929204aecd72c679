"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]


class Level(StrEnum):
    """How bad it is. Only ``fail`` makes ``sokka doctor`` exit 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of the rows: what was found, and what to do about it."""

    level: Level
    what: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with the check that it comes from, and why that matters."""

    check: str
    level: Level
    what: str
    why: str = ""
    advice: str = ""


Judge: TypeAlias = Callable[[Sequence[Row]], Iterable[Verdict]]


@dataclass(frozen=True, slots=True)
class Check:
    """One question. ``query`` says ``sokka`` for the schema; its columns are what
    ``judge`` reads. A judge that yields nothing found nothing wrong, which
    ``healthy`` then says."""

    name: str
    why: str
    query: str
    judge: Judge
    healthy: str = ""

    def findings(self, rows: Sequence[Row]) -> list[Finding]:
        """The judgement of these rows."""
        verdicts = list(self.judge(rows)) or [ok(self.healthy)]
        return [
            Finding(self.name, each.level, each.what, self.why, each.advice) for each in verdicts
        ]


def ok(what: str) -> Verdict:
    return Verdict(Level.OK, what)


def warn(what: str, advice: str) -> Verdict:
    return Verdict(Level.WARN, what, advice)


def fail(what: str, advice: str) -> Verdict:
    return Verdict(Level.FAIL, what, advice)


def by_age(seconds: float, warn_after_s: float, fail_after_s: float) -> Level:
    """The level of something that gets worse as it gets older."""
    if seconds >= fail_after_s:
        return Level.FAIL
    return Level.WARN if seconds >= warn_after_s else Level.OK


def span(seconds: float) -> str:
    """Seconds in the unit a person would choose."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few of a list, and how many there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"

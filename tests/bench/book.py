"""Where figures are written down, and how measures take turns."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sokka_pg.bench.figures import Figure, Ratio, at_least, at_most


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that is run once a round and gives a number."""

    name: str
    run: Callable[[], float]
    unit: str = "tasks/s"


@dataclass(frozen=True, slots=True)
class Curve:
    """Points to be drawn."""

    part: str
    name: str
    x: Sequence[float]
    y: Sequence[float]
    x_label: str
    y_label: str


@dataclass(slots=True)
class Book:
    """All that a run has found so far."""

    environment: dict[str, Any]
    rounds: int
    figures: list[Figure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _values: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)

    def compare(self, part: str, measures: Sequence[Measure], rounds: int | None = None) -> None:
        """Run each measure once a round, in a turning order: a machine that slows down
        or warms up does so for all of them."""
        for turn in range(rounds or self.rounds):
            shift = turn % len(measures)
            for measure in (*measures[shift:], *measures[:shift]):
                value = measure.run()
                self.add(part, measure.name, value, measure.unit)
                say(f"{part}: {measure.name}: {value:,.6g} {measure.unit}")

    def add(self, part: str, name: str, value: float, unit: str) -> None:
        """One more value of a figure."""
        self._values.setdefault((part, name, unit), []).append(value)

    def values(self, part: str, name: str) -> list[float]:
        """A figure's values so far, in order of rounds."""
        found = [v for (p, n, _), v in self._values.items() if (p, n) == (part, name)]
        return found[0] if found else []

    def ratio(
        self, part: str, name: str, top: str, bottom: str, *,
        least: float | None = None, most: float | None = None,
    ) -> None:
        """The median over the rounds of one measure against another."""
        pairs = zip(self.values(part, top), self.values(part, bottom), strict=True)
        self.judge(
            part, name, statistics.median([a / b for a, b in pairs if b]), least=least, most=most
        )

    def judge(
        self, part: str, name: str, value: float, *,
        least: float | None = None, most: float | None = None,
    ) -> None:
        """A number beside what is hoped for, if anything is."""
        if least is not None:
            found = at_least(part, name, value, least)
        elif most is not None:
            found = at_most(part, name, value, most)
        else:
            found = Ratio(part, name, value, "", True)
        self.ratios.append(found)
        say(f"{part}: {name} = {value:.3g} {found.wanted}")

    def leave_out(self, part: str, reason: str) -> None:
        """It cannot be measured here, and that is no fault."""
        self.left_out[part] = reason
        say(f"{part}: left out: {reason}")

    def close(self) -> None:
        """Turn values into figures."""
        self.figures = [
            Figure.of(part, name, values, unit)
            for (part, name, unit), values in self._values.items()
        ]


_begun = time.monotonic()


def say(text: str) -> None:
    """Progress, for whoever watches."""
    passed = time.monotonic() - _begun
    print(f"[{passed:6.1f} s] {text}", file=sys.stderr, flush=True)

"""What the judge says: a rule that did not hold, and where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Rules that did not hold: which, and what was seen.
Broken = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Fault:
    """``task`` is the id of a task, or the key of a lock; ``pos`` the change that shows it."""

    rule: str
    act: str
    task: str
    message: str
    pos: int = 0

    def __str__(self) -> str:
        where = f", change {self.pos}" if self.pos else ""
        return f"{self.rule}: {self.message} ({self.act}, {self.task}{where})"

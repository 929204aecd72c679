"""The words of a history: what clients called and were told, and what the witness saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Image = Mapping[str, Any]

OK, FAIL, INFO = "ok", "fail", "info"


@dataclass
class Transaction:
    """A transaction that a client held open: its calls count if it was committed."""

    number: int
    actor: str
    began: int
    outcome: str = INFO
    ended: int = 0

    @property
    def committed(self) -> bool:
        return self.outcome == OK


@dataclass
class Call:
    """A call of a function: ok was answered, fail did certainly not happen, and info may
    have happened, at any later moment, or never.

    ``began`` and ``ended`` count the acts of the whole simulation.
    """

    number: int
    actor: str
    function: str
    arguments: dict[str, Any]
    began: int
    clock: int
    ended: int = 0
    clock_ended: int = 0
    outcome: str = INFO
    rows: list[dict[str, Any]] = field(default_factory=list)
    sqlstate: str = ""
    detail: str = ""
    transaction: Transaction | None = None

    @property
    def happened(self) -> bool:
        """Whether it was answered with yes, and its transaction committed."""
        return self.outcome == OK and (self.transaction is None or self.transaction.committed)

    @property
    def undone(self) -> bool:
        """Whether it has certainly left nothing behind."""
        return self.outcome == FAIL or (
            self.transaction is not None and self.transaction.outcome == FAIL
        )

    @property
    def settled(self) -> int:
        """The act after which everybody sees it."""
        if self.outcome == OK and self.transaction is not None:
            return self.transaction.ended
        return self.ended


@dataclass(frozen=True)
class Change:
    """A row that the witness saw change, within the transaction that changed it."""

    pos: int
    clock: int
    xid: str
    backend: int
    call: int | None
    source: str
    old: Image | None
    new: Image | None

    @property
    def id(self) -> str:
        return str((self.new or self.old or {})["id"])

    @property
    def row(self) -> Image:
        found = self.new or self.old
        assert found is not None
        return found


@dataclass(frozen=True)
class Tick:
    """The clock was moved, by this act, to this microsecond."""

    step: int
    clock: int


@dataclass
class History:
    """One interleaving, from first to last."""

    calls: list[Call] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    """What was still not final after the drain."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of calls: the first waited for what the second had locked."""
    deadlocks: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Fault:
    """A rule that did not hold."""

    rule: str
    about: str
    message: str
    pos: int = 0

    def __str__(self) -> str:
        return f"{self.rule}: {self.message} ({self.about})"

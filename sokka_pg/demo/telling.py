"""What the demo says while it runs, whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from sokka_pg.errors import SokkaError

STALL_S = 60.0
"""Longest that nothing may happen."""
TICK_S = 0.1


class DemoFailed(SokkaError):
    """The demo could not come to its end; the message says where it stood."""


@dataclass(frozen=True, slots=True)
class HandView:
    """One worker process at a glance."""

    name: str
    process: int
    state: str
    rows: int
    leases: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far the job is. ``what`` is the unit of ``done`` and ``total``."""

    what: str
    done: int
    total: int
    hands: list[HandView] = field(default_factory=list)


class Teller(Protocol):
    """Shows the demo to somebody."""

    def said(self, text: str) -> None:
        """Something happened, once."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """How it stands now; called many times a second."""
        ...


class Patience:
    """Bounds a wait by the last time that anything changed."""

    def __init__(self, waiting_for: str) -> None:
        self._waiting_for = waiting_for
        self._seen: Hashable = None
        self._since = time.monotonic()

    def tick(self, state: Hashable, detail: str = "") -> None:
        """Sleep a moment; raises ``DemoFailed`` if ``state`` has stood still too long."""
        now = time.monotonic()
        if state != self._seen:
            self._seen, self._since = state, now
        elif now - self._since > STALL_S:
            raise DemoFailed(
                f"nothing happened for {STALL_S:.0f} seconds while waiting for "
                f"{self._waiting_for}{detail}"
            )
        time.sleep(TICK_S)

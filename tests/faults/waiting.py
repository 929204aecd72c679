"""Waiting for something to be so, with a deadline instead of a guess."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sokka_pg.events import Event

T = TypeVar("T")
E = TypeVar("E", bound=Event)

DEADLINE_S = 20.0
_LOOK_AGAIN_S = 0.02


def until(look: Callable[[], T], what: str = "it", deadline_s: float = DEADLINE_S) -> T:
    """The first true answer of ``look``."""
    end = time.monotonic() + deadline_s
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen in {deadline_s} s")
        time.sleep(_LOOK_AGAIN_S)
    return found


async def until_async(
    look: Callable[[], T], what: str = "it", deadline_s: float = DEADLINE_S
) -> T:
    """``until``, letting the loop run."""
    end = time.monotonic() + deadline_s
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen in {deadline_s} s")
        await asyncio.sleep(_LOOK_AGAIN_S)
    return found


class Seen:
    """An observer that remembers."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def notice(self, event: Event, /) -> None:
        with self._lock:
            self._events.append(event)

    def all(self, kind: type[E], **fields: Any) -> list[E]:
        with self._lock:
            events = list(self._events)
        return [
            event for event in events
            if isinstance(event, kind)
            and all(getattr(event, name) == value for name, value in fields.items())
        ]

"""What a scheduler says about its runs, and who hears it.

Observers are called on a thread of their own, one event after the other, in the
order in which things happened. One that is slow loses events in the end, one that
raises is logged once, and neither slows or breaks a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from sokka_pg import events
from sokka_pg.events import EventFeed

log = logging.getLogger("sokka_pg.scheduler")

TOLD_WITHIN_S = 1.0


class EventKind(StrEnum):
    """What happened to a run."""

    SCHEDULED = "scheduled"
    """It was admitted; its lease is asked for next."""
    STARTED = "started"
    """An attempt begins."""
    RETRYING = "retrying"
    """An attempt failed; ``reason`` is the wait before the next one."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """``reason``: ``attempts_exhausted``, ``cancelled``, ``lease_acquire_failed`` or
    ``invalid_schedule`` (then no run will follow)."""
    SKIPPED = "skipped"
    """``reason``: ``overlap`` or ``lease_contended``."""


@dataclass(frozen=True, slots=True)
class Event(events.Event):
    """One thing that happened to one run.

    ``duration``: of the attempt, where one is to be retried; of the whole run,
    waits between attempts included, where it succeeded or failed; else 0.
    ``timestamp`` is by the scheduler's clock.
    """

    kind: EventKind
    job_name: str
    run_id: str
    scheduled_at: datetime
    timestamp: datetime
    attempt: int = 0
    max_attempts: int = 0
    duration: timedelta = timedelta(0)
    reason: str = ""
    error: BaseException | None = None


class Observer(Protocol):
    """Somebody who wants to know."""

    def observe(self, event: Event, /) -> None:
        """Take note of an event."""


@dataclass(frozen=True, slots=True)
class ObserverFunc:
    """A function as an observer."""

    function: Callable[[Event], object]

    def observe(self, event: Event, /) -> None:
        self.function(event)


class Audience:
    """The observers of one scheduler."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        hearing = [_Hearing(observer) for observer in observers]
        self._feed = EventFeed([*hearing, _Marks()] if hearing else ())
        self._left = not hearing

    def tell(self, event: Event) -> None:
        """Pass an event on; returns at once and never raises."""
        self._feed.emit(event)

    async def told(self) -> None:
        """Return when everybody has heard everything, or is too slow for that."""
        if self._left:
            return
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        self._feed.emit(_Mark(lambda: loop.call_soon_threadsafe(heard.set)))
        with suppress(TimeoutError):
            async with asyncio.timeout(TOLD_WITHIN_S):
                await heard.wait()

    async def leave(self) -> None:
        """Nothing more will be said."""
        await self.told()
        self._left = True
        self._feed.close(0.0)


@dataclass(frozen=True, slots=True)
class _Mark(events.Event):
    reached: Callable[[], object]


class _Marks:
    """The last one to hear of everything: tells who waits for that."""

    def notice(self, event: events.Event, /) -> None:
        if isinstance(event, _Mark):
            with suppress(RuntimeError):  # the loop of who waited may be closed by now
                event.reached()


class _Hearing:
    """One observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._logged = False

    def notice(self, event: events.Event, /) -> None:
        if not isinstance(event, Event):
            return
        try:
            self._observer.observe(event)
        except BaseException as error:
            # an observer's SystemExit must not end the feed for the others
            if not self._logged:
                self._logged = True
                log.warning(
                    "observer %s raised %r; its further errors are not logged",
                    type(self._observer).__name__, error,
                )

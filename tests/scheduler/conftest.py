"""Schedulers of both kinds behind one face, a clock that is set by hand, a locker in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sokka_pg.errors import LeaseLost
from sokka_pg.scheduler import AsyncScheduler, Event, Job, Scheduler

DEADLINE_S = 30.0
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


class Seen:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = threading.Condition()

    def observe(self, event: Event, /) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    @property
    def kinds(self) -> list[str]:
        return [str(event.kind) for event in self.events]

    async def until(self, kind: str, count: int = 1) -> Event:
        """The ``count``-th event of this kind."""
        return await asyncio.to_thread(self._until, kind, count)

    def _until(self, kind: str, count: int) -> Event:
        def found() -> list[Event]:
            return [event for event in self.events if event.kind == kind]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, DEADLINE_S), self.kinds
            return found()[count - 1]


class MemoryLease:
    def __init__(self, locks: MemoryLocker, key: str, token: int) -> None:
        self.locks, self.key, self.token = locks, key, token
        self.renewals = 0
        self.renewed = threading.Event()

    def renew(self, ttl: Any) -> None:
        self.renewals += 1
        self.renewed.set()
        if self.locks.fault is not None:
            raise self.locks.fault
        if self.locks.held.get(self.key) is not self:
            raise LeaseLost("somebody else has it")

    def release(self) -> None:
        if self.locks.held.get(self.key) is self:
            del self.locks.held[self.key]


class MemoryLocker:
    """Leases that end when they are released or taken away."""

    def __init__(self) -> None:
        self.held: dict[str, MemoryLease] = {}
        self.asked: list[tuple[str, timedelta]] = []
        self.fault: Exception | None = None
        self._tokens = 0

    def try_acquire(self, key: str, ttl: Any) -> MemoryLease | None:
        self.asked.append((key, ttl))
        if self.fault is not None:
            raise self.fault
        if key in self.held:
            return None
        self._tokens += 1
        self.held[key] = MemoryLease(self, key, self._tokens)
        return self.held[key]


class AsyncMemoryLease:
    def __init__(self, lease: MemoryLease) -> None:
        self.lease, self.token = lease, lease.token

    async def renew(self, ttl: Any) -> None:
        self.lease.renew(ttl)

    async def release(self) -> None:
        self.lease.release()


class AsyncMemoryLocker:
    """The same, for event loops."""

    def __init__(self, locker: MemoryLocker) -> None:
        self.locker = locker

    async def try_acquire(self, key: str, ttl: Any) -> AsyncMemoryLease | None:
        lease = self.locker.try_acquire(key, ttl)
        return None if lease is None else AsyncMemoryLease(lease)


class Face:
    """A scheduler of either kind, awaited."""

    def __init__(self, scheduler: Scheduler | AsyncScheduler) -> None:
        self.scheduler = scheduler

    def register(self, job: Job) -> None:
        self.scheduler.register(job)

    async def start(self) -> None:
        await self._call(self.scheduler.start)

    async def shutdown(self, timeout: float | None = DEADLINE_S) -> None:
        await self._call(self.scheduler.shutdown, timeout)

    async def trigger(self, name: str) -> None:
        await self._call(self.scheduler.trigger, name)

    async def look(self) -> None:
        if isinstance(self.scheduler, Scheduler):
            await asyncio.to_thread(self.scheduler.look)
        else:
            self.scheduler.look()

    async def _call(self, verb: Callable[..., Any], *arguments: Any) -> None:
        if isinstance(self.scheduler, Scheduler):
            await asyncio.to_thread(verb, *arguments)
        else:
            await verb(*arguments)


Make = Callable[..., Face]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def locks() -> MemoryLocker:
    return MemoryLocker()


@pytest.fixture(params=[Scheduler, AsyncScheduler], ids=["sync", "async"])
async def make(request: pytest.FixtureRequest, clock: Clock, seen: Seen) -> AsyncIterator[Make]:
    """Makes schedulers by ``clock``, observed by ``seen``; they are shut down in the end."""
    made: list[Face] = []

    def one(*options: Any, **more: Any) -> Face:
        more = {"now": clock, "observers": [seen]} | more
        made.append(Face(request.param(*options, **more)))
        return made[-1]

    yield one
    for face in made:
        if face.scheduler._core._started:
            await face.shutdown()


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.005)

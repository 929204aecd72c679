"""Locks that are kept for a block or a function: one holder at a time, anywhere."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import partial, wraps
from time import monotonic
from typing import Any, ParamSpec, TypeVar, cast

from sokka_pg import durations
from sokka_pg.durations import Duration
from sokka_pg.engine.backoff import Backoff
from sokka_pg.engine.leases import SHORTEST_LEASE_S
from sokka_pg.errors import BadArgument, UsageError
from sokka_pg.scheduler.calling import in_thread
from sokka_pg.scheduler.errors import LockHeld
from sokka_pg.scheduler.keeping import Keeper
from sokka_pg.scheduler.leasing import obtained
from sokka_pg.scheduler.locker import PostgresLease, PostgresLocker
from sokka_pg.store_async import AsyncTaskStore

log = logging.getLogger("sokka_pg.scheduler")

P = ParamSpec("P")
R = TypeVar("R")

TTL = timedelta(seconds=30)
SHORTEST_TTL = timedelta(seconds=SHORTEST_LEASE_S)
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0

_held: ContextVar[AnyKeptLease | None] = ContextVar("sokka_held_lease", default=None)


class AnyKeptLease:
    """What both kept leases share. ``token``: higher than that of every holder before;
    for ``advance_fence`` and for other stores that compare."""

    def __init__(self, lease: PostgresLease, keeper: Keeper) -> None:
        self._lease, self._keeper = lease, keeper
        self.key, self.owner, self.token = lease.key, lease.owner, lease.token

    def __repr__(self) -> str:
        return repr(self._lease)

    @property
    def expires_at(self) -> datetime:
        """Its end by the database's clock, as of the last renewal."""
        return self._lease.expires_at

    @property
    def lost(self) -> bool:
        """Whether the lock is lost, as far as this process can know without asking."""
        return self._keeper.lost

    def check(self) -> None:
        """Raise LeaseLost if the lock is lost. Asks nobody: see ``assert_held``."""
        self._keeper.check()


class KeptLease(AnyKeptLease):
    """A lock that is held and renewed until its block ends."""

    def assert_held(self, connection: Any) -> datetime:
        """Let the open transaction of ``connection`` (psycopg's or SQLAlchemy's) act for
        the key: nobody else gets the lock before it ends. The lock's end; raises LeaseLost."""
        return self._lease.assert_held(connection)


class AsyncKeptLease(AnyKeptLease):
    """``KeptLease`` for event loops."""

    def __init__(self, lease: PostgresLease, keeper: Keeper, store: AsyncTaskStore) -> None:
        super().__init__(lease, keeper)
        self._store = store

    async def assert_held(self, connection: Any) -> datetime:
        """Like ``KeptLease.assert_held``, for an async connection."""
        return await self._store.assert_lock(
            self.key, self.owner, self.token, connection=connection
        )


def held_lease() -> AnyKeptLease:
    """The lock of the singleton that is running. Raises UsageError outside of one."""
    found = _held.get()
    if found is None:
        raise UsageError("no function with @app.singleton is running here")
    return found


@contextmanager
def held(
    locker: PostgresLocker, key: str, ttl: Duration = TTL, wait: Duration = 0
) -> Iterator[KeptLease]:
    """Hold the lock of ``key`` for the block. See ``Sokka.lock``."""
    span, give_up_at = _span(ttl), _give_up_at(wait)
    waits = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
    while True:
        sent_at = monotonic()
        lease = locker.try_acquire(key, span)
        if lease is not None:
            break
        time.sleep(_pause_s(key, give_up_at, waits))
    keeper = _keeper(lease, span, sent_at)
    try:
        yield KeptLease(lease, keeper)
        keeper.check()
    finally:
        keeper.stop()
        _released(lease)


@asynccontextmanager
async def held_async(
    locker: PostgresLocker,
    store: AsyncTaskStore,
    key: str,
    ttl: Duration = TTL,
    wait: Duration = 0,
) -> AsyncIterator[AsyncKeptLease]:
    """``held`` for event loops. See ``Sokka.lock_async``."""
    span, give_up_at = _span(ttl), _give_up_at(wait)
    waits = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
    while True:
        sent_at = monotonic()
        lease = await obtained(partial(locker.try_acquire, key, span))
        if lease is not None:
            break
        await asyncio.sleep(_pause_s(key, give_up_at, waits))
    keeper = _keeper(lease, span, sent_at)
    watch = _Watch(keeper)
    try:
        async with watch:
            yield AsyncKeptLease(lease, keeper, store)
        keeper.check()
    finally:
        keeper.stop()
        await in_thread(partial(_released, lease))


class _Watch:
    """Cancels the task in whose block the lease is lost, as ``asyncio.timeout`` would."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._fired = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise UsageError("lock_async: only within a task of an event loop")
        self._task, self._cancelling = task, task.cancelling()
        self._watching = asyncio.create_task(self._watch())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._watching.cancel()
        if not self._fired:
            return
        if kind is None:
            # the block ended before the cancellation reached it: meet it here
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                kind = asyncio.CancelledError
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._keeper.loss() from error

    async def _watch(self) -> None:
        await self._keeper.until_lost()
        self._fired = True
        self._task.cancel()


def singleton(
    hold: Callable[[], Any],
    hold_async: Callable[[], Any],
    skip: bool,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorator of ``Sokka.singleton``; ``hold`` and ``hold_async`` make its locks."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError("singleton: a generator does its work after the call; wrap its caller")
        if inspect.iscoroutinefunction(function):
            return cast(Callable[P, R], _alone_async(function, hold_async, skip))
        return _alone(function, hold, skip)

    return decorated


def _alone(function: Callable[P, R], hold: Callable[[], Any], skip: bool) -> Callable[P, R]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            try:
                lease = stack.enter_context(hold())
            except LockHeld:
                if skip:
                    return cast(R, None)
                raise
            before = _held.set(lease)
            stack.callback(_held.reset, before)
            return function(*args, **kwargs)

    return call


def _alone_async(
    function: Callable[P, Awaitable[R]], hold: Callable[[], Any], skip: bool
) -> Callable[P, Awaitable[R]]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        async with AsyncExitStack() as stack:
            try:
                lease = await stack.enter_async_context(hold())
            except LockHeld:
                if skip:
                    return cast(R, None)
                raise
            before = _held.set(lease)
            stack.callback(_held.reset, before)
            return await function(*args, **kwargs)

    return call


def _span(ttl: Duration) -> timedelta:
    found = durations.lease_duration(ttl, "ttl")
    if found is None or found < SHORTEST_TTL:
        raise BadArgument.of("ttl", "a lock that is kept needs 300 ms or more")
    return found


def _give_up_at(wait: Duration) -> float:
    return monotonic() + durations.delay(wait, "wait").total_seconds()


def _pause_s(key: str, give_up_at: float, waits: Backoff) -> float:
    left_s = give_up_at - monotonic()
    if left_s <= 0:
        raise LockHeld(f"lock {key!r} is held by somebody else", {"key": key})
    return min(left_s, waits.next_s())


def _keeper(lease: PostgresLease, ttl: timedelta, sent_at: float) -> Keeper:
    keeper = Keeper(lease.key, partial(lease.renew, ttl), ttl, sent_at)
    keeper.start()
    return keeper


def _released(lease: PostgresLease) -> None:
    try:
        lease.release()
    except Exception as error:
        log.warning("lock %r is left to run out: %r", lease.key, error)

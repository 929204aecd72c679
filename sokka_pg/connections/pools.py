"""Our pools: opened at first use, one per process (and per event loop).

psycopg's pool, with three things changed. A connection that the server closed
while it was idle is noticed without a round trip and replaced, so that a
restart costs nobody a failed call. The first connection is tried in the
caller, so that a wrong password is said at once and in the server's words. And
a process that was forked gets a pool of its own: two processes that read one
socket would take each other's answers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import types
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import psycopg
from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from sokka_pg.calls.statement import Call
from sokka_pg.connections.options import (
    ConnectionOptions,
    connect_arguments,
    set_up,
    set_up_async,
    still_there,
)
from sokka_pg.connections.sending import (
    send,
    send_async,
    send_explicit,
    send_explicit_async,
    useless_after,
)
from sokka_pg.errors import DatabaseUnavailable, UsageError
from sokka_pg.translate import from_connecting, translated

T = TypeVar("T")
SyncPool: TypeAlias = ConnectionPool[Connection[Any]]
AsyncPool: TypeAlias = AsyncConnectionPool[AsyncConnection[Any]]

# psycopg's pool backs off for up to five minutes; short rounds, begun anew by the
# next caller, find a server that came back within seconds.
_RECONNECT_S = 3.0
_MOST_WAITING = 10_000

# Pools inherited over a fork: kept, never used. Dropping one would join threads
# that do not exist in this process.
_inherited: list[object] = []
_sources: weakref.WeakSet[_PerProcess] = weakref.WeakSet()


class _PerProcess:
    """What both kinds of source share: settings, and the fork."""

    def __init__(self, database: str, schema: str, options: ConnectionOptions) -> None:
        self.schema = schema
        self.options = options
        self.arguments = connect_arguments(database, options)
        self.lock = threading.Lock()
        _sources.add(self)

    def after_fork(self) -> None:
        # A thread that does not exist here may have held the lock.
        self.lock = threading.Lock()
        self.leave_behind()

    def leave_behind(self) -> None:
        raise AssertionError("each kind of source leaves its own pools behind")

    def pool_arguments(self) -> dict[str, Any]:
        return {
            "conninfo": "",
            "kwargs": self.arguments,
            "min_size": 0,
            "max_size": self.options.max_size,
            "timeout": self.options.wait.total_seconds(),
            "max_waiting": _MOST_WAITING,
            "reconnect_timeout": _RECONNECT_S,
            "open": False,
        }


def _forked() -> None:
    for each in list(_sources):
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Source(_PerProcess):
    """Our own sync connections."""

    def __init__(self, database: str, schema: str, options: ConnectionOptions) -> None:
        super().__init__(database, schema, options)
        self._pool: SyncPool | None = None

    def stats(self) -> dict[str, int]:
        return stats_of(() if self._pool is None else (self._pool,), self.options.max_size)

    def leave_behind(self) -> None:
        if self._pool is not None:
            _inherited.append(self._pool)
            self._pool = None

    def close(self) -> None:
        """Close the pool of this process; a later call opens a new one."""
        with self.lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _opened(self) -> SyncPool:
        pool = self._pool
        if pool is not None:
            return pool
        with self.lock:
            if self._pool is None:
                with _connecting():
                    psycopg.connect(**self.arguments).close()
                configure = partial(set_up, options=self.options)
                self._pool = ConnectionPool(configure=configure, **self.pool_arguments())
                self._pool.open()
            return self._pool

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """A connection for the block, given back after it. Raises DatabaseUnavailable."""
        pool = self._opened()
        connection = _taken(pool)
        try:
            yield connection
        except BaseException as error:
            if useless_after(error):
                connection.close()
            raise
        finally:
            pool.putconn(connection)

    def run(self, call: Call[T]) -> T:
        """Send a call once, in a transaction of its own."""
        with self.connection() as connection:
            if not self.options.pooler:
                return send(connection, call, self.schema, foreign=False)
            return send_explicit(connection, call, self.schema)

    def run_beside(self, call: Call[T], meanwhile: Iterable[None]) -> T:
        """``run``, with something to do while the server is at work."""
        foreign = self.options.pooler
        with self.connection() as connection:
            return send_explicit(
                connection, call, self.schema, foreign=foreign, meanwhile=meanwhile
            )


class AsyncSource(_PerProcess):
    """Our own async connections."""

    def __init__(self, database: str, schema: str, options: ConnectionOptions) -> None:
        super().__init__(database, schema, options)
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncPool] = (
            weakref.WeakKeyDictionary()
        )
        self._opening: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    def stats(self) -> dict[str, int]:
        return stats_of(tuple(self._pools.values()), self.options.max_size)

    def leave_behind(self) -> None:
        _inherited.extend(self._pools.values())
        self._pools = weakref.WeakKeyDictionary()
        self._opening = weakref.WeakKeyDictionary()

    async def close(self) -> None:
        """Close this event loop's pool; a later call opens a new one."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def _opened(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is not None:
            return pool
        async with self._opening.setdefault(loop, asyncio.Lock()):
            pool = self._pools.get(loop)
            if pool is None:
                with _connecting():
                    first = await AsyncConnection.connect(**self.arguments)
                await first.close()
                configure = partial(set_up_async, options=self.options)
                pool = AsyncConnectionPool(configure=configure, **self.pool_arguments())
                await pool.open()
                self._pools[loop] = pool
            return pool

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection for the block, given back after it. Raises DatabaseUnavailable."""
        pool = await self._opened()
        connection = await _taken_async(pool)
        try:
            yield connection
        except BaseException as error:
            if useless_after(error):
                await connection.close()
            raise
        finally:
            await _kept_on(pool.putconn(connection))

    async def run(self, call: Call[T]) -> T:
        """Send a call once, in a transaction of its own."""
        async with self.connection() as connection:
            if not self.options.pooler:
                return await send_async(connection, call, self.schema, foreign=False)
            return await send_explicit_async(connection, call, self.schema)

    async def run_beside(self, call: Call[T], meanwhile: Iterable[None]) -> T:
        """``run``, with something to do while the server is at work."""
        foreign = self.options.pooler
        async with self.connection() as connection:
            return await send_explicit_async(
                connection, call, self.schema, foreign=foreign, meanwhile=meanwhile
            )


class BorrowedSource:
    """A pool that the caller made and will close. Its connections may be set up in
    any way, so each call runs in an explicit READ COMMITTED transaction."""

    def __init__(self, pool: SyncPool, schema: str) -> None:
        self._pool = pool
        self._owner = os.getpid()
        self.schema = schema

    def stats(self) -> dict[str, int]:
        return stats_of((self._pool,), self._pool.max_size)

    def close(self) -> None:
        """Nothing: the pool is its maker's to close."""

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        _refuse_after_fork(self._owner)
        connection = _taken(self._pool)
        level = connection.isolation_level
        try:
            connection.isolation_level = IsolationLevel.READ_COMMITTED
            yield connection
        except BaseException as error:
            if useless_after(error):
                connection.close()
            raise
        finally:
            if not connection.closed:
                connection.isolation_level = level
            self._pool.putconn(connection)

    def run(self, call: Call[T]) -> T:
        with self.connection() as connection, translated(), connection.transaction():
            return send(connection, call, self.schema, foreign=True)

    def run_beside(self, call: Call[T], meanwhile: Iterable[None]) -> T:
        """One after the other: a transaction that waits for the caller's own code would
        keep its locks."""
        answer = self.run(call)
        for _ in meanwhile:
            pass
        return answer


class AsyncBorrowedSource:
    """The async twin of ``BorrowedSource``."""

    def __init__(self, pool: AsyncPool, schema: str) -> None:
        self._pool = pool
        self._owner = os.getpid()
        self.schema = schema

    def stats(self) -> dict[str, int]:
        return stats_of((self._pool,), self._pool.max_size)

    async def close(self) -> None:
        """Nothing: the pool is its maker's to close."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection[Any]]:
        _refuse_after_fork(self._owner)
        connection = await _taken_async(self._pool)
        level = connection.isolation_level
        try:
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            yield connection
        except BaseException as error:
            if useless_after(error):
                await connection.close()
            raise
        finally:
            await _kept_on(self._given_back(connection, level))

    async def _given_back(
        self, connection: AsyncConnection[Any], level: IsolationLevel | None
    ) -> None:
        if not connection.closed:
            await connection.set_isolation_level(level)
        await self._pool.putconn(connection)

    async def run(self, call: Call[T]) -> T:
        async with self.connection() as connection:
            with translated():
                async with connection.transaction():
                    return await send_async(connection, call, self.schema, foreign=True)

    async def run_beside(self, call: Call[T], meanwhile: Iterable[None]) -> T:
        """One after the other, as in ``BorrowedSource``."""
        answer = await self.run(call)
        for _ in meanwhile:
            await asyncio.sleep(0)
        return answer


def source(
    database: str | SyncPool, schema: str, options: ConnectionOptions | None
) -> Source | BorrowedSource:
    """Connections from a URL (our own pool) or from a pool of the caller."""
    if isinstance(database, ConnectionPool):
        _refuse_options(options)
        return BorrowedSource(database, schema)
    if isinstance(database, AsyncConnectionPool):
        raise UsageError("database: an AsyncConnectionPool belongs to AsyncPgTaskStore")
    return Source(database, schema, options or ConnectionOptions())


def async_source(
    database: str | AsyncPool, schema: str, options: ConnectionOptions | None
) -> AsyncSource | AsyncBorrowedSource:
    """Async connections from a URL (our own pool) or from a pool of the caller."""
    if isinstance(database, AsyncConnectionPool):
        _refuse_options(options)
        return AsyncBorrowedSource(database, schema)
    if isinstance(database, ConnectionPool):
        raise UsageError("database: a ConnectionPool belongs to PgTaskStore")
    return AsyncSource(database, schema, options or ConnectionOptions())


def stats_of(pools: Iterable[SyncPool | AsyncPool], most: int) -> dict[str, int]:
    """The figures of psycopg's pools, added up; of none, if nothing was opened yet."""
    found: Counter[str] = Counter()
    for pool in pools:
        found.update(pool.get_stats())
    return {**found, "pool_max": found["pool_max"] or most}


def _taken(pool: SyncPool) -> Connection[Any]:
    """A connection from a pool, the dead ones among its own passed over."""
    with translated(sent=False):
        for _ in range(pool.max_size):
            connection = pool.getconn()
            if still_there(connection):
                return connection
            pool.putconn(connection)
        return pool.getconn()


async def _taken_async(pool: AsyncPool) -> AsyncConnection[Any]:
    """A connection from a pool. A caller who is cancelled while it waits may already have
    been given one, which psycopg's pool then never sees again (seen: 3 of 4 connections
    gone after 1,800 cancellations). So the taking goes on without it, and gives back."""
    taking = _begun(_next_alive(pool))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        _begun(_returned(pool, taking))
        raise


async def _next_alive(pool: AsyncPool) -> AsyncConnection[Any]:
    with translated(sent=False):
        for _ in range(pool.max_size):
            connection = await pool.getconn()
            if still_there(connection):
                return connection
            await pool.putconn(connection)
        return await pool.getconn()


async def _returned(pool: AsyncPool, taking: asyncio.Future[AsyncConnection[Any]]) -> None:
    with suppress(DatabaseUnavailable):
        await pool.putconn(await taking)


async def _kept_on(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work``, which goes on if its caller is cancelled."""
    await asyncio.shield(_begun(work))


def _begun(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """``work``, which goes on by itself. Most is over without waiting, where a connection is
    free: it needs no task, and two tasks a call were a sixth of its time."""
    under_way = _started(work)
    if not under_way.done():
        # a loop alone does not keep its tasks
        _under_way.add(under_way)
        under_way.add_done_callback(_under_way.discard)
    return under_way


if sys.version_info >= (3, 12):

    def _started(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)

else:
    # By hand only here: from 3.12 on, time-outs belong to the task that began them.
    def _started(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        over: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            awaited = work.send(None)
        except StopIteration as ended:
            over.set_result(ended.value)
        except Exception as error:  # whoever awaits it is told
            over.set_exception(error)
        else:
            return asyncio.create_task(_going_on(work, awaited))
        return over


async def _going_on(work: Coroutine[Any, Any, T], awaited: Any) -> T:
    return await _rest(work, awaited)


@types.coroutine
def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """What is left of ``work``, which waits for ``awaited``."""
    while True:
        try:
            told = yield awaited
        except BaseException as error:  # the work may end on it, or go on
            step = partial(work.throw, error)
        else:
            step = partial(work.send, told)
        try:
            awaited = step()
        except StopIteration as ended:
            return cast(T, ended.value)


_under_way: set[asyncio.Future[Any]] = set()


def _refuse_options(options: ConnectionOptions | None) -> None:
    if options is not None:
        raise UsageError("options: they are for our own connections; this pool is yours")


def _refuse_after_fork(owner: int) -> None:
    if os.getpid() != owner:
        raise UsageError(
            "this process was forked: its parent's pool cannot be shared; "
            "give the store a URL, or make it after the fork"
        )


@contextmanager
def _connecting() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        found = from_connecting(error)
        if not isinstance(found, DatabaseUnavailable | UsageError):
            # A refused login, an unknown database: the server answered, but there
            # is no connection.
            found = DatabaseUnavailable(found.message, {**found.detail, "sent": False})
        raise found from error

"""Who may run: lockers, and the one on PostgreSQL.

A lease of ``PostgresLocker`` is a row of the database, judged by the database's
clock. Its token only rises, over all keys and tasks, so that any store that
compares tokens can refuse an older holder (``advance_fence``).
"""

from __future__ import annotations

import os
import socket
import uuid
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from sokka_pg import durations
from sokka_pg.connections import ConnectionOptions
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument, LeaseLost
from sokka_pg.model import Lock
from sokka_pg.store import PgTaskStore, TaskStore
from sokka_pg.store_async import AsyncPgTaskStore, AsyncTaskStore


class Lease(Protocol):
    """A lock that is held. Both verbs verify that it still is."""

    def renew(self, ttl: Duration, /) -> object:
        """Hold it for ``ttl`` from now on. Raises LeaseLost when it is not held any more."""

    def release(self) -> object:
        """Give it up. Nothing happens when it is not held any more."""


@runtime_checkable
class Locker(Protocol):
    """Sees to it that of all replicas one at a time has the lease of a key."""

    def try_acquire(self, key: str, ttl: Duration, /) -> Lease | None:
        """The lease, or None while somebody holds it. Never waits for the holder."""


class AsyncLease(Protocol):
    """``Lease`` for event loops."""

    async def renew(self, ttl: Duration, /) -> object: ...

    async def release(self) -> object: ...


@runtime_checkable
class AsyncLocker(Protocol):
    """``Locker`` for event loops."""

    async def try_acquire(self, key: str, ttl: Duration, /) -> AsyncLease | None: ...


class _Held:
    """What both leases on PostgreSQL know."""

    def __init__(self, lock: Lock) -> None:
        self.key, self.owner = lock.key, lock.owner
        self.token: int = lock.token
        """The fencing token: higher than that of every holder before."""
        self.expires_at: datetime = lock.lock_expires_at
        """Its end by the database's clock, as of the last renewal."""

    def __repr__(self) -> str:
        return f"<lease of {self.key!r}, token {self.token}, owner {self.owner!r}>"


class PostgresLease(_Held):
    """A lease that ``PostgresLocker`` gave."""

    def __init__(self, store: TaskStore, lock: Lock) -> None:
        super().__init__(lock)
        self._store = store

    def renew(self, ttl: Duration) -> datetime:
        """Hold it for ``ttl`` from now on; its new end. Raises LeaseLost."""
        self.expires_at = self._store.renew_lock(self.key, self.owner, self.token, ttl)
        return self.expires_at

    def release(self) -> None:
        """Give it up; nothing happens when it is not held any more. Raises Busy while a
        transaction that asserted it is open."""
        with suppress(LeaseLost):
            self._store.release_lock(self.key, self.owner, self.token)

    def assert_held(self, connection: Any) -> datetime:
        """Let the open transaction of ``connection`` act for the key: nobody else gets
        the lease before that transaction ends. Returns its end; raises LeaseLost."""
        return self._store.assert_lock(self.key, self.owner, self.token, connection=connection)


class AsyncPostgresLease(_Held):
    """A lease that ``AsyncPostgresLocker`` gave."""

    def __init__(self, store: AsyncTaskStore, lock: Lock) -> None:
        super().__init__(lock)
        self._store = store

    async def renew(self, ttl: Duration) -> datetime:
        """Like ``PostgresLease.renew``."""
        self.expires_at = await self._store.renew_lock(self.key, self.owner, self.token, ttl)
        return self.expires_at

    async def release(self) -> None:
        """Like ``PostgresLease.release``."""
        with suppress(LeaseLost):
            await self._store.release_lock(self.key, self.owner, self.token)

    async def assert_held(self, connection: Any) -> datetime:
        """Like ``PostgresLease.assert_held``."""
        return await self._store.assert_lock(
            self.key, self.owner, self.token, connection=connection
        )


class PostgresLocker:
    """Leases in the database of a queue. Thread-safe.

    ``store``: a store of yours, or a URL, for which connections of its own are
    opened when they are needed (``options``, and ``close`` to end them). ``owner``
    is who the holder is called; by default host, process and a random part.
    Raises BadArgument.
    """

    def __init__(
        self,
        store: TaskStore | str,
        *,
        owner: str | None = None,
        schema: str = "sokka",
        options: ConnectionOptions | None = None,
    ) -> None:
        self.owner = _owner(owner)
        self._own: PgTaskStore | None = None
        if isinstance(store, str):
            store = self._own = PgTaskStore(store, schema, options=options)
        self._store = store

    def try_acquire(self, key: str, ttl: Duration) -> PostgresLease | None:
        """The lease of ``key`` for ``ttl`` (1 ms to 1 year), or None while it is held,
        by whomever. Raises BadArgument, DatabaseUnavailable."""
        lock = self._store.try_lock(_key(key), self.owner, _ttl(ttl))
        return None if lock is None else PostgresLease(self._store, lock)

    def close(self) -> None:
        """Close the connections that were opened for a URL."""
        if self._own is not None:
            self._own.close()


class AsyncPostgresLocker:
    """``PostgresLocker`` for event loops, on an ``AsyncTaskStore`` or a URL."""

    def __init__(
        self,
        store: AsyncTaskStore | str,
        *,
        owner: str | None = None,
        schema: str = "sokka",
        options: ConnectionOptions | None = None,
    ) -> None:
        self.owner = _owner(owner)
        self._own: AsyncPgTaskStore | None = None
        if isinstance(store, str):
            store = self._own = AsyncPgTaskStore(store, schema, options=options)
        self._store = store

    async def try_acquire(self, key: str, ttl: Duration) -> AsyncPostgresLease | None:
        """Like ``PostgresLocker.try_acquire``."""
        lock = await self._store.try_lock(_key(key), self.owner, _ttl(ttl))
        return None if lock is None else AsyncPostgresLease(self._store, lock)

    async def close(self) -> None:
        """Close the connections that were opened for a URL."""
        if self._own is not None:
            await self._own.close()


def _owner(given: str | None) -> str:
    if given is None:
        return f"{socket.gethostname()[:60]}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
    if not isinstance(given, str) or not given.strip():
        raise BadArgument.of("owner", "must be a str that is not blank", given)
    return given


def _key(key: str) -> str:
    if not isinstance(key, str) or not key.strip():
        raise BadArgument.of("key", "must be a str that is not blank", key)
    return key


def _ttl(ttl: Duration) -> Duration:
    found = durations.lease_duration(ttl, "ttl")
    if found is None:
        raise BadArgument.of("ttl", "is required")
    return found

"""What a handler is given beside its payload.

``TaskContext`` for async handlers, ``SyncTaskContext`` for plain functions, in
threads and in processes: the same words, with and without ``await``. A plain
function may annotate either and gets the sync one.

Every write goes through the lease: a handler that lost it gets ``LeaseLost``
and has changed nothing.

A handler that is told to stop (``cancelled``) and returns nothing has stopped,
not finished: its task is released, failed as cancelled, or retried. A value that
it returns is its result all the same, except after a timeout.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from sokka_pg.errors import LeaseLost, UsageError
from sokka_pg.model import CheckpointSaved, Json, Lease, LeasedTask

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from sokka_pg.fence import FencedTransaction
    from sokka_pg.store import TaskStore
    from sokka_pg.store_async import AsyncTaskStore

log = logging.getLogger("sokka_pg.task")
_told = threading.Lock()


class AnyContext:
    """What both contexts share."""

    def __init__(
        self, task: LeasedTask, on_lost: Callable[[int, str], None] | None = None
    ) -> None:
        self.task = task
        self.last_checkpoint: Json = task.checkpoint
        """The last checkpoint recorded by this or an earlier attempt; None without one."""
        self.cancel_reason: str | None = None
        """``lost``, ``timeout``, ``cancel`` or ``stop``, once the handler is to stop."""
        self.terminated = False
        """Whether a transaction of this handler ended the task."""
        self._open = False
        self._on_lost = on_lost
        self._flag: threading.Event | None = None
        self._on_cancel: list[Callable[[], None]] = []

    @property
    def lease(self) -> Lease:
        """The proof of ownership, for verbs of the store."""
        return self.task.lease

    @property
    def token(self) -> int:
        """The fencing token: hand it to other stores that can compare."""
        return self.task.token

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.task.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the handler is to stop: lost lease, timeout, cancellation, shutdown."""
        return self.cancel_reason is not None

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry task_id, topic, kind, attempt and token."""
        task = self.task
        return logging.LoggerAdapter(log, {
            "task_id": str(task.task_id), "topic": task.topic, "kind": task.kind,
            "attempt": task.attempt, "token": task.token,
        })

    @property
    def stop_requested(self) -> threading.Event:
        """Set when the handler is to stop; for waiting and for libraries that take one."""
        with _told:
            if self._flag is None:
                self._flag = threading.Event()
                if self.cancelled:
                    self._flag.set()
            return self._flag

    def tell_to_stop(self, reason: str) -> None:
        """Raise the flag; from any thread. Called by the worker."""
        with _told:
            self.cancel_reason = reason
            if self._flag is not None:
                self._flag.set()
            listeners, self._on_cancel = self._on_cancel, []
        for listener in listeners:
            listener()

    def on_stop(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once, from any thread, when the handler is to stop."""
        with _told:
            if not self.cancelled:
                self._on_cancel.append(listener)
                return
        listener()

    @property
    def transaction_open(self) -> bool:
        return self._open

    def _enter(self) -> None:
        if self._open:
            raise UsageError("this task already has a fenced transaction open")
        if self.terminated:
            raise UsageError("this task was ended by an earlier transaction")
        self._open = True

    def _leave(self) -> None:
        self._open = False

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Tell the worker when the database says that this lease is over."""
        try:
            yield
        except LeaseLost as refused:
            ours = refused.detail.get("task_id") in (None, str(self.task.task_id))
            if ours and self._on_lost is not None:
                self._on_lost(self.token, refused.sqlstate or "")
            raise


class TaskContext(AnyContext):
    """The context of an async handler."""

    __sokka_context__: ClassVar[str] = "async"

    def __init__(
        self, task: LeasedTask, store: AsyncTaskStore,
        on_lost: Callable[[int, str], None] | None = None,
    ) -> None:
        super().__init__(task, on_lost)
        self._store = store

    async def progress(self, progress: Json, *, connection: Any = None) -> None:
        """Store how far the task is, replacing what stood there. Raises LeaseLost."""
        with self._watching():
            await self._store.report_progress(
                self.lease, progress=progress, connection=connection
            )

    async def checkpoint(self, checkpoint: Json, *, connection: Any = None) -> CheckpointSaved:
        """Record a point to go on from; the next attempt finds it in
        ``last_checkpoint``. On the connection of ``transaction()`` it commits with
        the writes made there. Raises LeaseLost."""
        with self._watching():
            saved = await self._store.save_checkpoint(
                self.lease, checkpoint=checkpoint, connection=connection
            )
        self.last_checkpoint = checkpoint
        return saved

    @asynccontextmanager
    async def transaction(
        self, *, terminate: bool = False
    ) -> AsyncIterator[FencedTransaction[AsyncConnection[Any]]]:
        """A transaction that commits only under this lease.

        Write on its ``connection``. With ``terminate`` the task ends in the same
        commit, with its ``result``; the handler's return value then counts for
        nothing. Raises LeaseLost, and nothing was written.
        """
        self._enter()
        try:
            with self._watching():
                async with self._store.transaction(self.lease, terminate=terminate) as block:
                    yield block
            self.terminated = terminate
        finally:
            self._leave()

    async def wait_cancelled(self) -> str:
        """Wait until the handler is to stop; the reason."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self.on_stop(lambda: _call_soon(loop, done.set))
        await done.wait()
        return self.cancel_reason or ""


class SyncTaskContext(AnyContext):
    """The context of a handler that is a plain function."""

    __sokka_context__: ClassVar[str] = "sync"

    def __init__(
        self, task: LeasedTask, store: TaskStore,
        on_lost: Callable[[int, str], None] | None = None,
    ) -> None:
        super().__init__(task, on_lost)
        self._store = store

    def progress(self, progress: Json, *, connection: Any = None) -> None:
        """Like ``TaskContext.progress``."""
        with self._watching():
            self._store.report_progress(self.lease, progress=progress, connection=connection)

    def checkpoint(self, checkpoint: Json, *, connection: Any = None) -> CheckpointSaved:
        """Like ``TaskContext.checkpoint``."""
        with self._watching():
            saved = self._store.save_checkpoint(
                self.lease, checkpoint=checkpoint, connection=connection
            )
        self.last_checkpoint = checkpoint
        return saved

    @contextmanager
    def transaction(
        self, *, terminate: bool = False
    ) -> Iterator[FencedTransaction[Connection[Any]]]:
        """Like ``TaskContext.transaction``."""
        self._enter()
        try:
            with self._watching(), self._store.transaction(
                self.lease, terminate=terminate
            ) as block:
                yield block
            self.terminated = terminate
        finally:
            self._leave()

    def wait_cancelled(self, timeout_s: float | None = None) -> bool:
        """Wait until the handler is to stop, or ``timeout_s``; whether it is."""
        return self.stop_requested.wait(timeout_s)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback)

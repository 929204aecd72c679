"""What both contexts share."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property

from sokka_pg.calls.watching import task_hash
from sokka_pg.context.fanning import FanOuts
from sokka_pg.context.plans import Ask, Plan
from sokka_pg.context.progress import Progress
from sokka_pg.context.steps import Steps
from sokka_pg.context.streaming import Stream
from sokka_pg.errors import LeaseLost, StopRequested, UsageError
from sokka_pg.model import Json, Lease, LeasedTask

log = logging.getLogger("sokka_pg.task")
_told = threading.Lock()


class AnyContext(ABC):
    """What both contexts share.

    One is made for every attempt, and most handlers use none of it: so what has a
    default stands in the class until it is set.
    """

    cancel_reason: str | None = None
    """``lost``, ``timeout``, ``cancel`` or ``stop``, once the handler is to stop."""
    terminated: bool = False
    """Whether a transaction of this handler ended the task."""
    _open: bool = False
    _flag: threading.Event | None = None
    _on_cancel: tuple[Callable[[], None], ...] = ()
    _progress: Progress | None = None
    _stream: Stream | None = None
    _led: AnyContext | None = None

    def __init__(
        self, task: LeasedTask, on_lost: Callable[[int, str], None] | None = None
    ) -> None:
        self.task = task
        self.last_checkpoint: Json = task.checkpoint
        """The last checkpoint recorded by this or an earlier attempt; None without one."""
        self._on_lost = on_lost

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
    def fire_at(self) -> datetime | None:
        """The tick of its schedule for which the task was made; None for any other task."""
        said = (self.task.headers or {}).get("sokka-fire-at", "")
        try:
            return datetime.fromisoformat(said)
        except ValueError:
            return None

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
            listeners, self._on_cancel = self._on_cancel, ()
        for listener in listeners:
            listener()

    def on_stop(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once, from any thread, when the handler is to stop."""
        with _told:
            if not self.cancelled:
                self._on_cancel = (*self._on_cancel, listener)
                return
        listener()

    def hear(self, hashes: Collection[str], everything: bool) -> None:
        """Something happened to the tasks with these hashes; from any thread."""
        if self._stream is not None and (everything or self._hash in hashes):
            self._stream.news.tell()
        if self._led is not None:
            self._led.hear(hashes, everything)

    def lead(self, other: AnyContext) -> None:
        """Pass on to another context of the same task what this one is told. Its
        ``finish`` is the caller's to call."""
        self._led = other
        self.on_stop(lambda: other.tell_to_stop(self.cancel_reason or ""))

    @property
    def unwritten(self) -> bool:
        """Whether ``finish`` may have something to write."""
        return self._progress is not None and not self.terminated

    # --- for what the contexts are made of --------------------------------

    def owning(self) -> Plan[None]:
        """Ask the database before anything is done for a lease that seems to be lost."""
        if self.cancel_reason == "lost":
            yield Ask("assert_lease", self.lease)
            raise LeaseLost(
                "this worker has given the lease up", {"task_id": str(self.task.task_id)}
            )

    def refuse_to_wait(self) -> None:
        """Raise StopRequested when the handler is to stop."""
        if self.cancelled:
            reason = str(self.cancel_reason)
            raise StopRequested(f"told to stop ({reason})", {"reason": reason})

    @abstractmethod
    def _arm(self, delay_s: float) -> None:
        """Write what progress is left, after the delay."""

    def _reporting(self) -> Progress:
        with _told:
            if self._progress is None:
                self._progress = Progress(self.lease, self._arm)
            return self._progress

    def _report(self, progress: Json, connection: object) -> Plan[None]:
        if connection is not None:
            return self._reporting().report_on(connection, progress)
        return self._reporting().report(progress, at_once=self.cancel_reason == "lost")

    def _finish(self) -> Plan[None]:
        if self._progress is not None:
            yield from self._progress.finish()

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self)

    @cached_property
    def _fans(self) -> FanOuts:
        return FanOuts(self)

    @cached_property
    def _hash(self) -> str:
        return task_hash(self.task.task_id)

    def _streaming(self) -> Stream:
        if self._stream is None:
            self._stream = Stream(self)
        return self._stream

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



"""Jobs that run by the clock in this process: the sync and the async scheduler."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from sokka_pg import durations
from sokka_pg.durations import Duration
from sokka_pg.errors import UsageError
from sokka_pg.scheduler.core import Core
from sokka_pg.scheduler.events import Observer
from sokka_pg.scheduler.job import Job
from sokka_pg.scheduler.locker import AsyncLocker, Locker
from sokka_pg.scheduler.settings import Now, Option, setup_of
from sokka_pg.workload.home import Home, move_in, move_out

T = TypeVar("T")

# A scheduler that runs must not be collected, and its loop ended, for want of a name.
_running: set[Scheduler] = set()


class Scheduler:
    """Runs jobs in threads, in this process, by the clock.

    Register jobs, then ``start``; or leave that to ``with``, which shuts down at its
    end. ``options`` (``with_now``, ``with_locker``, ``with_observer``) and keywords
    say the same. Nothing is stored: what falls due while no process runs is not made
    up for. Thread-safe; after a fork make another one. Raises BadArgument.
    """

    def __init__(
        self,
        *options: Option,
        now: Now | None = None,
        locker: Locker | AsyncLocker | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self._core = Core(setup_of(options, now, locker, observers), async_in_threads=True)
        self._lock = threading.Lock()
        self._home: Home | None = None
        self._pid = os.getpid()
        self._leave: weakref.finalize[Any, Any] | None = None

    def register(self, job: Job) -> None:
        """Take a job. Raises InvalidJob, JobAlreadyExists, AlreadyStarted."""
        self._core.register(job)

    def start(self) -> None:
        """Begin, and return; once ever. Raises AlreadyStarted."""
        self._wait(self._core.start())
        _running.add(self)

    def shutdown(self, timeout: Duration | None = None) -> None:
        """Begin no more runs, tell those that go on to stop, and wait for their ends.

        Not from a handler. Raises NotStarted, and TimeoutError when runs have not ended
        within ``timeout``; call again to wait on.
        """
        timeout_s = None if timeout is None else durations.delay(timeout, "timeout").total_seconds()
        self._wait(self._core.shutdown(timeout_s))
        _running.discard(self)
        with self._lock:
            if self._leave is not None:
                self._leave()

    def trigger(self, name: str) -> None:
        """Run a job now, with its lease, its timeout and its retries, and wait for the end.

        Works on a scheduler that was not started, too. Raises the final error,
        RunSkipped, JobNotFound, and NotStarted after a shutdown.
        """
        self._wait(self._core.trigger(name))

    def look(self) -> None:
        """Read the clock now. Without this it is read at least once a second: this is
        for a clock of yours that was just set."""
        self._wait(self._look())

    def __enter__(self) -> Scheduler:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    async def _look(self) -> None:
        self._core.look()

    def _wait(self, verb: Coroutine[Any, Any, T]) -> T:
        begun = self._begin(verb)
        try:
            return begun.result()
        finally:
            # left by Ctrl-C, say: nobody waits for it any more
            begun.cancel()

    def _begin(self, verb: Coroutine[Any, Any, T]) -> Future[T]:
        if os.getpid() != self._pid:
            verb.close()
            raise UsageError("this scheduler was made in another process: make one here")
        with self._lock:
            if self._home is None or (self._leave is not None and not self._leave.alive):
                self._home = move_in()
                self._leave = weakref.finalize(self, move_out, self._home)
            return self._home.begin(verb)


class AsyncScheduler:
    """``Scheduler`` for an event loop: async handlers run on it, plain ones in threads.

    For one loop: the one on which it is started.
    """

    def __init__(
        self,
        *options: Option,
        now: Now | None = None,
        locker: Locker | AsyncLocker | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self._core = Core(setup_of(options, now, locker, observers), async_in_threads=False)

    def register(self, job: Job) -> None:
        """Like ``Scheduler.register``."""
        self._core.register(job)

    async def start(self) -> None:
        """Like ``Scheduler.start``."""
        await self._core.start()

    async def shutdown(self, timeout: Duration | None = None) -> None:  # noqa: ASYNC109
        """Like ``Scheduler.shutdown``."""
        timeout_s = None if timeout is None else durations.delay(timeout, "timeout").total_seconds()
        await self._core.shutdown(timeout_s)

    async def trigger(self, name: str) -> None:
        """Like ``Scheduler.trigger``. Cancelled, it tells the run to stop and waits for that."""
        await self._core.trigger(name)

    def look(self) -> None:
        """Like ``Scheduler.look``; on the scheduler's loop."""
        self._core.look()

    async def __aenter__(self) -> AsyncScheduler:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

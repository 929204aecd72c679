"""Threads for plain functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Threads:
    """At most ``most`` threads, started when needed.

    They are daemons: a handler that never returns must not keep the process from
    ending (its task is released, and what it still writes is fenced off). The
    executor of the standard library waits for its threads at exit.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, job: Callable[[], None]) -> None:
        """Run ``job`` on a thread; it must not raise."""
        self._jobs.put(job)
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            threading.Thread(
                target=self._work, name=f"sokka-task-{self._started}", daemon=True
            ).start()

    def close(self) -> None:
        """Let idle threads end, and busy ones when they are done."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job
            self._idle.release()

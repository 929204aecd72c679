"""News that end a pause, and a thread for what plain functions leave for later."""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from time import monotonic

log = logging.getLogger("sokka_pg.task")


class News:
    """A flag that one waits for, raised from any thread. News from before the wait
    end it too, until they are cleared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = False
        self._wake: Callable[[], None] | None = None

    def tell(self) -> None:
        with self._lock:
            self._told = True
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def clear(self) -> None:
        with self._lock:
            self._told, self._wake = False, None

    def wait(self, seconds: float) -> None:
        flag = threading.Event()
        if self._call_on_news(flag.set):
            flag.wait(seconds)

    async def wait_async(self, seconds: float) -> None:
        loop, flag = asyncio.get_running_loop(), asyncio.Event()
        if self._call_on_news(lambda: call_soon(loop, flag.set)):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await flag.wait()

    def _call_on_news(self, wake: Callable[[], None]) -> bool:
        with self._lock:
            if not self._told:
                self._wake = wake
            return not self._told


def call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call on the loop's own thread; not at all if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


class LaterThread:
    """One thread of this process that calls each job when its time has come.

    Jobs are short writes, one after the other: one that hangs delays the others,
    and what they would write is written by their own threads in the end.
    """

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            # a forked child has no thread, and perhaps a lock that nobody will release
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._thread: threading.Thread | None = None

    def call(self, delay_s: float, job: Callable[[], None]) -> None:
        """Call ``job`` after the delay, from the thread."""
        with self._changed:
            heapq.heappush(self._jobs, (monotonic() + delay_s, next(self._order), job))
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="sokka-later", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._next()
            try:
                job()
            except Exception:
                log.exception("a late write broke")
            del job

    def _next(self) -> Callable[[], None]:
        with self._changed:
            while True:
                wait = self._jobs[0][0] - monotonic() if self._jobs else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._jobs)[2]
                self._changed.wait(wait)


LATER = LaterThread()

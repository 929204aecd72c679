"""A sweep now and then by one who waits for a join.

Workers sweep all the while. But a deadline is to be noticed even if none runs, and
so is, some time, what was missed when the last two candidates ended at one instant.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic

from sokka_pg.errors import SokkaError

log = logging.getLogger("sokka_pg.workload")

SELDOM_S, OVERDUE_S = 10.0, 1.0
AFTER_S = 0.02


class Sweeper:
    """Sweeps when a deadline is reached, then every second until its wait is over;
    else seldom, so that a thousand processes that wait are no burden."""

    def __init__(self, sweep: Callable[[], Awaitable[object]]) -> None:
        self._sweep = sweep
        self._dues: list[float] = []
        self._news = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    @contextmanager
    def at(self, due_at: float) -> Iterator[None]:
        """While somebody waits for what is due at this (monotonic) instant, or never."""
        self._dues.append(due_at)
        self._news.set()
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            self._dues.remove(due_at)
            if not self._dues:
                self._work.cancel()
                self._work = None

    async def _watch(self) -> None:
        swept_at = monotonic()
        while True:
            self._news.clear()
            wait_s = self._next_at(swept_at) - monotonic()
            if wait_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
                continue
            swept_at = monotonic()
            try:
                await self._sweep()
            except SokkaError as error:
                # a role that may not, or an outage: then it is the workers' to do
                log.debug("the sweep of one who waits failed: %s", error)

    def _next_at(self, swept_at: float) -> float:
        now = monotonic()
        ahead = min((due for due in self._dues if due > swept_at), default=inf) + AFTER_S
        overdue = any(due <= now for due in self._dues)
        pause = OVERDUE_S if overdue else SELDOM_S * random.uniform(0.5, 1.5)
        return min(ahead, swept_at + pause)

"""Waiting for what becomes of tasks: many who wait, one who looks.

However many handles wait in a process, one connection listens and one asks. A
look at all of them is one query, made at every poll; a notification hurries the
look at the task that it names. It is only a hint: what counts is the look.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from datetime import timedelta
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from sokka_pg import calls
from sokka_pg.calls.watching import task_hash
from sokka_pg.connections import ConnectionOptions
from sokka_pg.engine.backoff import Backoff
from sokka_pg.errors import BadArgument, SchemaMismatch, SokkaError, UsageError
from sokka_pg.model import TaskLook
from sokka_pg.wakeup import Signals, Wakeup
from sokka_pg.worker.link import Link
from sokka_pg.worker.options import new_pid

log = logging.getLogger("sokka_pg.workload")

MARK = timedelta(seconds=60)
REMARK_S = 20.0
MOST_PER_QUERY = 10_000
BETWEEN_LOOKS_S = 0.003
CALL_S = 10.0

Wanted: TypeAlias = "Callable[[TaskLook | None], bool]"


class Waiter:
    """One who waits until ``wanted`` is true of a look, and is then told once.

    ``wanted`` is asked at every look, with None where no such task exists.
    """

    __slots__ = ("news", "task_id", "wanted")

    def __init__(self, task_id: UUID, wanted: Wanted) -> None:
        self.task_id, self.wanted = task_id, wanted
        self.news: asyncio.Future[TaskLook | None] = asyncio.get_running_loop().create_future()


class Watcher:
    """Looks at the tasks that somebody waits for. On one loop."""

    def __init__(
        self, database_url: str, schema: str, options: ConnectionOptions, poll_s: float
    ) -> None:
        self._id = f"{new_pid()}:{secrets.token_hex(2)}"
        self._wakeup = Wakeup(database_url, schema, poll=poll_s, options=options, hears="d")
        self._link = Link(database_url, schema, options, CALL_S)
        self._waiting: dict[UUID, list[Waiter]] = {}
        self._hashes: dict[str, set[UUID]] = {}
        self._new: set[UUID] = set()
        self._unmarked: set[UUID] = set()
        self._marked_at = self._looked_at = self._polled_at = 0.0
        self._users = 0
        self._somebody = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self.closed = False
        self.looks = 0
        """How many queries looked at tasks; for tests."""

    def retained(self, poll_s: float) -> Watcher:
        """Itself, for one more user, and no slower than that one wants."""
        self._users += 1
        self._wakeup.poll_s = min(self._wakeup.poll_s, poll_s)
        return self

    async def release(self) -> None:
        """Close, if nobody else uses this one."""
        self._users -= 1
        if self._users > 0 or self.closed:
            return
        self.closed = True
        while self._work is not None and not self._work.done():
            # more than once: wait_for of Python 3.11 may swallow a cancellation
            self._work.cancel()
            await asyncio.wait({self._work}, timeout=0.1)
        for waiter in self._all():
            if not waiter.news.done():
                waiter.news.set_exception(UsageError("the scheduler was closed"))
        await self._link.close()

    async def until(self, task_id: UUID, wanted: Wanted) -> TaskLook | None:
        """The first look of which ``wanted`` is true; None for a task that is not there.

        A database that is away is waited for. Raises SchemaMismatch and UsageError.
        """
        waiter = Waiter(task_id, wanted)
        self._add(waiter)
        try:
            return await waiter.news
        finally:
            self._remove(waiter)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _add(self, waiter: Waiter) -> None:
        task_id = waiter.task_id
        known = self._waiting.setdefault(task_id, [])
        known.append(waiter)
        self._hashes.setdefault(task_hash(task_id), set()).add(task_id)
        self._new.add(task_id)
        if len(known) == 1:
            self._unmarked.add(task_id)
        self._somebody.set()
        self._wakeup.poke()
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._watch(), name="sokka-watch")

    def _remove(self, waiter: Waiter) -> None:
        task_id = waiter.task_id
        left = [each for each in self._waiting.get(task_id, ()) if each is not waiter]
        if left:
            self._waiting[task_id] = left
            return
        self._waiting.pop(task_id, None)
        self._new.discard(task_id)
        self._unmarked.discard(task_id)
        digest = task_hash(task_id)
        named = self._hashes.get(digest, set())
        named.discard(task_id)
        if not named:
            self._hashes.pop(digest, None)
        if not self._waiting:
            self._somebody.clear()

    def _all(self) -> list[Waiter]:
        return [waiter for waiters in self._waiting.values() for waiter in waiters]

    # --- the one who looks ------------------------------------------------

    async def _watch(self) -> None:
        backoff = Backoff()
        async with self._wakeup:
            due = list(self._waiting)
            while True:
                try:
                    await self._look(due)
                    if not self._waiting:
                        await self._rest()
                    backoff.reset()
                    due = await self._next()
                except (SchemaMismatch, BadArgument, UsageError) as error:
                    self._give_up(error)
                    due = []
                except SokkaError as error:
                    log.warning("tasks cannot be watched, trying on: %s", error)
                    await asyncio.sleep(backoff.next_s())
                    due = list(self._waiting)

    async def _rest(self) -> None:
        """Until somebody waits again; nobody is to be notified meanwhile."""
        if self._marked_at:
            self._marked_at = 0.0
            await self._link.send(calls.unwatch_tasks(self._id))
        await self._somebody.wait()

    async def _next(self) -> list[UUID]:
        """Whom to look at next: all at a poll, else the new and the notified ones."""
        named: set[UUID] = set()
        while not self._new and not named:
            left_s = self._polled_at + self._wakeup.poll_s - monotonic()
            marked_s = self._marked_at + REMARK_S - monotonic() if self._marked_at else left_s
            if marked_s <= 0 < left_s and self._wakeup.listening:
                return []
            signals = await self._wakeup.wait(max(0.0, min(left_s, max(marked_s, 0.1))))
            if signals.missed:
                self._unmarked.update(self._waiting)
            if signals.missed or left_s <= 0 or not self._waiting:
                self._polled_at = monotonic()
                return list(self._waiting)
            named = self._named(signals)
        # those who come close together are looked at together
        await asyncio.sleep(self._looked_at + BETWEEN_LOOKS_S - monotonic())
        return list(named | self._new)

    def _named(self, signals: Signals) -> set[UUID]:
        found: set[UUID] = set()
        for digest in signals.tasks:
            found |= self._hashes.get(digest, set())
        return found

    async def _look(self, due: list[UUID]) -> None:
        self._new.difference_update(due)
        await self._peek(due)
        if self._wakeup.listening and (waiting := self._to_mark(due)):
            await self._mark(waiting)
            # what happened before the mark was told to nobody
            await self._peek(waiting)
        self._looked_at = monotonic()

    async def _peek(self, due: list[UUID]) -> None:
        for some in _portions(due):
            self.looks += 1
            looks = await self._link.send(calls.peek_tasks(some))
            self._tell(some, {look.task_id: look for look in looks})

    def _to_mark(self, due: Iterable[UUID]) -> list[UUID]:
        """Those that go on waiting, and whose end nobody would notify."""
        if monotonic() - self._marked_at >= REMARK_S:
            self._marked_at = monotonic()
            self._unmarked.update(self._waiting)
            due = self._unmarked
        return [
            each for each in due
            if each in self._unmarked and any(not w.news.done() for w in self._waiting[each])
        ]

    async def _mark(self, waiting: list[UUID]) -> None:
        for some in _portions(waiting):
            await self._link.send(calls.watch_tasks(self._id, some, MARK))
            self._unmarked.difference_update(some)

    def _tell(self, asked: Iterable[UUID], looks: dict[UUID, TaskLook]) -> None:
        for task_id in asked:
            look = looks.get(task_id)
            for waiter in self._waiting.get(task_id, ()):
                if waiter.news.done():
                    continue
                try:
                    if waiter.wanted(look):
                        waiter.news.set_result(look)
                except Exception as error:
                    waiter.news.set_exception(error)

    def _give_up(self, error: SokkaError) -> None:
        for waiter in self._all():
            if not waiter.news.done():
                waiter.news.set_exception(error)


def _portions(task_ids: list[UUID]) -> list[list[UUID]]:
    return [
        task_ids[start : start + MOST_PER_QUERY]
        for start in range(0, len(task_ids), MOST_PER_QUERY)
    ]

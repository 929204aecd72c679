"""Progress on its way to the database: as often as is of use, and the last one always."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias
from uuid import UUID

from sokka_pg.errors import Busy, Refused, SokkaError
from sokka_pg.model import Lease
from sokka_pg.pacing import ProgressPace
from sokka_pg.payload import Encoded

log = logging.getLogger("sokka_pg.workload")

Key: TypeAlias = tuple[UUID, str, int]


@dataclass(slots=True)
class _Line:
    """What one lease has to say."""

    pace: ProgressPace[Encoded]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    timer: asyncio.TimerHandle | None = None


class ProgressLines:
    """Writes at most once per ``every_s`` for each lease; what comes in between
    replaces what waits. A line without news for so long is forgotten."""

    def __init__(
        self, write: Callable[[Lease, Encoded], Awaitable[object]], every_s: float
    ) -> None:
        self._write, self._every_s = write, every_s
        self._lines: dict[Key, _Line] = {}
        self._late: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._lines)

    async def report(self, lease: Lease, text: Encoded) -> None:
        """Write now, or soon. Raises what the write is refused with, if it is made now."""
        key = (lease.task_id, lease.pid, lease.token)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line(ProgressPace(self._every_s))
        line.pace.offer(text)
        if line.lock.locked() or line.pace.due_in(monotonic()) != 0.0:
            self._wake(key, line)
            return
        # a row that is held at this moment is written a little later
        with suppress(Busy):
            await self._written(key, line)

    async def flush(self, lease: Lease) -> None:
        """Write what is held, before the lease is used for something else. A refusal
        is left to that."""
        key = (lease.task_id, lease.pid, lease.token)
        line = self._lines.get(key)
        if line is None:
            return
        try:
            await self._written(key, line, last=True)
        except Refused:
            log.debug("progress of task %s was refused", lease.task_id)

    async def close(self) -> None:
        """Write all that is held, once."""
        for key in list(self._lines):
            try:
                await self.flush(Lease(*key))
            except SokkaError as error:
                log.warning("the last progress of task %s was not written: %s", key[0], error)
            self._forget(key)
        for task in self._late:
            task.cancel()

    async def _written(self, key: Key, line: _Line, last: bool = False) -> None:
        # in turn, so that whoever flushes also waits for a write under way
        async with line.lock:
            text = line.pace.take(monotonic(), last)
            if text is None:
                return
            try:
                await self._write(Lease(*key), text)
            except BaseException as error:
                if isinstance(error, Refused) and not isinstance(error, Busy):
                    # the next report is written at once, and so told the same
                    self._forget(key)
                    raise
                line.pace.not_written(monotonic())
                self._wake(key, line)
                raise
            line.pace.written(monotonic())
        self._wake(key, line)

    def _wake(self, key: Key, line: _Line) -> None:
        if line.timer is None and self._lines.get(key) is line:
            due_in = line.pace.due_in(monotonic())
            wait_s = self._every_s if due_in is None else due_in
            loop = asyncio.get_running_loop()
            line.timer = loop.call_later(wait_s, self._due, key, line)

    def _due(self, key: Key, line: _Line) -> None:
        line.timer = None
        if line.pace.due_in(monotonic()) is None and not line.lock.locked():
            self._forget(key)
            return
        task = asyncio.get_running_loop().create_task(self._write_late(key, line))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _write_late(self, key: Key, line: _Line) -> None:
        try:
            await self._written(key, line)
            self._wake(key, line)
        except SokkaError as error:
            # after an outage it is tried until the lease is over, which is a refusal
            log.warning("progress of task %s was not written: %s", key[0], error)

    def _forget(self, key: Key) -> None:
        line = self._lines.pop(key, None)
        if line is not None and line.timer is not None:
            line.timer.cancel()
            line.timer = None

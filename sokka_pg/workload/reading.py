"""Reading what a task tells while it works, wherever that is: progress and streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

from sokka_pg.errors import TaskFailed
from sokka_pg.model import Json, Status, StreamItem, StreamState, TaskLook
from sokka_pg.workload.words import TaskProgress, missing

if TYPE_CHECKING:
    from sokka_pg.workload.core import Core

ITEMS, BYTES = 100, 1024 * 1024
AGAIN_S = 0.02


class ProgressReader:
    """What one reader has seen of a task's progress."""

    def __init__(self, task_id: UUID) -> None:
        self.task_id = task_id
        self.ended = False
        self._seen: Json = None

    async def next(self, core: Core) -> TaskProgress | None:
        """The progress when it is another one than last; None if it ended without."""
        look = await core.watched(
            self.task_id,
            lambda look: look is None or look.status.final or look.progress != self._seen,
        )
        if look is None:
            raise missing(self.task_id)
        self.ended = look.status.final
        if look.progress == self._seen:
            return None
        self._seen = look.progress
        return TaskProgress.of(look.progress)


class StreamReader:
    """Where one reader stands. ``after``: the last number it is done with; None: begin
    after what was acknowledged."""

    def __init__(self, task_id: UUID, after: int | None) -> None:
        self.task_id, self.after = task_id, after
        self._found = False

    async def batch(self, core: Core) -> list[StreamItem]:
        """The next items, as soon as there are some; none at the end of the stream.

        Asking for them says that the earlier ones are done with. Raises TaskFailed
        after the last item of a producer that failed.
        """
        if not self._found:
            opened = await self._opened(core)
            if opened is None:
                return []
            self._found = True
            self.after = opened.consumed_seq if self.after is None else self.after
        after = self.after or 0
        while True:
            items = await core.store.read_stream(self.task_id, after, ITEMS, BYTES)
            if items:
                self.after = items[-1].seq
                return items
            state = await core.store.stream(self.task_id)
            if state is None:
                raise missing(self.task_id)
            if state.last_seq > after:
                continue
            if state.status.final:
                return _end(state)
            if state.consumed_seq < state.last_seq:
                # the producer held the row: it waits for the room that this makes
                await asyncio.sleep(AGAIN_S)
            else:
                await core.watched(self.task_id, self._news)

    async def _opened(self, core: Core) -> StreamState | None:
        """The stream, when there is one; None for a task that ended without."""
        while True:
            state = await core.store.stream(self.task_id)
            if state is not None:
                return state
            look = await core.watched(
                self.task_id,
                lambda look: look is None or look.status.final or look.stream_seq is not None,
            )
            if look is None:
                raise missing(self.task_id)
            if look.stream_seq is None:
                task = await core.final(self.task_id)
                if task.status is Status.FAILED:
                    raise TaskFailed.of(self.task_id, task.error)
                return None

    def _news(self, look: TaskLook | None) -> bool:
        return look is None or look.status.final or (look.stream_seq or 0) > (self.after or 0)


def _end(state: StreamState) -> list[StreamItem]:
    if state.status is Status.FAILED:
        raise TaskFailed.of(state.task_id, state.error)
    return []

"""Reading what a task tells while it works, wherever that is: progress and streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

from sokka_pg.errors import NoTaskFound, TaskFailed
from sokka_pg.model import Json, Status, StreamItem, StreamState
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


async def next_items(core: Core, task_id: UUID, after: int | None) -> list[StreamItem]:
    """The next items of a stream, as soon as there are some; none at its end.

    ``after``: the last number that the reader is done with, which is acknowledged;
    None: go on after what was acknowledged before. Nothing is kept here: a reader
    that was cancelled meanwhile asks again and misses none. Raises TaskFailed at
    the end of a producer that failed.
    """
    while True:
        if after is None:
            state = await _opened(core, task_id)
            if state is None:
                return []
            after = state.consumed_seq
        try:
            items = await core.store.read_stream(task_id, after, ITEMS, BYTES)
        except NoTaskFound:
            if await _opened(core, task_id) is None:
                return []
            continue
        if items:
            return items
        state = await core.store.stream(task_id)
        if state is None:
            raise missing(task_id)
        if state.last_seq > after:
            continue
        if state.status.final:
            return _end(state)
        await _news(core, state, after)


async def _news(core: Core, state: StreamState, after: int) -> None:
    if state.consumed_seq < state.last_seq:
        # the producer held the row: it waits for the room that this makes
        await asyncio.sleep(AGAIN_S)
        return
    await core.watched(
        state.task_id,
        lambda look: look is None or look.status.final or (look.stream_seq or 0) > after,
    )


async def _opened(core: Core, task_id: UUID) -> StreamState | None:
    """The stream, when there is one; None for a task that ended without."""
    while True:
        state = await core.store.stream(task_id)
        if state is not None:
            return state
        look = await core.watched(
            task_id,
            lambda look: look is None or look.status.final or look.stream_seq is not None,
        )
        if look is None:
            raise missing(task_id)
        if look.stream_seq is None:
            # it ended without one: as every task, with a result or a failure
            await core.result(task_id)
            return None


def _end(state: StreamState) -> list[StreamItem]:
    if state.status is Status.FAILED:
        raise TaskFailed.of(state.task_id, state.error)
    return []

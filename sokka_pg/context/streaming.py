"""The stream of a task, from its producer's side: items out, and waiting for room."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from sokka_pg.calls.streams import MAX_BYTES, MOST_APPENDED
from sokka_pg.context.plans import Ask, Pause, Plan
from sokka_pg.context.timing import News
from sokka_pg.errors import SokkaError
from sokka_pg.model import Json, StreamAppended
from sokka_pg.payload import Encoded, encode

if TYPE_CHECKING:
    from sokka_pg.context.common import AnyContext

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
WATCH_S = 60.0
MOST_SENT_BYTES = 4 * 1024 * 1024
"""So much is sent in one call, and kept here of the items of an iterator."""


class Stream:
    """How far one attempt has written. ``news``: something was read, or the handler
    is to stop."""

    def __init__(self, context: AnyContext) -> None:
        self._context = context
        self._position: int | None = None
        self._free_items, self._free_bytes = MOST_APPENDED, MOST_SENT_BYTES
        self._watched_until = 0.0
        self.news = News()
        context.on_stop(self.news.tell)

    def position(self) -> Plan[int]:
        """The number of the last item that was taken, in this attempt or an earlier one."""
        if self._position is None:
            state = yield Ask("stream", self._context.task.task_id)
            self._position = 0 if state is None else state.last_seq
        return self._position

    def emit(self, items: Iterable[Json]) -> Plan[int]:
        """Append the items in order; the number of the last."""
        yield from self._context.owning()
        position = yield from self.position()
        for batch in _batches(items):
            position = yield from self._append(batch)
        return position

    def _append(self, items: list[Encoded]) -> Plan[int]:
        pause = FIRST_PAUSE_S
        position = yield from self.position()
        while items:
            self.news.clear()
            answer = yield from self._offer(self._fitting(items), position)
            position = self._position = answer.last_seq
            self._free_items, self._free_bytes = answer.free_items, answer.free_bytes
            items = items[answer.accepted :]
            if answer.accepted:
                pause = FIRST_PAUSE_S
            else:
                self._context.refuse_to_wait()
                yield from self._watch()
                yield Pause(pause)
                pause = min(LONGEST_PAUSE_S, 2 * pause)
        yield from self._unwatch()
        return position

    def _fitting(self, items: list[Encoded]) -> list[Encoded]:
        """The first ones, as many as there was room for when last heard; at least one,
        by which one learns of more."""
        size, found = 0, items[:1]
        for item in items[1 : self._free_items]:
            size += len(found[-1])
            if size + len(item) > self._free_bytes:
                break
            found.append(item)
        return found

    def _offer(self, items: list[Encoded], after: int) -> Plan[StreamAppended]:
        try:
            answer: StreamAppended = yield Ask(
                "append_stream", self._context.lease, items=items, after=after
            )
        except BaseException:
            # it may have been taken all the same: whoever goes on has to look first
            self._position = None
            raise
        return answer

    def _watch(self) -> Plan[None]:
        """Ask to be told when something is read. Only a hint: pauses end by themselves."""
        now = monotonic()
        if now < self._watched_until:
            return
        self._watched_until = now + WATCH_S / 2
        task = self._context.task
        yield from _at_best(
            Ask("watch_tasks", task.pid, [task.task_id], timedelta(seconds=WATCH_S))
        )

    def _unwatch(self) -> Plan[None]:
        if self._watched_until:
            self._watched_until = 0.0
            task = self._context.task
            yield from _at_best(Ask("unwatch_tasks", task.pid, [task.task_id]))


def _at_best(ask: Ask) -> Plan[None]:
    with suppress(SokkaError):
        yield ask


def _batches(items: Iterable[Json]) -> Iterator[list[Encoded]]:
    """Items as text, by the thousand or less, so that an endless iterator will do."""
    texts = (encode(item, "item", MAX_BYTES) for item in items)
    batch: list[Encoded] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= MOST_SENT_BYTES or len(batch) == MOST_APPENDED:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

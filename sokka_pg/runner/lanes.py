"""Long-lived tasks of the loop, each running one async handler after another.

A task for every attempt costs a turn of the loop, a done callback and half a dozen
objects, for handlers that mostly end without ever waiting. Here a lane goes through
what is queued, and only when a handler waits does another lane take over the queue: so
as many handlers wait at a time as were started.

What a handler sees is as in a task of its own:

- its context variables are a fresh copy; what it sets, nobody sees after it;
- ``current_task()`` is the lane, so ``asyncio.timeout`` and task groups work;
- a lane serves no other attempt once its task was cancelled, or once anybody might
  still hold on to it and cancel it later: such a lane ends and a new one is made.
"""

from __future__ import annotations

import asyncio
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from time import monotonic
from typing import Any, TypeAlias

from sokka_pg.engine.words import Settlement
from sokka_pg.runner.attempt import Attempt, run_async

Run: TypeAlias = Coroutine[Any, Any, Settlement | None]

TURN_S = 0.002
"""How long a lane goes on before others get the loop: timers, signals, the answer that
the database has sent meanwhile."""


class Lanes:
    """Runs attempts in the order given, and tells each end, once, on the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop,
        ended: Callable[[Attempt, Settlement | None], None],
    ) -> None:
        self._loop, self._ended = loop, ended
        self._queue: deque[Attempt] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._parked: list[asyncio.Future[None]] = []
        self._served = False
        self._closed = False

    def __len__(self) -> int:
        """How many lanes there are, parked ones among them."""
        return len(self._tasks)

    def put(self, attempt: Attempt) -> None:
        """Run an attempt, after those that were put before."""
        self._queue.append(attempt)
        if not self._served:
            self._call_lane()

    def close(self) -> None:
        """End lanes that have nothing to do, and others when their attempt is over."""
        self._closed = True
        for parked in self._parked:
            parked.cancel()
        self._parked.clear()

    def _call_lane(self) -> None:
        """Let one lane, and no more than one, serve the queue."""
        if self._closed:
            return
        self._served = True
        while self._parked:
            parked = self._parked.pop()
            if not parked.done():
                parked.set_result(None)
                return
        task = self._loop.create_task(self._lane(), name="sokka-lane")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _leave_queue(self) -> None:
        """The lane that served the queue waits, or ends: another takes its place."""
        self._served = False
        if self._queue:
            self._call_lane()

    # --- a lane -----------------------------------------------------------

    async def _lane(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (the code of a task)
        while await self._serve(task) and not self._closed:
            parked = self._loop.create_future()
            self._parked.append(parked)
            try:
                await parked
            except asyncio.CancelledError:
                # closed, or somebody cancels all tasks of the loop
                if parked.done() and not parked.cancelled():
                    self._leave_queue()  # it had been called
                return

    async def _serve(self, task: asyncio.Task[None]) -> bool:
        """Run what is queued; whether this lane may run more, later."""
        alone, turn_ends = _holders(task), monotonic() + TURN_S
        while self._queue:
            attempt = self._queue.popleft()
            if attempt.reason is not None:  # told to stop before it began
                self._ended(attempt, attempt.halted())
                continue
            waited = await self._run(attempt, task)
            if _spoiled(task, alone):
                if not waited:
                    self._leave_queue()
                return False
            if waited and self._served:
                return True
            self._served = True
            if attempt.ended_at > turn_ends:
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    self._leave_queue()
                    return False
                turn_ends = monotonic() + TURN_S
        self._served = False
        return True

    async def _run(self, attempt: Attempt, task: asyncio.Task[None]) -> bool:
        """Run one attempt; whether it waited, so that the queue went to another lane."""
        attempt.unit = task
        run, context = run_async(attempt), copy_context()
        waited = False
        try:
            waits_for = context.run(run.send, None)
        except StopIteration as end:
            settlement = end.value
        else:
            waited = True
            self._leave_queue()
            settlement = await _rest(run, context, waits_for)
        attempt.unit = None
        self._ended(attempt, settlement)
        return waited


@types.coroutine
def _rest(
    run: Run, context: Context, waits_for: Any
) -> Generator[Any, Any, Settlement | None]:
    """Go on with a run that waits, step by step, in its own context."""
    while True:
        step: Callable[[Any], Any] = run.send
        try:
            given = yield waits_for
        except GeneratorExit:
            run.close()
            raise
        except BaseException as exc:
            step, given = run.throw, exc
        try:
            waits_for = context.run(step, given)
        except StopIteration as end:
            settlement: Settlement | None = end.value
            return settlement
        finally:
            del given


def _holders(task: asyncio.Task[None]) -> tuple[int, int]:
    """How many references there are to a lane's task, strong and weak."""
    return sys.getrefcount(task), weakref.getweakrefcount(task)


def _spoiled(task: asyncio.Task[None], alone: tuple[int, int]) -> bool:
    """Whether a cancellation may be on its way to this task, or come later: one that was
    asked for and is not over, or somebody who keeps the task (a timer that will cancel
    it, a registry by ``current_task``)."""
    if task.cancelling() or getattr(task, "_must_cancel", True):
        return True
    strong, weak = alone
    return sys.getrefcount(task) > strong or weakref.getweakrefcount(task) > weak

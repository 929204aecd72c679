"""The runs under way in this worker."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from time import monotonic

from sokka_pg.context import SyncTaskContext, TaskContext
from sokka_pg.engine.words import Ended, Reason, Settlement
from sokka_pg.events import Abandoned, EventFeed, Finished, running
from sokka_pg.model import LeasedTask
from sokka_pg.registry import Mode, Registry, TaskSpec
from sokka_pg.runner.attempt import Attempt, read_arguments, run_sync
from sokka_pg.runner.children import Children
from sokka_pg.runner.lanes import Lanes
from sokka_pg.runner.threads import Threads
from sokka_pg.store import TaskStore
from sokka_pg.store_async import AsyncTaskStore

log = logging.getLogger("sokka_pg.worker")

ABANDON_S = 0.4
"""How long a handler that was told to stop may take before its task is settled
without it. Short: what it still writes is fenced, and others wait for the task."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Where contexts read and write."""

    sync: TaskStore
    asynchronous: AsyncTaskStore


class Runner:
    """Starts handlers and reports each end, once, to ``report`` on the loop."""

    def __init__(
        self, registry: Registry, stores: Stores, slots: int,
        report: Callable[[Ended], None], on_lost: Callable[[int, str], None],
        children: Children, feed: EventFeed,
    ) -> None:
        self._registry, self._stores = registry, stores
        self._report, self._on_lost, self._feed = report, on_lost, feed
        self._threads = Threads(slots)
        self._children = children
        self._attempts: dict[int, Attempt] = {}
        self._over: deque[tuple[Attempt, Settlement | None]] = deque()
        self._told = False
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes(self._loop, self._ended)

    def __len__(self) -> int:
        return len(self._attempts)

    def get(self, token: int) -> Attempt | None:
        return self._attempts.get(token)

    def start(self, task: LeasedTask) -> None:
        """Call the task's handler; its kind is known."""
        spec = self._registry.find(task)
        if spec is None:
            raise LookupError(task.kind)
        attempt = Attempt(
            task, spec, self._context(task, spec), monotonic(), self._feed.companions
        )
        self._attempts[task.token] = attempt
        if spec.mode is Mode.PROCESS:
            # the child reads the payload itself: arguments need not be picklable
            self._threads.submit(partial(self._in_process, attempt))
        elif spec.mode is Mode.ASYNC:
            self._lanes.put(attempt)
        else:
            self._begin(attempt)
        timeout = task.timeout or spec.timeout
        if timeout is not None and not attempt.over:
            attempt.timer = self._loop.call_later(
                timeout.total_seconds(), self.halt, task.token, Reason.TIMEOUT
            )

    def halt(self, token: int, reason: Reason) -> None:
        """Tell a run to stop. The first reason stays, except that a lost lease wins."""
        attempt = self._attempts.get(token)
        if attempt is None or attempt.over or attempt.reason is Reason.LOST:
            return
        if attempt.reason is not None and reason is not Reason.LOST:
            return
        attempt.reason = reason
        attempt.context.tell_to_stop(reason)
        if attempt.unit is not None:
            attempt.unit.cancel()
        if attempt.kill is not None:
            attempt.kill()
        if reason in (Reason.TIMEOUT, Reason.STOP):
            self._loop.call_later(ABANDON_S, self._abandon, attempt)

    def hear(self, hashes: Collection[str], everything: bool) -> None:
        """Something happened to watched tasks: a handler may wait for that."""
        for attempt in self._attempts.values():
            attempt.context.hear(hashes, everything)

    def close(self) -> None:
        """End idle lanes, idle threads and all child processes."""
        self._lanes.close()
        self._threads.close()
        self._children.close()

    def _context(self, task: LeasedTask, spec: TaskSpec) -> TaskContext | SyncTaskContext:
        if spec.mode is Mode.ASYNC:
            return TaskContext(task, self._stores.asynchronous, self._on_lost)
        return SyncTaskContext(task, self._stores.sync, self._on_lost)

    def _begin(self, attempt: Attempt) -> None:
        arguments = read_arguments(attempt.task, attempt.spec, attempt.context)
        if isinstance(arguments, Settlement):
            self._ended(attempt, arguments)
        else:
            self._threads.submit(partial(self._in_thread, attempt, arguments))

    # --- on other threads -------------------------------------------------

    def _in_thread(self, attempt: Attempt, arguments: dict[str, object]) -> None:
        self._from_thread(attempt, run_sync(attempt, arguments))

    def _in_process(self, attempt: Attempt) -> None:
        with running(attempt.companions, attempt.task):
            settlement = self._children.run(attempt)
        self._from_thread(attempt, settlement)

    def _from_thread(self, attempt: Attempt, settlement: Settlement | None) -> None:
        self._over.append((attempt, settlement))
        if self._told:
            return  # the loop will come and find it
        self._told = True
        try:
            self._loop.call_soon_threadsafe(self._take_over)
        except RuntimeError:  # the loop is gone, and the worker with it
            log.debug("task %s ended after its worker", attempt.task.task_id)

    # --- on the loop ------------------------------------------------------

    def _take_over(self) -> None:
        # first: whoever ends from now on tells again
        self._told = False
        while self._over:
            self._ended(*self._over.popleft())

    def _ended(self, attempt: Attempt, settlement: Settlement | None) -> None:
        attempt.over, attempt.unit, attempt.kill = True, None, None
        token = attempt.task.token
        self._attempts.pop(token, None)
        if attempt.timer is not None:
            attempt.timer.cancel()
        if attempt.abandoned:
            self._report(Ended(token, None))
            return
        attempt.ended_at = monotonic()
        duration = attempt.ended_at - attempt.started_at
        if settlement is not None:
            settlement.duration_s = duration
        elif attempt.context.terminated:
            self._tell_finished(attempt.task, duration)
        self._report(Ended(token, settlement))

    def _tell_finished(self, task: LeasedTask, duration: float) -> None:
        self._feed.emit(Finished(
            task.task_id, task.topic, task.kind, task.attempt, task.token, duration
        ))

    def _abandon(self, attempt: Attempt) -> None:
        if attempt.over or attempt.abandoned or attempt.reason is Reason.LOST:
            return
        attempt.abandoned = True
        task, reason = attempt.task, str(attempt.reason)
        log.warning("task %s did not stop (%s); it goes on without its lease",
                    task.task_id, reason)
        self._feed.emit(Abandoned(
            task.task_id, task.topic, task.kind, task.attempt, task.token, reason
        ))
        self._report(Ended(task.token, attempt.halted(), freed=False))

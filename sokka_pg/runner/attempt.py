"""One attempt at one task: what is known of it while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from sokka_pg.context import SyncTaskContext, TaskContext
from sokka_pg.engine import outcomes
from sokka_pg.engine.words import Reason, Settlement
from sokka_pg.events import Companion, running
from sokka_pg.model import LeasedTask, Outcome
from sokka_pg.payload import UndecodableJson
from sokka_pg.registry import TaskSpec

log = logging.getLogger("sokka_pg.worker")

LAST_PROGRESS_S = 10.0
"""Longest that an end waits for the last progress: an answer may never come."""


class Attempt:
    """A run. ``reason`` is set when it was told to stop, ``over`` when it returned,
    ``abandoned`` when its task was settled without waiting for that."""

    __slots__ = (
        "abandoned", "companions", "context", "ended_at", "kill", "over", "reason", "spec",
        "started_at", "task", "timer", "unit",
    )

    def __init__(
        self, task: LeasedTask, spec: TaskSpec,
        context: TaskContext | SyncTaskContext, started_at: float,
        companions: Sequence[Companion] = (),
    ) -> None:
        self.task, self.spec, self.context = task, spec, context
        self.companions = companions
        self.started_at = self.ended_at = started_at
        self.reason: Reason | None = None
        self.over = self.abandoned = False
        self.timer: asyncio.TimerHandle | None = None
        self.unit: asyncio.Task[None] | None = None
        self.kill: Callable[[], None] | None = None

    def ended_by(self, exc: BaseException) -> Settlement | None:
        """The end when the handler raised ``exc``."""
        if self.context.terminated:
            return None
        if self.reason is not None and not isinstance(exc, Outcome):
            return outcomes.from_halt(self.task, self.reason)
        return self._unless_lost(outcomes.from_exception(self.task, exc))

    def ended_with(self, value: object) -> Settlement | None:
        """The end when the handler returned ``value``.

        After it was told to stop, a bare return says that it stopped, not that the
        work is done: ``while not ctx.cancelled: …`` ends like that. A value is a
        result all the same, unless the time was over.
        """
        if self.context.terminated:
            return None
        if self._only_stopped(value):
            return self.halted()
        if self.context.transaction_open:
            error = {"code": "open_transaction", "message": "its transaction was left open"}
            return self._unless_lost(outcomes.retry(self.task, error))
        return self._unless_lost(outcomes.from_value(self.task, value))

    def _only_stopped(self, value: object) -> bool:
        if self.reason is None or isinstance(value, Outcome):
            return False
        return value is None or self.reason is Reason.TIMEOUT

    def halted(self) -> Settlement | None:
        """The end when it was stopped without a word of its own."""
        if self.context.terminated:
            return None
        return outcomes.from_halt(self.task, self.reason or Reason.STOP)

    def _unless_lost(self, settlement: Settlement) -> Settlement | None:
        return None if self.reason is Reason.LOST else settlement


async def run_async(attempt: Attempt) -> Settlement | None:
    """Await the handler. Whatever it raises ends here: SystemExit and
    KeyboardInterrupt would stop the loop, and CancelledError may be its own."""
    attempt.started_at = monotonic()
    arguments = read_arguments(attempt.task, attempt.spec, attempt.context)
    if isinstance(arguments, Settlement):
        return arguments
    try:
        if attempt.companions:
            with running(attempt.companions, attempt.task):
                value = await attempt.spec.handler(**arguments)
        else:
            value = await attempt.spec.handler(**arguments)
    except BaseException as exc:
        settlement = attempt.ended_by(exc)
    else:
        settlement = attempt.ended_with(value)
    if settlement is not None and attempt.context.unwritten:
        try:
            async with asyncio.timeout(LAST_PROGRESS_S):
                await attempt.context.finish()  # type: ignore[misc]  # it is the async one
        except BaseException as exc:  # told to stop meanwhile: the end stands
            log.debug("progress of task %s was not written: %r", attempt.task.task_id, exc)
    return settlement


def run_sync(attempt: Attempt, arguments: dict[str, Any]) -> Settlement | None:
    """Call the handler, on this thread."""
    try:
        with running(attempt.companions, attempt.task):
            value = attempt.spec.handler(**arguments)
    except BaseException as exc:
        settlement = attempt.ended_by(exc)
    else:
        settlement = attempt.ended_with(value)
    if settlement is not None and attempt.context.unwritten:
        try:
            attempt.context.finish()
        except Exception as exc:
            log.debug("progress of task %s was not written: %r", attempt.task.task_id, exc)
    return settlement


def read_arguments(
    task: LeasedTask, spec: TaskSpec, context: TaskContext | SyncTaskContext
) -> dict[str, Any] | Settlement:
    """The handler's arguments, or the end of a task whose payload does not fit."""
    if isinstance(task.data, UndecodableJson):
        return outcomes.bad_payload(task, task.data.reason)
    try:
        arguments = spec.payload.read(task.data)
    except BaseException as exc:  # validators are user code
        return outcomes.bad_payload(task, exc)
    if spec.payload.context_parameter is not None:
        arguments[spec.payload.context_parameter] = context
    return arguments

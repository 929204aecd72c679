"""One run of a job: its lease, its attempts, its end.

``decide`` says what follows an attempt; the rest carries it out on the scheduler's
loop. Plain handlers run in threads of their own. Async ones run on the loop, or, for
a scheduler that is used without one, in a thread with a loop of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import Any, NoReturn, Protocol

from sokka_pg import retry as retries
from sokka_pg.errors import StopRequested
from sokka_pg.scheduler.calling import as_exception, in_thread
from sokka_pg.scheduler.context import JobContext, told_to_stop
from sokka_pg.scheduler.errors import RunSkipped
from sokka_pg.scheduler.events import EventKind
from sokka_pg.scheduler.job import LeasePlan, Plan
from sokka_pg.scheduler.leasing import Held, acquire
from sokka_pg.scheduler.locker import AsyncLocker, Locker

log = logging.getLogger("sokka_pg.scheduler")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows an attempt: success, another attempt after ``wait``, or the end."""

    kind: EventKind
    reason: str = ""
    wait: timedelta = timedelta(0)
    error: Exception | None = None


def decide(
    plan: Plan,
    attempt: int,
    error: Exception | None,
    stopped: str | None = None,
    loss: Exception | None = None,
    roll: float = 0.5,
) -> Verdict:
    """What follows the ``attempt``-th attempt, which ended in ``error`` or well.

    ``stopped``: why the run is to stop, if it is. ``loss``: what tells that the
    lease is over; then a success is none. ``roll``: see ``retry.wait_after``.
    """
    if loss is not None:
        if error is not None:
            loss.__cause__ = error
        return Verdict(EventKind.FAILED, "cancelled", error=loss)
    if error is None:
        return Verdict(EventKind.SUCCEEDED)
    if stopped is not None:
        return Verdict(EventKind.FAILED, "cancelled", error=error)
    if not retries.tries_again(plan.retry, attempt):
        return Verdict(EventKind.FAILED, "attempts_exhausted", error=error)
    wait = retries.wait_after(plan.retry, attempt, roll)
    return Verdict(EventKind.RETRYING, str(wait), wait, error)


class Around(Protocol):
    """What a run needs of its scheduler."""

    locker: Locker | AsyncLocker | None
    async_in_threads: bool

    def tell(self, kind: EventKind, run: Run, /, **more: Any) -> None: ...


class Run:
    """One run, from its admission on. On the scheduler's loop."""

    def __init__(self, plan: Plan, scheduled_at: datetime, around: Around) -> None:
        self.plan, self.scheduled_at = plan, scheduled_at
        self.run_id = uuid.uuid4().hex
        self.attempt = 0
        self._around = around
        self._stopped: str | None = None
        self._stop = asyncio.Event()
        self._context: JobContext | None = None
        self._held: Held | None = None
        self._began = monotonic()

    def stop(self, reason: str) -> None:
        """Tell the handler to stop, and try no more."""
        if self._stopped is None:
            self._stopped = reason
        self._stop.set()
        if self._context is not None:
            self._context.tell_to_stop(reason)

    async def carry_out(self) -> None:
        """Raises the final error, or RunSkipped."""
        self._around.tell(EventKind.SCHEDULED, self)
        if self.plan.lease is None or self._around.locker is None:
            await self._attempts()
            return
        self._held = await self._acquired(self._around.locker, self.plan.lease)
        watch = asyncio.create_task(self._watch(self._held))
        try:
            await self._attempts()
        finally:
            watch.cancel()
            await self._give_up(self._held)

    async def _acquired(self, locker: Locker | AsyncLocker, lease: LeasePlan) -> Held:
        try:
            held = await acquire(locker, lease)
        except Exception as error:
            self._failed("lease_acquire_failed", error)
            raise
        if held is None:
            self._around.tell(EventKind.SKIPPED, self, reason="lease_contended")
            raise RunSkipped.of(self.plan.name, "lease_contended")
        return held

    async def _watch(self, held: Held) -> None:
        await held.keeper.until_lost()
        self.stop("lost")

    async def _give_up(self, held: Held) -> None:
        try:
            await held.give_up()
        except Exception as error:
            log.warning("the lease of job %s is left to run out: %r", self.plan.name, error)

    async def _attempts(self) -> None:
        while self._stopped is None:
            self.attempt += 1
            began = monotonic()
            error = await self._attempted()
            verdict = self._decided(error)
            if verdict.kind is EventKind.SUCCEEDED:
                self._around.tell(EventKind.SUCCEEDED, self, duration=self._lasted())
                return
            if verdict.kind is EventKind.FAILED:
                self._end(verdict.reason, verdict.error)
            self._around.tell(
                EventKind.RETRYING, self, reason=verdict.reason, error=error,
                duration=_since(began),
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(verdict.wait.total_seconds()):
                    await self._stop.wait()
            # told to stop while it waited: the last error is the final one
            if self._stopped is not None:
                verdict = self._decided(error)
                self._end(verdict.reason, verdict.error)
        self._end("cancelled", self._loss())

    def _decided(self, error: Exception | None) -> Verdict:
        return decide(
            self.plan, self.attempt, error, self._stopped, self._loss(), random.random()
        )

    def _loss(self) -> Exception | None:
        if self._held is None or not self._held.keeper.lost:
            return None
        return self._held.keeper.loss()

    def _end(self, reason: str, error: Exception | None) -> NoReturn:
        """Raises ``error``; without one the run was told to stop before an attempt."""
        found = error or told_to_stop(self._stopped)
        self._failed(reason, found)
        raise found

    def _failed(self, reason: str, error: Exception) -> None:
        self._around.tell(
            EventKind.FAILED, self, reason=reason, error=error, duration=self._lasted()
        )

    def _lasted(self) -> timedelta:
        return _since(self._began)

    async def _attempted(self) -> Exception | None:
        held = self._held
        context = self._context = JobContext(
            job_name=self.plan.name, run_id=self.run_id, scheduled_at=self.scheduled_at,
            attempt=self.attempt, max_attempts=self.plan.max_attempts,
            lease=None if held is None else held.lease,
            keeper=None if held is None else held.keeper,
        )  # fmt: skip
        self._around.tell(EventKind.STARTED, self)
        timer = None
        if self.plan.timeout is not None:
            timer = asyncio.get_running_loop().call_later(
                self.plan.timeout.total_seconds(), context.tell_to_stop, "timeout"
            )
        try:
            await self._called(context)
        except asyncio.CancelledError:
            # the loop itself is being ended
            context.tell_to_stop("stop")
            raise
        except Exception as error:
            return self._explained(error, context)
        finally:
            if timer is not None:
                timer.cancel()
            self._context = None
        return None

    async def _called(self, context: JobContext) -> None:
        handler = self.plan.handler
        if not self.plan.is_async:
            await in_thread(partial(handler, context), f"sokka-job {self.plan.name}")
        elif self._around.async_in_threads:
            await in_thread(
                partial(_run_async, handler, context), f"sokka-job {self.plan.name}"
            )
        else:
            await _guarded(handler, context)

    def _explained(self, error: Exception, context: JobContext) -> Exception:
        if isinstance(error, StopRequested) and context.cancel_reason == "timeout":
            late = TimeoutError(f"the attempt took longer than {self.plan.timeout}")
            late.__cause__ = error.__cause__
            return late
        return error


def _since(began: float) -> timedelta:
    return timedelta(seconds=monotonic() - began)


def _run_async(handler: Callable[[JobContext], Any], context: JobContext) -> None:
    asyncio.run(_guarded(handler, context))


async def _guarded(handler: Callable[[JobContext], Any], context: JobContext) -> None:
    """Await the handler as a task that ``context`` can cancel.

    Its own cancellation comes back as an error like any other, and what would end
    the loop (SystemExit) as well.
    """
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(_awaited(handler, context))

    def cancel() -> None:
        with suppress(RuntimeError):  # it ended at this moment, and its loop with it
            loop.call_soon_threadsafe(running.cancel)

    context.on_stop(cancel)
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        running.cancel()
        raise
    if running.cancelled():
        reason = context.cancel_reason
        if reason is None:
            raise RuntimeError("the handler cancelled itself")
        raise told_to_stop(reason)
    await running


async def _awaited(handler: Callable[[JobContext], Any], context: JobContext) -> None:
    try:
        await handler(context)
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise as_exception(error) from error

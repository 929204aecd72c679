"""The scheduler itself, on one event loop. Both shells are thin around it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from sokka_pg.errors import UsageError
from sokka_pg.scheduler.errors import (
    AlreadyStarted,
    InvalidJob,
    JobAlreadyExists,
    JobNotFound,
    NotStarted,
    RunSkipped,
)
from sokka_pg.scheduler.events import Audience, Event, EventKind
from sokka_pg.scheduler.job import Job, Plan, planned
from sokka_pg.scheduler.running import Run
from sokka_pg.scheduler.settings import Setup
from sokka_pg.scheduler.ticks import Ticks

log = logging.getLogger("sokka_pg.scheduler")

LONGEST_LOOK_S = 1.0
"""The clock is read at least this often: it may be set, and a machine may sleep."""
MOST_OVERLAPPING = 100


class Core:
    """Jobs, their ticks and their runs. Everything but ``register`` is for the loop."""

    def __init__(self, setup: Setup, *, async_in_threads: bool) -> None:
        self.locker = setup.locker
        self.async_in_threads = async_in_threads
        self._now = setup.now
        self._audience = Audience(setup.observers)
        self._plans: dict[str, Plan] = {}
        self._started = self._closed = False
        self._keeping_time: set[asyncio.Task[None]] = set()
        self._runs: dict[asyncio.Task[None], Run] = {}
        self._going: Counter[str] = Counter()
        self._clock_set = asyncio.Event()

    def register(self, job: Job) -> None:
        plan = planned(job)
        if self._started:
            raise AlreadyStarted(f"job {plan.name}: the scheduler was started before")
        if plan.name in self._plans:
            raise JobAlreadyExists(f"job {plan.name} is registered", {"job_name": plan.name})
        if plan.lease is not None and self.locker is None:
            rule = "needs a scheduler with a locker"
            raise InvalidJob(
                f"job {plan.name!r}: lease: {rule}", {"argument": "lease", "rule": rule}
            )
        self._plans[plan.name] = plan

    async def start(self) -> None:
        if self._started:
            raise AlreadyStarted("a scheduler starts once")
        started_at = self.now()
        self._started = True
        for plan in self._plans.values():
            if plan.run_on_start:
                self._tick(plan, started_at)
            self._keeping_time.add(asyncio.create_task(self._keep_time(plan, started_at)))

    async def shutdown(self, timeout_s: float | None) -> None:
        if not self._started:
            raise NotStarted("the scheduler was not started")
        self._closed = True
        for keeping in self._keeping_time:
            keeping.cancel()
        for run in self._runs.values():
            run.stop("stop")
        # not those that have ended: the loop of a call before may be gone
        left = {task for task in (*self._keeping_time, *self._runs) if not task.done()}
        if left:
            _, late = await asyncio.wait(left, timeout=timeout_s)
            if late:
                raise TimeoutError(f"{len(late)} runs have not ended: their handlers go on")
        await self._audience.leave()

    async def trigger(self, name: str) -> None:
        if self._closed:
            raise NotStarted("the scheduler was shut down")
        plan = self._plans.get(name)
        if plan is None:
            raise JobNotFound(f"no job {name} is registered", {"job_name": name})
        running = self._begin(plan, self.now())
        if isinstance(running, RunSkipped):
            await self._audience.told()
            raise running
        run = self._runs[running]
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            run.stop("cancel")
            await asyncio.wait([running])
            raise
        await self._audience.told()
        await running

    def look(self) -> None:
        """Read the clock again, now."""
        self._clock_set.set()
        self._clock_set = asyncio.Event()

    def now(self) -> datetime:
        """The scheduler's clock, in UTC. Raises UsageError if it shows no instant."""
        found = self._now()
        if not isinstance(found, datetime) or found.utcoffset() is None:
            raise UsageError("now: must return a datetime with a time zone")
        return found.astimezone(UTC)

    def tell(self, kind: EventKind, run: Run, /, **more: Any) -> None:
        self._audience.tell(Event(
            kind, run.plan.name, run.run_id, run.scheduled_at, self._stamp(),
            attempt=run.attempt, max_attempts=run.plan.max_attempts, **more,
        ))  # fmt: skip

    def _stamp(self) -> datetime:
        try:
            return self.now()
        except Exception:  # a broken clock ends the ticks, which says so; a run goes on
            return datetime.now(UTC)

    # --- ticks ------------------------------------------------------------

    async def _keep_time(self, plan: Plan, started_at: datetime) -> None:
        try:
            ticks = Ticks(plan.schedule, started_at)
            while ticks.due_at is not None:
                await self._until(ticks.due_at)
                tick = ticks.take(self.now())
                if tick is not None:
                    self._tick(plan, tick)
                await asyncio.sleep(0)
        except Exception as error:  # schedules and clocks are the user's code
            log.error("job %s is not run any more: %r", plan.name, error)
            broken = Run(plan, self._stamp(), self)
            self.tell(EventKind.FAILED, broken, reason="invalid_schedule", error=error)

    async def _until(self, instant: datetime) -> None:
        while (left_s := (instant - self.now()).total_seconds()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, LONGEST_LOOK_S)):
                    await self._clock_set.wait()

    # --- runs -------------------------------------------------------------

    def _tick(self, plan: Plan, scheduled_at: datetime) -> None:
        running = self._begin(plan, scheduled_at)
        if not isinstance(running, RunSkipped):
            running.add_done_callback(lambda task: _report(plan, task))

    def _begin(self, plan: Plan, scheduled_at: datetime) -> asyncio.Task[None] | RunSkipped:
        run = Run(plan, scheduled_at, self)
        if self._going[plan.name] >= (MOST_OVERLAPPING if plan.allow_overlap else 1):
            self.tell(EventKind.SKIPPED, run, reason="overlap")
            return RunSkipped.of(plan.name, "overlap")
        self._going[plan.name] += 1
        running = asyncio.create_task(run.carry_out())
        self._runs[running] = run
        running.add_done_callback(self._ended)
        return running

    def _ended(self, running: asyncio.Task[None]) -> None:
        # whoever triggered it may be gone, and the error was told as an event
        _ = running.cancelled() or running.exception()
        run = self._runs.pop(running)
        self._going[run.plan.name] -= 1



def _report(plan: Plan, running: asyncio.Task[None]) -> None:
    if running.cancelled():
        return
    error = running.exception()
    if error is not None and not isinstance(error, RunSkipped):
        log.warning("job %s failed: %r", plan.name, error, exc_info=error)

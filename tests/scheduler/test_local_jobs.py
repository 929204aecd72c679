"""Local jobs: what runs, when, how often, and what is said about it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest

from sokka_pg.errors import LeaseLost, StopRequested, UsageError
from sokka_pg.scheduler import (
    AlreadyStarted,
    AsyncScheduler,
    Event,
    Job,
    JobAlreadyExists,
    JobContext,
    JobNotFound,
    LeaseOptions,
    NotStarted,
    ObserverFunc,
    RetryPolicy,
    RunSkipped,
    Scheduler,
    with_locker,
    with_now,
    with_observer,
)
from sokka_pg.schedules import at, every, schedule_func
from tests.scheduler.conftest import (
    NOON,
    AsyncMemoryLocker,
    Clock,
    Make,
    MemoryLocker,
    Seen,
    until,
)

NEVER = at(datetime(1999, 1, 1, tzinfo=UTC))
LEASED = LeaseOptions(enabled=True)
QUICK = RetryPolicy(max_attempts=3, initial_backoff=0)


def job(handler: Any, name: str = "job", schedule: Any = NEVER, **more: Any) -> Job:
    return Job(name, schedule, handler, **more)


def fails(times: int, error: Exception | None = None) -> Any:
    """A handler that fails so often, then succeeds."""

    def handler(context: JobContext) -> None:
        if context.attempt <= times:
            raise error or RuntimeError(f"attempt {context.attempt}")

    return handler


# --- triggers and what is told ------------------------------------------------


async def test_a_trigger_runs_the_job_on_a_scheduler_that_was_not_started(
    make: Make, seen: Seen
) -> None:
    contexts: list[JobContext] = []
    scheduler = make()
    scheduler.register(job(contexts.append))
    await scheduler.trigger("job")
    assert seen.kinds == ["scheduled", "started", "succeeded"]
    (context,) = contexts
    assert (context.job_name, context.scheduled_at, context.attempt) == ("job", NOON, 1)
    assert {event.run_id for event in seen.events} == {context.run_id}
    assert {event.job_name for event in seen.events} == {"job"}
    assert {event.timestamp for event in seen.events} == {NOON}
    assert [event.attempt for event in seen.events] == [0, 1, 1]


@pytest.mark.parametrize("kind", ["plain", "async", "without a context", "an object"])
async def test_handlers_of_every_kind_are_run(make: Make, kind: str) -> None:
    ran: list[str] = []

    async def asynchronous(context: JobContext) -> None:
        await asyncio.sleep(0)
        ran.append("async")

    class Callable:
        async def __call__(self, context: JobContext) -> None:
            ran.append("an object")

    handlers: dict[str, Any] = {
        "plain": lambda context: ran.append("plain"), "async": asynchronous,
        "without a context": lambda: ran.append("without a context"), "an object": Callable(),
    }  # fmt: skip
    scheduler = make()
    scheduler.register(job(handlers[kind]))
    await scheduler.trigger("job")
    assert ran == [kind]


async def test_a_plain_handler_does_not_block_the_loop_nor_an_async_one_the_scheduler() -> None:
    threads: list[threading.Thread] = []

    async def note() -> None:
        threads.append(threading.current_thread())

    asynchronous = AsyncScheduler()
    asynchronous.register(job(lambda: threads.append(threading.current_thread())))
    await asynchronous.trigger("job")
    assert threads.pop() is not threading.current_thread()
    asynchronous.register(job(note, "loop"))
    await asynchronous.trigger("loop")
    assert threads.pop() is threading.current_thread()
    sync = Scheduler()
    sync.register(job(note))
    await asyncio.to_thread(sync.trigger, "job")
    assert threads.pop().name == "sokka-job job"


async def test_a_trigger_of_an_unknown_job_is_refused(make: Make) -> None:
    with pytest.raises(JobNotFound) as refused:
        await make().trigger("nobody")
    assert refused.value.detail == {"job_name": "nobody"}


async def test_a_trigger_raises_the_final_error(make: Make, seen: Seen) -> None:
    scheduler = make()
    scheduler.register(job(fails(9)))
    with pytest.raises(RuntimeError, match="attempt 1"):
        await scheduler.trigger("job")
    last = seen.events[-1]
    assert (last.kind, last.reason, last.max_attempts) == ("failed", "attempts_exhausted", 1)
    assert str(last.error) == "attempt 1"


async def test_what_would_end_the_program_is_an_error_like_any_other(make: Make) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def cancel() -> None:
        raise asyncio.CancelledError

    scheduler = make()
    scheduler.register(job(exit, "plain"))
    scheduler.register(job(leave, "async"))
    scheduler.register(job(cancel, "cancel"))
    for name in ("plain", "async"):
        with pytest.raises(RuntimeError, match="SystemExit") as raised:
            await scheduler.trigger(name)
        assert isinstance(raised.value.__cause__, SystemExit)
    with pytest.raises(RuntimeError, match="cancelled itself"):
        await scheduler.trigger("cancel")


async def test_a_handler_sees_the_context_variables_of_whoever_triggers(make: Make) -> None:
    found: list[str] = []
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    scheduler = make()
    scheduler.register(job(lambda: found.append(variable.get())))
    variable.set("mine")
    await scheduler.trigger("job")
    assert found == ["mine"]


# --- registration and life ----------------------------------------------------


async def test_a_name_is_taken_once(make: Make) -> None:
    scheduler = make()
    scheduler.register(job(print))
    with pytest.raises(JobAlreadyExists):
        scheduler.register(job(print))


async def test_a_scheduler_starts_once_and_takes_no_jobs_afterwards(make: Make) -> None:
    scheduler = make()
    await scheduler.start()
    with pytest.raises(AlreadyStarted):
        await scheduler.start()
    with pytest.raises(AlreadyStarted):
        scheduler.register(job(print))
    await scheduler.shutdown()
    with pytest.raises(AlreadyStarted):
        await scheduler.start()
    with pytest.raises(NotStarted):
        await scheduler.trigger("job")
    await scheduler.shutdown()


async def test_what_was_not_started_cannot_be_shut_down(make: Make) -> None:
    with pytest.raises(NotStarted):
        await make().shutdown()


async def test_a_shutdown_tells_handlers_to_stop_and_waits_for_them(
    make: Make, seen: Seen
) -> None:
    reasons: list[str | None] = []
    ended = threading.Event()

    def waits(context: JobContext) -> None:
        context.wait_cancelled()
        reasons.append(context.cancel_reason)
        ended.wait()
        context.check()

    scheduler = make()
    scheduler.register(job(waits, run_on_start=True, retry=QUICK))
    await scheduler.start()
    await seen.until("started")
    with pytest.raises(TimeoutError, match="1 runs"):
        await scheduler.shutdown(0.01)
    ended.set()
    await scheduler.shutdown()
    assert reasons == ["stop"]
    assert seen.kinds == ["scheduled", "started", "failed"]
    assert seen.events[-1].reason == "cancelled"
    assert isinstance(seen.events[-1].error, StopRequested)


async def test_a_shutdown_cancels_async_handlers_and_triggered_runs(
    make: Make, seen: Seen
) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    scheduler = make()
    scheduler.register(job(forever))
    await scheduler.start()
    triggered = asyncio.create_task(scheduler.trigger("job"))
    await seen.until("started")
    await scheduler.shutdown()
    with pytest.raises(StopRequested):
        await triggered


async def test_a_run_that_succeeds_though_it_was_told_to_stop_has_succeeded(
    make: Make, seen: Seen
) -> None:
    scheduler = make()
    scheduler.register(job(lambda context: context.wait_cancelled(), run_on_start=True))
    await scheduler.start()
    await seen.until("started")
    await scheduler.shutdown()
    assert seen.kinds[-1] == "succeeded"


async def test_a_trigger_that_is_given_up_cancels_its_run(seen: Seen) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    scheduler = AsyncScheduler(with_observer(seen))
    scheduler.register(job(forever))
    triggered = asyncio.create_task(scheduler.trigger("job"))
    await seen.until("started")
    triggered.cancel()
    with pytest.raises(asyncio.CancelledError):
        await triggered
    failed = await seen.until("failed")
    assert failed.reason == "cancelled"


async def test_blocks_start_and_shut_down(seen: Seen) -> None:
    def sync() -> None:
        scheduler = Scheduler(observers=[seen])
        scheduler.register(job(print, run_on_start=True))
        with scheduler:
            pass
        with pytest.raises(NotStarted):
            scheduler.trigger("job")

    await asyncio.to_thread(sync)
    scheduler = AsyncScheduler(observers=[seen])
    scheduler.register(job(print, run_on_start=True))
    async with scheduler:
        pass
    assert seen.kinds.count("scheduled") == 2


# --- ticks --------------------------------------------------------------------


async def test_an_interval_is_counted_from_the_start_whatever_the_runs_take(
    make: Make, clock: Clock, seen: Seen
) -> None:
    scheduler = make()
    scheduler.register(job(lambda: None, schedule="@every 5m"))
    await scheduler.start()
    # late each time, but the grid stays
    for count, late in ((1, 0.25), (2, 2.5), (3, 1.0)):
        clock.now = NOON + timedelta(minutes=5 * count, seconds=late)
        await scheduler.look()
        await seen.until("succeeded", count)
    ticks = [event.scheduled_at for event in seen.events if event.kind == "scheduled"]
    assert ticks == [NOON + timedelta(minutes=5 * count) for count in (1, 2, 3)]


async def test_missed_ticks_are_made_up_for_by_one_run_and_the_grid_stays(
    make: Make, clock: Clock, seen: Seen
) -> None:
    scheduler = make()
    scheduler.register(job(lambda: None, schedule=every("5m")))
    await scheduler.start()
    clock.now = NOON + timedelta(minutes=17)
    await scheduler.look()
    await seen.until("succeeded")
    clock.now = NOON + timedelta(minutes=20)
    await scheduler.look()
    await seen.until("succeeded", 2)
    ticks = [event.scheduled_at for event in seen.events if event.kind == "scheduled"]
    assert ticks == [NOON + timedelta(minutes=15), NOON + timedelta(minutes=20)]


async def test_a_clock_that_is_set_back_repeats_nothing(
    make: Make, clock: Clock, seen: Seen
) -> None:
    scheduler = make()
    scheduler.register(job(lambda: None, schedule="0 * * * * *"))
    await scheduler.start()
    for minute in (1, 0, 1, 2):
        clock.now = NOON + timedelta(minutes=minute)
        await scheduler.look()
        await seen.until("succeeded", {1: 1, 0: 1, 2: 2}[minute])
    ticks = [event.scheduled_at for event in seen.events if event.kind == "scheduled"]
    assert ticks == [NOON + timedelta(minutes=1), NOON + timedelta(minutes=2)]


@pytest.mark.parametrize("started", ["05:00", "06:00", "06:30"])
async def test_a_start_around_a_turned_back_clock_brings_no_burst(
    make: Make, clock: Clock, seen: Seen, started: str
) -> None:
    clock.now = datetime.fromisoformat(f"2019-11-03T{started}:00+00:00")
    scheduler = make()
    scheduler.register(job(lambda: None, schedule="TZ=America/New_York 30 1 * * *"))
    await scheduler.start()
    first = {"05:00": "2019-11-03T05:30", "06:00": "2019-11-04T06:30", "06:30": "2019-11-04T06:30"}
    due = datetime.fromisoformat(first[started] + ":00+00:00")
    clock.now = due - timedelta(microseconds=1)
    await scheduler.look()
    clock.now = due
    await scheduler.look()
    await seen.until("succeeded")
    assert [event.scheduled_at for event in seen.events if event.kind == "scheduled"] == [due]


async def test_an_instant_runs_once_and_one_that_has_passed_never(
    make: Make, clock: Clock, seen: Seen
) -> None:
    scheduler = make()
    scheduler.register(job(lambda: None, "once", at(NOON + timedelta(hours=1))))
    scheduler.register(job(lambda: None, "passed", at(NOON)))
    await scheduler.start()
    clock.now = NOON + timedelta(days=1)
    await scheduler.look()
    await seen.until("succeeded")
    core = scheduler.scheduler._core
    await until(lambda: all(task.done() for task in core._keeping_time))
    assert [event.job_name for event in seen.events] == ["once"] * 3


async def test_a_run_at_start_does_not_move_the_next_tick(
    make: Make, clock: Clock, seen: Seen
) -> None:
    scheduler = make()
    scheduler.register(job(lambda: None, schedule="@every 1h", run_on_start=True))
    await scheduler.start()
    await seen.until("succeeded")
    clock.now = NOON + timedelta(hours=1)
    await scheduler.look()
    await seen.until("succeeded", 2)
    ticks = [event.scheduled_at for event in seen.events if event.kind == "scheduled"]
    assert ticks == [NOON, NOON + timedelta(hours=1)]


def goes_back(after: datetime) -> datetime:
    return after


def breaks(after: datetime) -> datetime:
    raise ZeroDivisionError


def names_no_zone(after: datetime) -> datetime:
    return datetime(2030, 1, 1)


@pytest.mark.parametrize("function", [goes_back, breaks, names_no_zone])
async def test_a_broken_schedule_ends_its_job_and_no_other(
    make: Make, clock: Clock, seen: Seen, caplog: pytest.LogCaptureFixture, function: Any
) -> None:
    scheduler = make()
    scheduler.register(job(lambda: None, "broken", schedule_func(function)))
    scheduler.register(job(lambda: None, "sound", "@every 1m"))
    with caplog.at_level(logging.CRITICAL, "sokka_pg.scheduler"):
        await scheduler.start()
        failed = await seen.until("failed")
    assert (failed.job_name, failed.reason) == ("broken", "invalid_schedule")
    assert failed.error is not None
    clock.now = NOON + timedelta(minutes=1)
    await scheduler.look()
    assert (await seen.until("succeeded")).job_name == "sound"


async def test_a_clock_in_any_zone_is_read_as_its_instant(make: Make, clock: Clock) -> None:
    contexts: list[JobContext] = []
    clock.now = NOON.astimezone(timezone(timedelta(hours=5, minutes=45)))
    scheduler = make()
    scheduler.register(job(contexts.append))
    await scheduler.trigger("job")
    assert contexts[0].scheduled_at == NOON
    assert contexts[0].scheduled_at.utcoffset() == timedelta(0)


async def test_a_clock_without_a_zone_is_refused(make: Make, clock: Clock) -> None:
    clock.now = datetime(2026, 1, 1)
    with pytest.raises(UsageError, match="time zone"):
        await make().start()


async def test_the_systems_clock_is_the_default(seen: Seen) -> None:
    scheduler = AsyncScheduler(with_now(None), with_observer(None), with_observer(seen))
    scheduler.register(job(lambda: None, schedule="@every 10ms"))
    async with scheduler:
        await seen.until("succeeded", 3)
    ticks = [event.scheduled_at for event in seen.events if event.kind == "scheduled"]
    assert all((later - first) % timedelta(milliseconds=10) == timedelta(0)
               for first, later in pairwise(ticks))  # fmt: skip


# --- overlap ------------------------------------------------------------------


async def test_a_second_run_is_skipped_while_the_first_goes_on(make: Make, seen: Seen) -> None:
    go = threading.Event()
    scheduler = make()
    scheduler.register(job(lambda: go.wait()))
    first = asyncio.create_task(scheduler.trigger("job"))
    await seen.until("started")
    with pytest.raises(RunSkipped) as skipped:
        await scheduler.trigger("job")
    assert skipped.value.reason == "overlap"
    go.set()
    await first
    assert seen.kinds == ["scheduled", "started", "skipped", "succeeded"]
    assert seen.events[2].reason == "overlap"
    await scheduler.trigger("job")


async def test_runs_may_overlap_where_that_is_allowed_up_to_a_bound(
    make: Make, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sokka_pg.scheduler.core.MOST_OVERLAPPING", 2)
    go = threading.Event()
    scheduler = make()
    scheduler.register(job(lambda: go.wait(), allow_overlap=True))
    runs = [asyncio.create_task(scheduler.trigger("job")) for _ in range(2)]
    await seen.until("started", 2)
    with pytest.raises(RunSkipped):
        await scheduler.trigger("job")
    go.set()
    await asyncio.gather(*runs)


# --- timeouts and retries -----------------------------------------------------


async def test_a_timeout_ends_an_async_attempt_and_each_attempt_has_its_own(
    make: Make, seen: Seen
) -> None:
    async def slow(context: JobContext) -> None:
        if context.attempt < 3:
            await asyncio.Event().wait()

    scheduler = make()
    scheduler.register(job(slow, timeout=0.01, retry=QUICK))
    await scheduler.trigger("job")
    assert seen.kinds == ["scheduled"] + ["started", "retrying"] * 2 + ["started", "succeeded"]
    assert isinstance(seen.events[2].error, TimeoutError)


async def test_a_timeout_is_told_to_a_plain_handler_which_ends_when_it_likes(
    make: Make, seen: Seen
) -> None:
    def slow(context: JobContext) -> None:
        assert context.wait_cancelled()
        assert context.cancel_reason == "timeout"
        if context.attempt == 1:
            context.check()

    scheduler = make()
    scheduler.register(job(slow, timeout=0.01, retry=QUICK))
    await scheduler.trigger("job")
    assert seen.kinds == ["scheduled", "started", "retrying", "started", "succeeded"]
    assert isinstance(seen.events[2].error, TimeoutError)


async def test_a_run_is_tried_again_until_it_succeeds(make: Make, seen: Seen) -> None:
    scheduler = make()
    scheduler.register(job(fails(2), retry=QUICK))
    await scheduler.trigger("job")
    assert [(event.kind, event.attempt) for event in seen.events] == [
        ("scheduled", 0), ("started", 1), ("retrying", 1), ("started", 2), ("retrying", 2),
        ("started", 3), ("succeeded", 3),
    ]  # fmt: skip
    assert {event.max_attempts for event in seen.events} == {3}
    assert [event.reason for event in seen.events if event.kind == "retrying"] == ["0:00:00"] * 2


async def test_attempts_run_out(make: Make, seen: Seen) -> None:
    scheduler = make()
    scheduler.register(job(fails(9), retry=QUICK))
    with pytest.raises(RuntimeError, match="attempt 3"):
        await scheduler.trigger("job")
    assert seen.kinds.count("started") == 3
    assert seen.events[-1].reason == "attempts_exhausted"


async def test_a_shutdown_ends_the_wait_before_an_attempt(make: Make, seen: Seen) -> None:
    policy = RetryPolicy(max_attempts=5, initial_backoff=timedelta(hours=1))
    scheduler = make()
    scheduler.register(job(fails(9), retry=policy, run_on_start=True))
    await scheduler.start()
    retrying = await seen.until("retrying")
    assert retrying.reason == "1:00:00"
    await scheduler.shutdown()
    assert (seen.kinds[-1], seen.events[-1].reason) == ("failed", "cancelled")
    assert str(seen.events[-1].error) == "attempt 1"


# --- leases -------------------------------------------------------------------


@pytest.fixture(params=["sync locker", "async locker"])
def locker(request: pytest.FixtureRequest, locks: MemoryLocker) -> Any:
    return locks if request.param == "sync locker" else AsyncMemoryLocker(locks)


async def test_one_lease_spans_all_attempts_of_a_run(
    make: Make, locks: MemoryLocker, locker: Any
) -> None:
    tokens: list[int] = []

    def handler(context: JobContext) -> None:
        tokens.append(context.token)
        assert "job" in locks.held
        if context.attempt == 1:
            raise RuntimeError

    scheduler = make(locker=locker)
    scheduler.register(job(handler, lease=LEASED, retry=QUICK, timeout=60))
    await scheduler.trigger("job")
    assert tokens == [1, 1]
    assert locks.held == {}
    assert locks.asked == [("job", timedelta(seconds=90))]


async def test_a_lease_that_is_held_elsewhere_skips_the_run(
    make: Make, seen: Seen, locks: MemoryLocker, locker: Any
) -> None:
    locks.try_acquire("prices", 60)
    scheduler = make(with_locker(locker))
    scheduler.register(job(print, lease=LeaseOptions(enabled=True, key="prices")))
    with pytest.raises(RunSkipped) as skipped:
        await scheduler.trigger("job")
    assert skipped.value.reason == "lease_contended"
    assert seen.kinds == ["scheduled", "skipped"]
    assert seen.events[-1].reason == "lease_contended"
    locks.held.clear()
    await scheduler.trigger("job")


async def test_a_locker_that_fails_fails_the_run(
    make: Make, seen: Seen, locks: MemoryLocker, locker: Any
) -> None:
    locks.fault = OSError("no database")
    scheduler = make(locker=locker)
    scheduler.register(job(print, lease=LEASED))
    with pytest.raises(OSError, match="no database"):
        await scheduler.trigger("job")
    assert (seen.kinds[-1], seen.events[-1].reason) == ("failed", "lease_acquire_failed")


SHORT = LeaseOptions(enabled=True, ttl=60, renew_interval=0.01)


async def test_a_lease_is_renewed_while_the_handler_runs(
    make: Make, locks: MemoryLocker, locker: Any
) -> None:
    scheduler = make(locker=locker)
    scheduler.register(job(lambda: locks.held["job"].renewed.wait(30), lease=SHORT))
    await scheduler.trigger("job")
    assert locks.asked == [("job", timedelta(seconds=60))]


@pytest.mark.parametrize("kind", ["plain", "async", "ends well"])
async def test_a_lost_lease_ends_the_run_for_good(
    make: Make, seen: Seen, locks: MemoryLocker, locker: Any, kind: str
) -> None:
    reasons: list[str | None] = []

    def plain(context: JobContext) -> None:
        locks.held.clear()
        context.wait_cancelled()
        reasons.append(context.cancel_reason)
        if kind == "plain":
            context.check()

    async def forever() -> None:
        locks.held.clear()
        await asyncio.Event().wait()

    scheduler = make(locker=locker)
    handler = forever if kind == "async" else plain
    scheduler.register(job(handler, lease=SHORT, retry=QUICK))
    with pytest.raises(LeaseLost):
        await scheduler.trigger("job")
    assert seen.kinds == ["scheduled", "started", "failed"]
    assert seen.events[-1].reason == "cancelled"
    assert isinstance(seen.events[-1].error, LeaseLost)
    assert reasons == [] if kind == "async" else ["lost"]


async def test_a_lease_that_cannot_be_renewed_is_over_after_its_time(
    make: Make, locks: MemoryLocker, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(context: JobContext) -> None:
        locks.fault = OSError("no database")
        context.wait_cancelled()
        context.check()

    scheduler = make(locker=locks)
    lease = LeaseOptions(enabled=True, ttl=0.3, renew_interval=0.01)
    scheduler.register(job(handler, lease=lease))
    with pytest.raises(LeaseLost, match="not renewed in time"):
        await scheduler.trigger("job")
    assert "trying on: OSError('no database')" in caplog.text


async def test_a_job_without_a_lease_has_no_token(make: Make) -> None:
    def handler(context: JobContext) -> None:
        assert context.lease is None
        with pytest.raises(UsageError):
            _ = context.token
        with pytest.raises(UsageError):
            context.assert_held(None)

    scheduler = make()
    scheduler.register(job(handler))
    await scheduler.trigger("job")


# --- observers ----------------------------------------------------------------


async def test_an_observer_that_raises_breaks_nothing(
    make: Make, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Event) -> None:
        raise ValueError("I am broken")

    scheduler = make(observers=[ObserverFunc(broken), seen])
    scheduler.register(job(lambda: None))
    await scheduler.trigger("job")
    await scheduler.trigger("job")
    assert seen.kinds == ["scheduled", "started", "succeeded"] * 2
    assert [record.message for record in caplog.records] == [
        "observer ObserverFunc raised ValueError('I am broken'); its further errors are not logged"
    ]


async def test_a_slow_observer_holds_up_no_handler(make: Make) -> None:
    ran, go = threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        assert ran.wait(30)
        go.wait()

    scheduler = make(observers=[ObserverFunc(slow)])
    scheduler.register(job(ran.set))
    await scheduler.trigger("job")
    assert ran.is_set()
    go.set()


async def test_a_failed_tick_is_logged(
    make: Make, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make()
    scheduler.register(job(fails(1), run_on_start=True))
    await scheduler.start()
    await seen.until("failed")
    await until(lambda: caplog.records)
    assert "job job failed: RuntimeError('attempt 1')" in caplog.text


async def test_a_job_may_trigger_another_one(make: Make, seen: Seen) -> None:
    scheduler = make()
    scheduler.register(job(lambda: None, "second"))
    if isinstance(scheduler.scheduler, Scheduler):
        plain = scheduler.scheduler
        scheduler.register(job(lambda: plain.trigger("second"), "first"))
    else:
        loops = scheduler.scheduler

        async def first() -> None:
            await loops.trigger("second")

        scheduler.register(job(first, "first"))
    await scheduler.trigger("first")
    assert [e.job_name for e in seen.events if e.kind == "succeeded"] == ["second", "first"]

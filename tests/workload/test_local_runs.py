"""Local runs: this process works off what it was handed, under a lease like any other."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from sokka_pg.errors import (
    AlreadyDone,
    BadArgument,
    Busy,
    NoTaskFound,
    TaskAlreadyExists,
    TaskCancelled,
    TaskFailed,
    UsageError,
)
from sokka_pg.model import Fail, Retry, RetryPolicy, Status
from sokka_pg.workload import (
    AsyncWorkloadScheduler,
    FanOutRequest,
    Limits,
    TaskSubmission,
    WorkloadScheduler,
)
from tests.faults.waiting import until
from tests.workload.faces import Candidates, Face, LoopThread
from tests.workload.test_leases import UNSTORABLE

Row = Callable[[Any], dict[str, Any]]


def run(face: Face, executor: Callable[[Any], Any], **submission: Any) -> Any:
    return face(lambda s: s.submit_async(TaskSubmission(**submission), face.local(executor)))


def result(face: Face, handle: Any, timeout: float = 20) -> Any:
    return face(lambda s: handle.result(timeout))


def test_an_executor_gets_the_payload_and_its_value_is_the_result(face: Face) -> None:
    handle = run(face, lambda ctx: {"twice": ctx.task.data * 2}, payload=4)
    assert result(face, handle) == {"twice": 8}
    assert handle.created
    assert face(lambda s: handle.done())


def test_no_value_is_a_result_too(face: Face) -> None:
    assert result(face, run(face, lambda ctx: None)) is None


def test_what_an_executor_raises_is_the_failure(face: Face) -> None:
    def broken(ctx: Any) -> None:
        raise ValueError("broken")

    handle = run(face, broken)
    with pytest.raises(TaskFailed, match="broken") as failed:
        result(face, handle)
    assert failed.value.code == "error"
    assert not isinstance(failed.value, TaskCancelled)
    assert face(lambda s: handle.exception(20)).code == "error"
    fine = run(face, lambda ctx: 1)
    assert face(lambda s: fine.exception(20)) is None


def test_giving_up_waiting_for_an_exception_says_nothing(face: Face) -> None:
    go_on = threading.Event()
    handle = run(face, lambda ctx: go_on.wait(20))
    with pytest.raises(TimeoutError):
        face(lambda s: handle.exception(0.01))
    go_on.set()
    assert result(face, handle) is True


def test_outcomes_count_like_those_of_handlers(face: Face) -> None:
    handle = run(face, lambda ctx: Fail({"code": "full", "message": "no room"}))
    with pytest.raises(TaskFailed) as failed:
        result(face, handle)
    assert failed.value.code == "full"

    def second_time(ctx: Any) -> int:
        if ctx.attempt == 1:
            raise Retry("not yet", timedelta(0))
        return int(ctx.attempt)

    assert result(face, run(face, second_time, retry=RetryPolicy(3, timedelta(0)))) == 2


def test_a_run_may_take_no_longer_than_its_timeout(face: Face, candidates: Candidates) -> None:
    gate = candidates.gate("never")
    handle = run(face, lambda ctx: gate.wait(20), timeout=0.2)
    with pytest.raises(TaskFailed) as failed:
        result(face, handle)
    assert failed.value.code == "timeout"


def test_a_cancelled_run_is_told_and_ends(face: Face) -> None:
    begun = threading.Event()

    def patient(ctx: Any) -> None:
        begun.set()
        ctx.stop_requested.wait(20)

    handle = run(face, patient)
    assert begun.wait(20)
    assert face(lambda s: handle.cancel("enough")) == "requested"
    with pytest.raises(TaskCancelled):
        result(face, handle)
    assert face(lambda s: handle.status()).cancelled
    assert face(lambda s: handle.cancel()) == "already_done"


def test_a_callers_timeout_says_nothing_about_the_task(
    face: Face, candidates: Candidates
) -> None:
    gate = candidates.gate("x")
    handle = run(face, lambda ctx: gate.wait(20))
    with pytest.raises(TimeoutError):
        result(face, handle, 0.05)
    gate.set()
    assert result(face, handle) is True


@pytest.mark.parametrize("what", UNSTORABLE)
def test_a_run_with_a_result_that_cannot_be_stored_fails(face: Face, what: str) -> None:
    with pytest.raises(TaskFailed) as failed:
        result(face, run(face, lambda ctx: UNSTORABLE[what]()))
    assert failed.value.code == "result_not_storable"


def test_results_may_be_bounded_further(faces: Callable[..., Face]) -> None:
    face = faces(limits=Limits(result_bytes=10))
    assert result(face, run(face, lambda ctx: "small")) == "small"
    with pytest.raises(TaskFailed) as failed:
        result(face, run(face, lambda ctx: "by far too long"))
    assert failed.value.code == "result_not_storable"


def test_local_runs_keep_to_the_limits_too(faces: Callable[..., Face]) -> None:
    limits = Limits(checkpoint_bytes=30, checkpoint_entries=1, progress_bytes=30)
    scheduler = faces(limits=limits).scheduler

    def refused(act: Callable[[], Any]) -> str:
        with pytest.raises(BadArgument) as found:
            act()
        return found.value.message

    def asks_too_much(ctx: Any) -> list[str]:
        ctx.checkpoint({"at": "1"})
        ctx.progress({"percent": 1})
        return [
            refused(lambda: ctx.checkpoint({"a": "1", "b": "2"})),
            refused(lambda: ctx.checkpoint({"a": "x" * 40})),
        ]

    async def asks_too_much_async(ctx: Any) -> str:
        with pytest.raises(BadArgument) as found:
            await ctx.progress({"message": "x" * 40})
        return found.value.message

    assert scheduler.submit_async(TaskSubmission(), asks_too_much).result(20) == [
        "metadata: must have at most 1 entries", "metadata: is larger than 30 bytes of JSON"
    ]
    assert scheduler.submit_async(TaskSubmission(), asks_too_much_async).result(20) == (
        "progress: is larger than 30 bytes of JSON"
    )


def test_a_lambda_may_give_something_to_await(face: Face) -> None:
    async def answer(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    found = face(lambda s: s.fan_out(FanOutRequest([1, 2]), lambda number: answer(number)))
    assert found.values() == [2, 3]


def test_one_way_returns_when_it_is_accepted(face: Face, candidates: Candidates) -> None:
    gate = candidates.gate("x")
    ref = face(
        lambda s: s.submit_one_way(TaskSubmission(), face.local(lambda ctx: gate.wait(20)))
    )
    assert not face(lambda s: s.status(ref)).done
    gate.set()
    assert face(lambda s: s.attach(ref).result(20)) is True


def test_an_id_is_taken_once_and_a_key_stands_for_the_first(face: Face) -> None:
    task_id = "0190a0a0-0000-7000-8000-000000000001"
    result(face, run(face, lambda ctx: 1, task_id=task_id))
    with pytest.raises(TaskAlreadyExists):
        run(face, lambda ctx: 2, task_id=task_id)
    first = face(lambda s: s.submit(TaskSubmission(unique_key="k")))
    again = face(lambda s: s.submit(TaskSubmission(unique_key="k")))
    assert (first.created, again.created) == (True, False)
    assert again.task_id == first.task_id


def test_a_refused_repetition_takes_nothing_over(
    faces: Callable[..., Face], candidates: Candidates
) -> None:
    face = faces(local_slots=1)
    task_id = "0190a0a0-0000-7000-8000-000000000001"
    gate = candidates.gate("x")
    first = run(face, lambda ctx: gate.wait(20))
    waiting = run(face, lambda ctx: "mine", task_id=task_id)
    with pytest.raises(TaskAlreadyExists):
        run(face, lambda ctx: "another's", task_id=task_id)
    gate.set()
    assert result(face, first) is True
    assert result(face, waiting) == "mine"


def test_no_more_run_at_once_than_there_are_slots(
    faces: Callable[..., Face], candidates: Candidates
) -> None:
    face = faces(local_slots=2)
    handles = [
        run(face, lambda ctx: candidates(ctx.task.data), payload={"answer": n, "hold": "x"})
        for n in range(5)
    ]
    until(lambda: candidates.running == 2)
    candidates.gate("x").set()
    assert [result(face, handle) for handle in handles] == [0, 1, 2, 3, 4]
    assert candidates.most == 2


def test_too_many_unfinished_local_tasks_are_refused(
    faces: Callable[..., Face], candidates: Candidates
) -> None:
    face = faces(limits=Limits(local_tasks=2))
    gate = candidates.gate("x")
    handles = [run(face, lambda ctx: gate.wait(20)) for _ in range(2)]
    with pytest.raises(Busy, match="2 local tasks are unfinished"):
        run(face, lambda ctx: 1)
    with pytest.raises(Busy):
        face(lambda s: s.fan_out(FanOutRequest([1]), lambda candidate: 1))
    gate.set()
    assert [result(face, handle) for handle in handles] == [True, True]


def test_a_scheduler_is_used_from_many_threads_at_once(face: Face) -> None:
    with ThreadPoolExecutor(8) as pool:
        handles = list(
            pool.map(lambda n: run(face, lambda ctx: ctx.task.data + 1, payload=n), range(40))
        )
        found = list(pool.map(lambda handle: result(face, handle), handles))
    assert found == list(range(1, 41))


async def test_a_coroutine_runs_on_the_loop_that_handed_it_over(db: str) -> None:
    loop = asyncio.get_running_loop()

    async def here(context: Any) -> list[Any]:
        await context.progress({"percent": 50})
        await context.checkpoint({"at": "1"})
        return [asyncio.get_running_loop() is loop, context.task.data]

    async with AsyncWorkloadScheduler(db) as scheduler:
        handle = await scheduler.submit_async(TaskSubmission(payload=3), here)
        assert await handle == [True, 3]
        status = await handle.status()
    assert status.progress is not None
    assert status.progress.percent == 50
    assert status.checkpoint is not None
    assert status.checkpoint.metadata == {"at": "1"}


def test_one_async_scheduler_serves_several_loops(db: str) -> None:
    scheduler = AsyncWorkloadScheduler(db)

    async def use() -> Any:
        loop = asyncio.get_running_loop()

        async def here(context: Any) -> bool:
            return asyncio.get_running_loop() is loop

        return await (await scheduler.submit_async(TaskSubmission(), here))

    loops = [LoopThread(), LoopThread()]
    try:
        runs = [thread.begin(use()) for thread in loops]
        assert [run.result(30) for run in runs] == [True, True]
        loops[0].run(scheduler.close())
    finally:
        for thread in loops:
            thread.close()


async def test_a_cancelled_run_on_a_callers_loop_sees_the_cancellation(db: str) -> None:
    begun, told = asyncio.Event(), asyncio.Event()

    async def patient(context: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.set()
            raise

    async with AsyncWorkloadScheduler(db, poll=0.2) as scheduler:
        handle = await scheduler.submit_async(TaskSubmission(), patient)
        await begun.wait()
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(20)
        assert told.is_set()


async def test_a_cancelled_caller_leaves_the_task_alone(db: str) -> None:
    gate = threading.Event()
    async with AsyncWorkloadScheduler(db) as scheduler:
        handle = await scheduler.submit_async(TaskSubmission(), lambda ctx: gate.wait(20))
        waiting = asyncio.create_task(handle.result())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        assert await handle is True


async def test_a_verb_is_carried_through_although_its_caller_is_cancelled(
    db: str, connect: Callable[..., psycopg.Connection]
) -> None:
    async with AsyncWorkloadScheduler(db) as scheduler:
        handle = await scheduler.submit(TaskSubmission())
        lease = await scheduler.acquire_lease(handle.task_id, "ann", 60)
        holder = connect(autocommit=False)
        holder.execute("select from sokka.tasks where task_id = %s for update", (handle.task_id,))
        ending = asyncio.create_task(
            scheduler.complete(handle.task_id, lease.owner, lease.token, "done")
        )
        watcher = connect()
        waits = "select from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
        while not watcher.execute(waits, (holder.info.backend_pid,)).fetchall():
            await asyncio.sleep(0.01)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        holder.rollback()
        assert await handle.result(20) == "done"


# --- the end ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["thread", "coroutine", "deaf"])
def test_closing_gives_back_what_runs(
    faces: Callable[..., Face], row: Row, candidates: Candidates, how: str
) -> None:
    face = faces("async" if how == "coroutine" else "sync")
    begun = threading.Barrier(4)

    def obedient(ctx: Any) -> None:
        begun.wait(20)
        ctx.stop_requested.wait(20)

    async def awaiting(ctx: Any) -> None:
        await asyncio.to_thread(begun.wait, 20)
        await asyncio.sleep(60)

    def deaf(ctx: Any) -> None:
        begun.wait(20)
        candidates.gate("never").wait(20)

    work = {"thread": obedient, "coroutine": awaiting, "deaf": deaf}[how]
    handles = [
        face(lambda s: s.submit_async(TaskSubmission(), work)) for _ in range(3)
    ]
    begun.wait(20)
    face(lambda s: s.close())
    for handle in handles:
        found = row(handle)
        assert (found["status"], found["pid"]) == ("starting", None)


def test_runs_may_end_within_the_grace_period(face: Face, row: Row) -> None:
    begun, gate = threading.Event(), threading.Event()

    def slow(ctx: Any) -> str:
        begun.set()
        gate.wait(20)
        return "done"

    handle = run(face, slow)
    assert begun.wait(20)
    threading.Timer(0.2, gate.set).start()
    face(lambda s: s.close(grace=20))
    assert (row(handle)["status"], row(handle)["result"]) == ("terminated", "done")


def test_a_closed_scheduler_refuses_every_call(face: Face) -> None:
    handle = face(lambda s: s.submit(TaskSubmission()))
    face(lambda s: s.close())
    face(lambda s: s.close())
    for use in (
        lambda s: s.submit(TaskSubmission()),
        lambda s: s.submit_async(TaskSubmission(), lambda ctx: 1),
        lambda s: s.status(handle.task_id),
        lambda s: s.list_tasks(),
        lambda s: s.cancel(handle.task_id),
        lambda s: s.acquire_lease(handle.task_id, "ann"),
        lambda s: s.stream(TaskSubmission(), lambda ctx: None),
        lambda s: handle.result(5),
        lambda s: handle.done(),
    ):
        with pytest.raises(UsageError, match="this scheduler is closed"):
            face(use)


def test_closing_ends_every_wait_and_no_task(
    faces: Callable[..., Face], row: Row
) -> None:
    face = faces()
    handle = face.scheduler.submit(TaskSubmission())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.result)
        until(lambda: face.scheduler._core is not None and face.scheduler._core._waits)
        face.scheduler.close()
        with pytest.raises(UsageError, match="the task goes on"):
            waiting.result(20)
    assert row(handle)["status"] == "starting"


def test_several_may_close_at_once(faces: Callable[..., Face]) -> None:
    scheduler = faces().scheduler
    scheduler.submit_async(TaskSubmission(), lambda ctx: 1).result(20)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: scheduler.close(), range(4)))


def test_a_grace_period_that_is_none_closes_nothing(face: Face) -> None:
    with pytest.raises(BadArgument, match="grace: must be 0 to 10 years"):
        face(lambda s: s.close(grace=-1))
    face(lambda s: s.list_tasks())


def test_closing_an_unused_scheduler_connects_to_nothing() -> None:
    scheduler = WorkloadScheduler("host=nowhere.invalid dbname=x")
    scheduler.close()
    scheduler.close()


def test_the_last_scheduler_takes_the_loop_with_it(db: str) -> None:
    def loops() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "sokka-workload"]

    first, second = WorkloadScheduler(db), WorkloadScheduler(db)
    first.list_tasks()
    second.list_tasks()
    assert len(loops()) == 1
    first.close()
    second.list_tasks()
    second.close()
    until(lambda: not loops())
    with WorkloadScheduler(db) as third:
        third.list_tasks()
        assert len(loops()) == 1


def test_its_own_loop_cannot_wait_for_itself(faces: Callable[..., Face]) -> None:
    scheduler = faces().scheduler

    async def blocks(context: Any) -> Any:
        return scheduler.list_tasks()

    with pytest.raises(TaskFailed, match="AsyncWorkloadScheduler"):
        scheduler.submit_async(TaskSubmission(), blocks).result(20)


# --- restarts, other processes of the same id ----------------------------------


def test_a_scheduler_of_the_same_id_takes_up_what_was_left(
    faces: Callable[..., Face], row: Row
) -> None:
    begun = threading.Event()

    def first_life(ctx: Any) -> None:
        ctx.checkpoint({"page": "7"})
        begun.set()
        ctx.stop_requested.wait(20)

    first = faces(scheduler_id="printer")
    left = first.scheduler.submit_async(TaskSubmission(kind="print"), first_life)
    assert begun.wait(20)
    first.scheduler.close()

    second = faces(scheduler_id="printer")
    assert second.scheduler.scheduler_id == "printer"
    second.scheduler.submit_async(
        TaskSubmission(kind="print"), lambda ctx: ctx.last_checkpoint
    ).result(20)
    assert second.scheduler.attach(left.task_id).result(20) == {"page": "7"}
    assert row(left)["attempt"] == 1


def test_what_nobody_can_take_up_does_not_wait_for_ever(
    faces: Callable[..., Face], row: Row
) -> None:
    unnamed = faces().scheduler
    found = row(unnamed.submit_async(TaskSubmission(), lambda ctx: 1))
    assert found["max_losses"] == 0
    assert timedelta(hours=23) < found["expires_at"] - found["created_at"] < timedelta(hours=25)
    named = faces(scheduler_id="named").scheduler
    found = row(named.submit_async(TaskSubmission(), lambda ctx: 1))
    assert (found["max_losses"], found["expires_at"]) == (5, None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_begins_anew(faces: Callable[..., Face]) -> None:
    scheduler = faces().scheduler
    assert scheduler.submit_async(TaskSubmission(), lambda ctx: "parent").result(20) == "parent"
    parents_id = scheduler.scheduler_id
    gc.collect()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            value = scheduler.submit_async(TaskSubmission(), lambda ctx: "child").result(20)
            other = scheduler.scheduler_id != parents_id
            scheduler.close()
            os.write(writing, f"{value} {other}".encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "child True"
    assert os.waitpid(child, 0)[1] == 0
    assert scheduler.submit_async(TaskSubmission(), lambda ctx: "again").result(20) == "again"


# --- what is refused ------------------------------------------------------------


@pytest.mark.parametrize(
    ("executor", "rule"),
    [
        (3, "executor: must be callable (given: int)"),
        (lambda: 1, "executor: must take the context, and nothing else"),
        (lambda a, b: 1, "executor: must take the context, and nothing else"),
    ],
)
def test_an_executor_that_cannot_be_called_is_refused(
    face: Face, executor: Any, rule: str
) -> None:
    with pytest.raises(BadArgument) as refused:
        face(lambda s: s.submit_async(TaskSubmission(), executor))
    assert refused.value.message == rule


def test_an_unknown_task_has_no_result(face: Face) -> None:
    handle = face.scheduler.attach("0190a0a0-0000-7000-8000-000000000009")
    for use in (
        lambda s: handle.result(20), lambda s: handle.status(), lambda s: handle.done(),
        lambda s: handle.cancel(),
    ):
        with pytest.raises(NoTaskFound):
            face(use)


def test_a_task_below_another_needs_a_live_parent(face: Face) -> None:
    parent = face(lambda s: s.submit(TaskSubmission()))
    lease = face(lambda s: s.acquire_lease(parent.task_id, "ann", 60))
    child = face(lambda s: s.submit(TaskSubmission(parent=lease)))
    assert face(lambda s: child.status()).parent_task_id == parent.task_id
    assert face(lambda s: child.status()).status is Status.STARTING
    face(lambda s: parent.cancel())
    face(lambda s: s.complete(parent.task_id, lease.owner, lease.token))
    with pytest.raises(AlreadyDone):
        face(lambda s: s.submit(TaskSubmission(parent=lease)))

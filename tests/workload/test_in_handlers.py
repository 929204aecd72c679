"""What a handler can do: fan out and wait without a slot, steps, streams, progress."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sokka_pg import (
    FanOutRequest,
    Policy,
    ScatterGatherRequest,
    Sokka,
    SyncTaskContext,
    TaskContext,
)
from sokka_pg.errors import LeaseLost, StopRequested, UsageError
from tests.faults.conftest import Working
from tests.faults.handlers import notes
from tests.faults.processes import WorkerProcess
from tests.faults.waiting import until, until_async
from tests.workload import handlers
from tests.workload.handlers import twice

Row = Callable[[Any], dict[str, Any]]


def final(row: Row, task: Any) -> Callable[[], dict[str, Any] | None]:
    def look() -> dict[str, Any] | None:
        found = row(task)
        return found if found["status"] in ("failed", "terminated") else None

    return look


def number(conn: psycopg.Connection, what: str) -> int:
    found = conn.execute(f"select count(*) from sokka.{what}").fetchone()  # type: ignore[arg-type]
    assert found is not None
    return int(found[0])


def stolen(app: Sokka, task: Any) -> None:
    """Hand the task to somebody else, behind its owner's back."""
    store = app.store
    while (found := store.task(task.task_id)) is not None:
        try:
            store.revoke_lease(task.task_id, found.record_ver, reason="a test")
            break
        except Exception:  # a heartbeat came in between
            continue
    store.acquire_lease(task.task_id, "thief", 60)


# --- waiting without a slot -------------------------------------------------


@pytest.mark.parametrize("flavour", ["awaited", "threaded", "tree"])
async def test_nested_fan_outs_finish_with_a_single_slot(
    app: Sokka, working: Working, row: Row, flavour: str
) -> None:
    @app.task(topic="t")
    async def awaited(ctx: TaskContext, levels: int) -> int:
        if not levels:
            return 1
        return 1 + sum((await ctx.fan_out("below", twice("awaited", levels - 1))).values())

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext, levels: int) -> int:
        if not levels:
            return 1
        return 1 + sum(ctx.fan_out("below", twice("threaded", levels - 1)).values())

    app.registry.add(handlers.tree.spec)
    task = app.store.create_task("t", {"levels": 2}, kind=flavour)
    async with working("t:1"):
        found = await until_async(final(row, task), deadline_s=60)
    assert (found["status"], found["result"], found["attempt"]) == ("terminated", 7, 1)


async def test_a_handler_that_waits_leaves_its_slot_and_its_lease(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> list[Any]:
        request = FanOutRequest([1, 2], kind="child", topic="elsewhere")
        return (await ctx.fan_out("below", request)).values()

    @app.task(topic="elsewhere")
    async def child(number: Any) -> int:
        return -number

    @app.task(topic="t")
    async def other() -> str:
        return "done"

    waiting = parent.enqueue()
    async with working("t:1"):
        await until_async(lambda: row(waiting)["status"] == "snoozed")
        assert row(waiting)["pid"] is None
        assert (await until_async(final(row, other.enqueue())))["result"] == "done"
        assert row(waiting)["status"] == "snoozed"
        async with working("elsewhere"):
            assert (await until_async(final(row, waiting)))["result"] == [-1, -2]


async def test_fan_outs_begun_together_are_waited_for_one_after_the_other(
    app: Sokka, working: Working, row: Row, conn: psycopg.Connection
) -> None:
    starts: list[int] = []

    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> list[Any]:
        starts.append(ctx.attempt)
        requests = {name: FanOutRequest([name], kind="child") for name in "abc"}
        for name, request in requests.items():
            await ctx.start_fan_out(name, request)
        return [(await ctx.fan_out(name, request)).values() for name, request in requests.items()]

    @app.task(topic="t")
    async def child(name: Any) -> Any:
        return name

    app.store  # noqa: B018  opened outside the worker
    task = parent.enqueue()
    async with working("t:1"):
        found = await until_async(final(row, task))
    assert found["result"] == [["a"], ["b"], ["c"]]
    assert number(conn, "joins") == 3
    assert set(starts) == {1}


async def test_an_empty_fan_out_is_no_wait(app: Sokka, working: Working, row: Row) -> None:
    starts: list[int] = []

    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> Any:
        starts.append(ctx.token)
        found = await ctx.fan_out("none", FanOutRequest([], kind="child"))
        return [found.succeeded, found.failed, found.values()]

    task = parent.enqueue()
    async with working("t"):
        assert (await until_async(final(row, task)))["result"] == [0, 0, []]
    assert len(starts) == 1


async def test_failed_candidates_are_data_and_keep_their_places(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> Any:
        found = await ctx.fan_out("below", FanOutRequest([0, 1, 2, 3], kind="child"))
        codes = [each.failure and each.failure.code for each in found.results]
        return [found.succeeded, codes, [each.result for each in found.results]]

    @app.task(topic="t")
    def child(number: Any) -> int:
        if number % 2:
            raise ValueError("odd")
        return number

    task = parent.enqueue()
    async with working("t:3"):
        found = await until_async(final(row, task))
    assert found["result"] == [2, [None, "error", None, "error"], [0, None, 2, None]]


async def test_at_a_deadline_what_is_there_is_given_and_the_rest_is_cancelled(
    app: Sokka, working: Working, row: Row, conn: psycopg.Connection
) -> None:
    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> Any:
        request = FanOutRequest(
            [1], kind="child", topic="nobody", deadline=timedelta(milliseconds=200)
        )
        found = await ctx.fan_out("below", request)
        failure = found.results[0].failure
        return [found.deadline_passed, failure and failure.code]

    task = parent.enqueue()
    async with working("t"):
        assert (await until_async(final(row, task)))["result"] == [True, "deadline"]
    codes = conn.execute(
        "select error ->> 'code' from sokka.all_tasks where topic = 'nobody' and candidate = 1"
    ).fetchall()
    assert codes == [("cancelled",)]


async def test_cancelling_a_waiting_task_cancels_what_it_waits_for(
    app: Sokka, working: Working, row: Row, conn: psycopg.Connection
) -> None:
    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> None:
        await ctx.fan_out("below", FanOutRequest([1, 2], kind="child", topic="nobody"))

    task = parent.enqueue()
    async with working("t"):
        await until_async(lambda: row(task)["status"] == "snoozed")
        app.store.cancel(task.task_id, reason="a test")
        assert (await until_async(final(row, task)))["error"]["code"] == "cancelled"
        await until_async(lambda: number(conn, "live_tasks") == 0)


async def test_a_name_that_stands_for_another_request_is_refused(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> str:
        await ctx.start_fan_out("below", FanOutRequest([1], kind="child"))
        try:
            await ctx.fan_out("below", FanOutRequest([2], kind="child"))
        except UsageError:
            return "refused"
        return "taken"

    @app.task(topic="t")
    async def child(number: Any) -> None: ...

    task = parent.enqueue()
    async with working("t"):
        assert (await until_async(final(row, task)))["result"] == "refused"


# --- scatter and gather -----------------------------------------------------


async def test_a_policy_decides_and_a_reducer_makes_one_value(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> Any:
        added = await ctx.scatter_gather("sum", ScatterGatherRequest(
            [1, 2, 3], kind="child", reducer=lambda found: sum(each.result for each in found),
        ))
        unmet = await ctx.scatter_gather("all", ScatterGatherRequest([1, -1], kind="child"))
        quorum = await ctx.scatter_gather("quorum", ScatterGatherRequest(
            [-1, 5, 6], kind="child", policy=Policy.quorum(2),
        ))
        failure = unmet.failure
        return [added.value, unmet.satisfied, failure and failure.code, quorum.value]

    @app.task(topic="t")
    async def child(number: Any) -> int:
        if number < 0:
            raise ValueError("negative")
        return number

    task = parent.enqueue()
    async with working("t:1"):
        found = await until_async(final(row, task))
    assert found["result"] == [6, False, "policy_unmet", [5, 6]]


@pytest.mark.parametrize("flavour", ["awaited", "threaded"])
async def test_a_durable_reducer_is_a_task_that_sees_all_answers(
    app: Sokka, working: Working, row: Row, flavour: str
) -> None:
    @app.task(topic="t")
    def parent(ctx: SyncTaskContext) -> Any:
        found = ctx.scatter_gather(
            "below", ScatterGatherRequest([1, 2, 3], kind="child", then=flavour)
        )
        return [found.satisfied, found.value, len(found.results)]

    @app.task(topic="t")
    async def child(number: Any) -> int:
        return number

    @app.task(topic="t")
    async def awaited(ctx: TaskContext) -> list[Any]:
        return [[each.index, each.result] for each in await ctx.join_results()]

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext) -> list[Any]:
        return [[each.index, each.result] for each in ctx.join_results()]

    task = parent.enqueue()
    async with working("t:1"):
        found = await until_async(final(row, task))
    assert found["result"] == [True, [[0, 1], [1, 2], [2, 3]], 3]


# --- steps ------------------------------------------------------------------


async def test_steps_are_done_once_however_often_the_handler_starts(
    app: Sokka, working: Working, row: Row
) -> None:
    called: list[str] = []
    starts: list[int] = []

    def plain(name: str) -> tuple[str, int]:
        called.append(name)
        return name, len(called)

    async def awaited(*, name: str) -> None:
        called.append(name)

    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> Any:
        starts.append(ctx.token)
        first = await ctx.step("first", plain, "a")
        second = await ctx.step("second", awaited, name="b")
        await ctx.fan_out("below", FanOutRequest([1], kind="child"))
        return [first, second]

    @app.task(topic="t")
    async def child(number: Any) -> None: ...

    task = parent.enqueue()
    async with working("t"):
        assert (await until_async(final(row, task)))["result"] == [["a", 1], None]
    assert called == ["a", "b"]
    assert len(starts) == 2
    assert [step.name for step in app.store.steps(task.task_id)] == ["first", "second"]


async def test_a_step_that_fails_is_done_again_and_its_name_is_used_once(
    app: Sokka, working: Working, row: Row
) -> None:
    tries: list[int] = []

    def shaky() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return len(tries)

    @app.task(topic="t", retry=2)
    def handler(ctx: SyncTaskContext) -> Any:
        found = ctx.step("shaky", shaky)
        try:
            ctx.step("shaky", shaky)
        except UsageError:
            return found
        return "twice"

    task = handler.enqueue()
    async with working("t"):
        found = await until_async(final(row, task))
    assert (found["result"], found["failures"], len(tries)) == (2, 1, 2)


def test_after_a_death_the_handler_meets_its_fan_out_and_its_steps(
    db: str, tmp_path: Path, app: Sokka, row: Row, conn: psycopg.Connection
) -> None:
    def start(name: str) -> WorkerProcess:
        return WorkerProcess(
            db, tmp_path, "--app", "tests.workload.handlers:app", "--topics", "t,answers",
            "--lease", "1s", name=name,
        ).serving()

    task = app.store.create_task("t", kind="journey")
    first = start("w1")
    try:
        until(lambda: ["gate"] in [line[:1] for line in notes(first.notes_path)])
        first.kill()
        second = start("w2")
        try:
            found = until(final(row, task))
        finally:
            second.kill()
    finally:
        first.kill()
    assert found["result"] == [["shirt", "tea"], [10, 20]]
    said = [line[0] for line in notes(first.notes_path)]
    assert said.count("packed") == 1
    assert said.count("gate") == 1
    assert said.count("start") >= 2
    assert number(conn, "joins") == 1


# --- streams ----------------------------------------------------------------


@pytest.mark.parametrize("flavour", ["awaited", "threaded"])
async def test_a_producer_waits_for_its_reader_and_nothing_is_lost(
    app: Sokka, working: Working, row: Row, flavour: str
) -> None:
    @app.task(topic="t")
    async def awaited(ctx: TaskContext) -> Any:
        await ctx.emit("first")
        return [await ctx.emit_many(range(8)), await ctx.emit("last")]

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext) -> Any:
        ctx.emit("first")
        return [ctx.emit_many(range(8)), ctx.emit("last")]

    task = app.store.create_task("t", kind=flavour)
    app.store.open_stream(task.task_id, max_items=2)
    read: list[Any] = []
    async with working("t"):
        while len(read) < 10:
            state = app.store.stream(task.task_id)
            assert state is not None
            assert state.pending_items <= 2
            items = app.store.read_stream(task.task_id, after=len(read))
            assert [item.seq for item in items] == list(
                range(len(read) + 1, len(read) + 1 + len(items))
            )
            read.extend(item.item for item in items)
            await asyncio.sleep(0)
        assert (await until_async(final(row, task)))["result"] == [9, 10]
    assert read == ["first", *range(8), "last"]


@pytest.mark.parametrize("flavour", ["awaited", "threaded"])
async def test_a_producer_that_waits_ends_when_it_is_cancelled(
    app: Sokka, working: Working, row: Row, flavour: str
) -> None:
    ended: list[type[BaseException]] = []

    @app.task(topic="t")
    async def awaited(ctx: TaskContext) -> None:
        try:
            await ctx.emit_many(range(1000))
        except BaseException as error:
            ended.append(type(error))
            raise

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext) -> None:
        try:
            ctx.emit_many(range(1000))
        except BaseException as error:
            ended.append(type(error))
            raise

    task = app.store.create_task("t", kind=flavour)
    app.store.open_stream(task.task_id, max_items=1)
    async with working("t"):
        await until_async(lambda: getattr(app.store.stream(task.task_id), "last_seq", 0) == 1)
        app.store.cancel(task.task_id)
        assert (await until_async(final(row, task)))["error"]["code"] == "cancelled"
    assert ended == [{"awaited": asyncio.CancelledError, "threaded": StopRequested}[flavour]]


async def test_a_producer_that_starts_anew_goes_on_where_it_was(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t", retry=2)
    async def handler(ctx: TaskContext) -> int:
        done = await ctx.stream_position()
        await ctx.emit_many(range(done, 3))
        if ctx.attempt == 1:
            raise ValueError("once")
        return await ctx.emit_many(range(3, 5))

    task = handler.enqueue()
    async with working("t"):
        assert (await until_async(final(row, task)))["result"] == 5
    assert [item.item for item in app.store.read_stream(task.task_id)] == [0, 1, 2, 3, 4]


async def test_a_child_process_has_all_of_it(
    app: Sokka, working: Working, row: Row
) -> None:
    app.registry.add(handlers.busy_child.spec)
    task = app.store.create_task("t", {"items": 5}, kind="busy_child")
    async with working("t"):
        found = await until_async(final(row, task))
    assert (found["result"], found["progress"]) == (6, {"done": 5})
    assert [item.item for item in app.store.read_stream(task.task_id)] == list(range(5))


# --- progress ---------------------------------------------------------------


@pytest.mark.parametrize("flavour", ["awaited", "threaded"])
async def test_progress_is_written_less_often_than_said_and_the_last_one_always(
    app: Sokka, working: Working, row: Row, flavour: str
) -> None:
    gate = threading.Event()
    said = 500

    @app.task(topic="t")
    async def awaited(ctx: TaskContext) -> None:
        for count in range(said):
            await ctx.progress(count)
        await asyncio.to_thread(gate.wait)
        await ctx.progress("second last")
        await ctx.progress("last")

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext) -> None:
        for count in range(said):
            ctx.progress(count)
        gate.wait()
        ctx.progress("second last")
        ctx.progress("last")

    task = app.store.create_task("t", kind=flavour)
    async with working("t"):
        await until_async(lambda: row(task)["progress"] == said - 1)
        assert row(task)["record_ver"] < said / 2
        gate.set()
        assert (await until_async(final(row, task)))["progress"] == "last"


async def test_the_last_progress_is_written_whatever_the_end(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t")
    async def fails(ctx: TaskContext) -> None:
        await ctx.progress(1)
        await ctx.progress("failing")
        raise ValueError

    @app.task(topic="t")
    def fenced(ctx: SyncTaskContext) -> None:
        ctx.progress(1)
        ctx.progress("fenced")
        with ctx.transaction(terminate=True):
            pass

    @app.task(topic="t")
    async def own(ctx: TaskContext) -> None:
        await ctx.progress(1)
        await ctx.progress(2)
        async with ctx.transaction() as block:
            await ctx.progress("own", connection=block.connection)

    tasks = [fails.enqueue(), fenced.enqueue(), own.enqueue()]
    async with working("t"):
        found = [(await until_async(final(row, task)))["progress"] for task in tasks]
    assert found == ["failing", "fenced", "own"]


async def test_what_cannot_be_stored_is_refused_where_it_is_said(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t")
    async def handler(ctx: TaskContext) -> list[str]:
        refused = []
        for call in (ctx.progress, ctx.emit):
            await call(1)
            try:
                await call(object())
            except ValueError as error:
                refused.append(type(error).__name__)
        return refused

    task = handler.enqueue()
    async with working("t"):
        assert (await until_async(final(row, task)))["result"] == ["BadArgument"] * 2


# --- ghosts -----------------------------------------------------------------


@pytest.mark.parametrize("told", [False, True])
async def test_an_owner_no_more_changes_nothing(
    app: Sokka, working: Working, row: Row, conn: psycopg.Connection, told: bool
) -> None:
    go = threading.Event()
    errors: list[BaseException] = []
    called: list[int] = []

    @app.task(topic="t")
    def ghost(ctx: SyncTaskContext) -> None:
        go.wait()
        if told:
            ctx.wait_cancelled()
        request = FanOutRequest([1], kind="child")
        for call in (
            lambda: ctx.progress("ghost"),
            lambda: ctx.step("ghost", called.append, 1),
            lambda: ctx.emit("ghost"),
            lambda: ctx.fan_out("ghost", request),
            lambda: ctx.start_fan_out("ghost", request),
        ):
            try:
                call()
            except Exception as error:
                errors.append(error)

    task = ghost.enqueue()
    async with working("t", lease=1 if told else 30):
        await until_async(lambda: row(task)["status"] == "running")
        stolen(app, task)
        before = row(task)
        go.set()
        await until_async(lambda: len(errors) == 5)
    assert all(isinstance(error, LeaseLost) for error in errors), errors
    assert row(task) == before
    assert [number(conn, what) for what in ("joins", "task_steps", "stream_items")] == [0, 0, 0]
    assert len(called) <= (0 if told else 1)


async def test_progress_held_back_that_is_refused_tells_the_worker_and_the_next_call(
    app: Sokka, working: Working, row: Row
) -> None:
    raised: list[BaseException] = []
    go = threading.Event()

    @app.task(topic="t")
    def handler(ctx: SyncTaskContext) -> None:
        ctx.progress(1)
        ctx.progress(2)
        go.wait()
        try:
            ctx.progress(3)
            ctx.progress(4)
            ctx.wait_cancelled()
            ctx.progress(5)
        except LeaseLost as error:
            raised.append(error)

    task = handler.enqueue()
    async with working("t", lease=60):
        await until_async(lambda: row(task)["progress"] == 2)
        stolen(app, task)
        go.set()
        await until_async(lambda: raised)
    assert row(task)["progress"] == 2
    assert row(task)["pid"] == "thief"


async def test_a_context_serves_a_handler_that_works_on_another_loop(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t")
    async def handler(ctx: TaskContext) -> Any:
        async def there() -> Any:
            for count in range(5):
                await ctx.progress(count)
            await ctx.emit_many("ab")
            value = await ctx.step("there", lambda: threading.current_thread().name)
            await app.async_store.close()
            return value

        return await asyncio.to_thread(lambda: asyncio.run(there()))

    task = handler.enqueue()
    async with working("t"):
        found = await until_async(final(row, task))
    assert (found["status"], found["progress"]) == ("terminated", 4)
    assert found["result"] != threading.main_thread().name

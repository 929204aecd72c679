"""What becomes of a task, by what its handler does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from sokka_pg import Fail, Retry, Snooze, Sokka, SyncTaskContext, TaskContext
from sokka_pg.events import Abandoned, CancelRequested, Finished, Lost, Started, UnknownKind
from tests.faults import handlers
from tests.faults.conftest import Working
from tests.faults.waiting import Seen, until_async

Row = Callable[[Any], dict[str, Any]]


def final(row: Row, task: Any) -> Callable[[], dict[str, Any] | None]:
    def look() -> dict[str, Any] | None:
        found = row(task)
        return found if found["status"] in ("failed", "terminated") else None

    return look


async def test_async_threaded_and_process_handlers_store_their_results(
    app: Sokka, working: Working, row: Row
) -> None:
    class Order(BaseModel):
        id: int

    @app.task(topic="t")
    async def awaited(x: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"x": x}

    @app.task(topic="t")
    def threaded(order: Order) -> list[Any]:
        return [order.id, threading.current_thread() is threading.main_thread()]

    doubled = handlers.declare_process_tasks(app)["double"]
    tasks = awaited.enqueue(1), threaded.enqueue(Order(id=2)), doubled.enqueue(21)
    async with working("t"):
        rows = [await until_async(final(row, task)) for task in tasks]
    assert [r["result"] for r in rows] == [{"x": 1}, [2, False], 42]


HOSTILE = [
    "base_exception", "bad_str", "system_exit", "keyboard_interrupt", "cancelled", "generator_exit",
    "stop_iteration", "stop_async_iteration", "recursion", "memory", "group", "nul", "surrogate",
    "huge",
]


@pytest.mark.parametrize("flavour", ["awaited", "threaded"])
async def test_whatever_a_handler_raises_only_its_own_task_fails(
    app: Sokka, working: Working, row: Row, flavour: str
) -> None:
    @app.task(topic="t")
    async def awaited(how: str) -> None:
        raise handlers.hostile(how)

    @app.task(topic="t")
    def threaded(how: str) -> None:
        raise handlers.hostile(how)

    @app.task(topic="t")
    async def fine() -> str:
        return "fine"

    task = {"awaited": awaited, "threaded": threaded}[flavour]
    bad = [task.enqueue(how) for how in HOSTILE]
    good = fine.enqueue()
    async with working("t:3"):
        for enqueued in bad:
            found = await until_async(final(row, enqueued))
            assert (found["status"], found["error"]["code"]) == ("failed", "error")
        assert (await until_async(final(row, good)))["result"] == "fine"


async def test_a_result_that_is_no_json_fails_its_task_and_names_the_path(
    app: Sokka, working: Working, row: Row
) -> None:
    looped: list[Any] = []
    looped.append(looped)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    results: list[Any] = [
        object(), {1, 2}, float("nan"), [float("inf")], 10**5000, b"x", datetime.now(UTC),
        {"a": [Decimal("1E+400")]}, looped, deep, {1: "a"}, "x" * (2 << 20), "a\x00b", "\ud800",
    ]

    @app.task(topic="t", retry=3)
    async def give(n: int) -> Any:
        return results[n]

    @app.task(topic="t")
    async def both() -> dict[str, int]:
        return {"a": 1, "A": 2}

    tasks = [give.enqueue(n) for n in range(len(results))]
    kept = both.enqueue()
    async with working("t"):
        for task in tasks:
            found = await until_async(final(row, task))
            assert (found["status"], found["error"]["code"]) == ("failed", "result_not_storable")
            assert found["attempt"] == 1
            assert "result" in found["error"]["message"]
        assert "$.a[0]" in row(tasks[7])["error"]["message"]
        assert (await until_async(final(row, kept)))["result"] == {"a": 1, "A": 2}


async def test_bad_members_of_a_batch_leave_the_others_alone(
    app: Sokka, working: Working, row: Row, seen: Seen
) -> None:
    def broken(function: Any) -> Any:
        async def wrapped(n: int) -> None:
            raise LookupError("the decorator is broken")

        return wrapped

    @app.task(topic="t")
    async def good(n: int) -> int:
        return n

    app.task(topic="t", kind="decorated")(broken(good))
    specs = [{"topic": "t", "kind": "good", "data": {"n": n}} for n in range(10)]
    specs[3]["kind"] = "unknown"
    specs[5]["data"] = {"n": "not a number"}
    specs[7]["kind"] = "decorated"
    ids = [made.task_id for made in app.store.create_tasks(specs)]
    async with working("t:10"):
        for n in {*range(10)} - {3}:
            await until_async(final(row, ids[n]))
        await until_async(lambda: seen.all(UnknownKind))
    assert [row(ids[n])["result"] for n in (0, 1, 2, 4, 6, 8, 9)] == [0, 1, 2, 4, 6, 8, 9]
    assert row(ids[5])["error"]["code"] == "bad_payload"
    assert row(ids[7])["error"]["code"] == "error"
    assert (row(ids[3])["status"], row(ids[3])["pid"], row(ids[3])["attempt"]) == (
        "snoozed", None, 0
    )


async def test_outcomes_may_be_returned_or_raised(
    app: Sokka, working: Working, row: Row
) -> None:
    outcomes: dict[str, Any] = {
        "snooze": Snooze(timedelta(hours=1)), "retry": Retry("again", timedelta(hours=1)),
        "fail": Fail({"code": "no_stock", "message": "none left"}),
        "bad_snooze": Snooze(timedelta(seconds=-1)),
    }

    @app.task(topic="t", retry=2)
    async def give(name: str, raised: bool) -> Any:
        if raised:
            raise outcomes[name]
        return outcomes[name]

    def ended(task: Any) -> Callable[[], dict[str, Any] | None]:
        def look() -> dict[str, Any] | None:
            found = row(task)
            return found if found["status"] not in ("starting", "running") else None

        return look

    async with working("t"):
        for raised in (False, True):
            snoozed, retried, failed, odd = [
                await until_async(ended(give.enqueue(name, raised))) for name in outcomes
            ]
            assert (snoozed["status"], snoozed["attempt"]) == ("snoozed", 0)
            assert (retried["status"], retried["failures"]) == ("snoozed", 1)
            assert failed["error"]["code"] == "no_stock"
            assert odd["failures"] == 1


async def test_a_timeout_ends_the_attempt_by_the_retry_policy(
    app: Sokka, working: Working, row: Row, seen: Seen
) -> None:
    stopped = threading.Event()
    tries: list[int] = []

    @app.task(topic="t", timeout=0.2, retry={"max_attempts": 2, "initial": 0})
    async def awaited() -> str:
        tries.append(1)
        if len(tries) == 1:
            await asyncio.Event().wait()
        return "second"

    @app.task(topic="t", timeout=0.2)
    def threaded(ctx: SyncTaskContext) -> None:
        assert ctx.wait_cancelled(20)
        stopped.set()

    @app.task(topic="t", timeout=0.2)
    async def deaf() -> None:
        for _ in range(4):
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                continue

    slept = handlers.declare_process_tasks(app)["sleep_for"].configure(timeout=1).enqueue(60)
    tasks = awaited.enqueue(), threaded.enqueue(), deaf.enqueue()
    async with working("t"):
        first, second, third = [await until_async(final(row, task)) for task in tasks]
        fourth = await until_async(final(row, slept))
        await until_async(lambda: seen.all(Abandoned))
    assert (first["result"], first["failures"]) == ("second", 1)
    for found in (second, third, fourth):
        assert (found["status"], found["error"]["code"]) == ("failed", "timeout")
    assert stopped.is_set()


async def test_a_cancel_request_stops_handlers_of_every_sort(
    app: Sokka, working: Working, row: Row, seen: Seen
) -> None:
    @app.task(topic="t")
    async def awaited() -> None:
        await asyncio.Event().wait()

    @app.task(topic="t")
    async def polite(ctx: TaskContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert ctx.cancel_reason == "cancel"
        return "finished all the same"

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext) -> None:
        ctx.wait_cancelled(20)
        raise RuntimeError("stopped")

    sleeper = handlers.declare_process_tasks(app)["sleep_for"]
    tasks = awaited.enqueue(), polite.enqueue(), threaded.enqueue(), sleeper.enqueue(60)
    async with working("t", lease=1.5):
        await until_async(lambda: len(seen.all(Started)) == 4)
        for task in tasks:
            assert app.store.cancel(task.task_id).outcome == "requested"
        rows = [await until_async(final(row, task)) for task in tasks]
        await until_async(lambda: len(seen.all(CancelRequested)) == 4)
    codes = [r["error"] and r["error"]["code"] for r in rows]
    assert codes == ["cancelled", None, "cancelled", "cancelled"]
    assert rows[1]["result"] == "finished all the same"


async def test_an_unknown_kind_is_left_for_others_without_an_attempt_or_a_hot_loop(
    app: Sokka, working: Working, row: Row, seen: Seen
) -> None:
    @app.task(topic="t")
    async def known() -> None: ...

    task = app.store.create_task("t", kind="unknown")
    async with working("t"):
        first = await until_async(lambda: seen.all(UnknownKind))
        await until_async(lambda: len(seen.all(UnknownKind)) == 2)
        assert row(task)["attempt"] == 0
        other = Sokka(app.database_url)

        @other.task(topic="t", kind="unknown")
        async def served() -> str:
            return "by another"

        worker = other.worker("t")
        run = asyncio.create_task(worker.run())
        found = await until_async(final(row, task))
        worker.stop()
        await run
        await other.async_store.close()
    assert found["result"] == "by another"
    assert first[0].delay_s >= 1.0


async def test_limits_of_topics_hold_while_others_go_on(
    app: Sokka, working: Working
) -> None:
    running = {"a": 0, "b": 0}
    most = dict(running)
    done: list[str] = []

    @app.task(topic="a")
    async def work(topic: str) -> None:
        running[topic] += 1
        most[topic] = max(most[topic], running[topic])
        await asyncio.sleep(0.01)
        running[topic] -= 1
        done.append(topic)

    app.store.create_tasks(
        [{"topic": t, "kind": "work", "data": {"topic": t}} for t in "ab" for _ in range(30)]
    )
    async with working("a:4,b:1"):
        await until_async(lambda: len(done) == 60)
    assert most["a"] <= 4
    assert most["b"] == 1


async def test_an_effect_and_the_end_of_its_task_are_one_commit(
    app: Sokka, working: Working, row: Row, conn: Any, seen: Seen
) -> None:
    conn.execute("create table paid (n int)")
    conn.execute("select sokka.guard_table('paid')")

    @app.task(topic="t")
    async def awaited(ctx: TaskContext, n: int) -> str:
        async with ctx.transaction(terminate=True) as block:
            await block.connection.execute("insert into paid values (%s)", (n,))
            block.result = {"paid": n}
        # heartbeats meet a finished task here, and that is no loss
        await asyncio.sleep(0.4)
        assert not ctx.cancelled
        return "ignored"

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext, n: int) -> str:
        with ctx.transaction(terminate=True) as block:
            block.connection.execute("insert into paid values (%s)", (n,))
            block.result = {"paid": n}
        return "ignored"

    tasks = awaited.enqueue(1), threaded.enqueue(2)
    async with working("t", lease=0.5):
        rows = [await until_async(final(row, task)) for task in tasks]
        await until_async(lambda: len(seen.all(Finished)) == 2)
    assert [r["result"] for r in rows] == [{"paid": 1}, {"paid": 2}]
    assert conn.execute("select array_agg(n order by n) from paid").fetchone() == ([1, 2],)


async def test_a_handler_that_ends_its_task_through_the_store_goes_on_undisturbed(
    app: Sokka, working: Working, row: Row, seen: Seen
) -> None:
    @app.task(topic="t")
    async def by_itself(ctx: TaskContext) -> str:
        await app.async_store.terminate(ctx.lease, result="by itself")
        await asyncio.sleep(0.5)
        assert not ctx.cancelled
        raise RuntimeError("too late to count")

    task = by_itself.enqueue()
    async with working("t", lease=0.5):
        await until_async(lambda: seen.all(Finished))
    assert row(task)["result"] == "by itself"
    assert not seen.all(Lost)


async def test_a_checkpoint_is_handed_to_the_next_attempt(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t", retry={"max_attempts": 2, "initial": 0})
    async def count(ctx: TaskContext) -> Any:
        if ctx.last_checkpoint is None:
            await ctx.progress({"percent": 50})
            await ctx.checkpoint({"done": 3})
            raise RuntimeError("half way")
        return [ctx.attempt, ctx.last_checkpoint]

    task = count.enqueue()
    async with working("t"):
        found = await until_async(final(row, task))
    assert (found["result"], found["progress"]) == ([2, {"done": 3}], {"percent": 50})


async def test_a_killed_process_fails_only_its_own_task(
    app: Sokka, working: Working, row: Row
) -> None:
    tasks = handlers.declare_process_tasks(app)
    dead, alive = tasks["die"].enqueue(), tasks["double"].enqueue(4)
    async with working("t:2"):
        lost = await until_async(final(row, dead))
        kept = await until_async(final(row, alive))
    assert lost["error"]["code"] == "child_died"
    assert kept["result"] == 8


async def test_no_transaction_is_open_while_a_handler_runs(
    app: Sokka, working: Working, conn: Any
) -> None:
    states: list[Any] = []

    @app.task(topic="t")
    async def look() -> None:
        await asyncio.sleep(0.3)
        found = conn.execute(
            "select count(*), count(*) filter (where xact_start is not null or backend_xmin"
            " is not null) from pg_stat_activity where datname = current_database()"
            " and application_name = 'sokka_pg'"
        ).fetchone()
        states.append(found)

    look.enqueue()
    async with working("t", lease=10):
        await until_async(lambda: states)
    assert states[0][0] >= 2
    assert states[0][1] == 0


async def test_nothing_is_left_in_memory_of_tasks_that_are_through(
    app: Sokka, working: Working
) -> None:
    done: list[int] = []

    @app.task(topic="t")
    async def note(n: int) -> None:
        done.append(n)

    app.store.create_tasks(
        [{"topic": "t", "kind": "note", "data": {"n": n}} for n in range(3000)]
    )
    async with working("t:20") as worker:
        await until_async(lambda: len(done) == 3000)
        await until_async(lambda: not worker._engine.unsettled and not len(worker._keeper))
        assert len(worker._runner) == 0
        assert not worker._engine.running
        assert not worker._engine.slots._held
    assert sorted(done) == list(range(3000))


async def test_a_worker_that_is_not_notified_finds_tasks_by_polling(
    app: Sokka, working: Working, row: Row
) -> None:
    @app.task(topic="t")
    async def quick() -> int:
        return 1

    async with working("t", listen=False, poll=0.1):
        await asyncio.sleep(0)
        assert (await until_async(final(row, quick.enqueue())))["result"] == 1


async def test_an_idle_worker_is_woken_long_before_it_would_poll(
    app: Sokka, working: Working, row: Row, conn: Any
) -> None:
    @app.task(topic="t")
    async def quick() -> int:
        return 1

    async with working("t", poll=3600):
        await until_async(
            lambda: conn.execute("select count(*) from sokka.idle_workers").fetchone()[0]
        )
        assert (await until_async(final(row, quick.enqueue())))["result"] == 1
    assert conn.execute("select count(*) from sokka.idle_workers").fetchone() == (0,)

"""A worker whose connections, leases or database fail under it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import time_machine

from sokka_pg import Sokka, SyncTaskContext, TaskContext, WorkerOptions, calls
from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import BadArgument, DatabaseUnavailable, LeaseLost, SchemaMismatch
from sokka_pg.events import (
    Disconnected,
    FenceRefused,
    Finished,
    Lost,
    Reconnected,
    Released,
    Started,
)
from sokka_pg.lease_keeper import KeeperLine, LeaseKeeper
from sokka_pg.worker.link import Link
from tests.faults.conftest import Working
from tests.faults.proxy import BlackHole
from tests.faults.waiting import Seen, until_async

Row = Callable[[Any], dict[str, Any]]

KILL_ALL = (
    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid() and application_name = 'sokka_pg'"
)
KILL_LISTENER = KILL_ALL + " and query ilike 'listen%'"


@pytest.fixture
def hole(db: str) -> Iterator[BlackHole]:
    made = BlackHole(db)
    yield made
    made.close()


async def ended(row: Row, task: Any) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = row(task)
        return found if found["status"] in ("failed", "terminated") else None

    return await until_async(look, f"the end of {task.task_id}")


async def test_a_worker_that_loses_every_connection_keeps_its_lease(
    app: Sokka, working: Working, row: Row, conn: psycopg.Connection, seen: Seen
) -> None:
    go_on = asyncio.Event()

    @app.task(topic="t")
    async def slow(ctx: TaskContext) -> int:
        await go_on.wait()
        return ctx.attempt

    task = slow.enqueue()
    async with working("t", lease=2) as worker:
        await until_async(lambda: seen.all(Started))
        before = row(task)
        for _ in range(3):
            assert conn.execute(KILL_ALL).fetchall()
            expires_at = row(task)["lease_expires_at"]
            await until_async(lambda end=expires_at: row(task)["lease_expires_at"] > end)
        go_on.set()
        found = await ended(row, task)
        await until_async(lambda: seen.all(Finished))
    assert (found["result"], found["token"], found["pid"]) == (1, before["token"], worker.pid)
    assert not seen.all(Lost)
    assert len(seen.all(Started)) == 1


async def test_a_closed_listener_comes_back_and_tasks_are_found_meanwhile(
    app: Sokka, working: Working, row: Row, conn: psycopg.Connection, seen: Seen
) -> None:
    @app.task(topic="t")
    async def quick() -> int:
        return 1

    async with working("t", poll=0.2):
        await until_async(lambda: len(seen.all(Reconnected, part="listener")) == 1)
        assert conn.execute(KILL_LISTENER).fetchall()
        await until_async(lambda: seen.all(Disconnected, part="listener"))
        assert (await ended(row, quick.enqueue()))["result"] == 1
        await until_async(lambda: len(seen.all(Reconnected, part="listener")) == 2)
        assert (await ended(row, quick.enqueue()))["result"] == 1


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014", "57P01", "53100", "XX000"])
async def test_an_end_that_the_database_refuses_for_a_while_is_written_later(
    app: Sokka, working: Working, row: Row, conn: psycopg.Connection, code: str
) -> None:
    conn.execute("create sequence tries")
    conn.execute("grant all on sequence tries to public")
    conn.execute(f"""
        create function fail_twice() returns trigger language plpgsql as $$
        begin
            if nextval('public.tries') <= 2 then
                raise exception 'injected' using errcode = '{code}';
            end if;
            return new;
        end $$""")
    conn.execute(
        "create trigger fail_twice before insert on sokka.finished_tasks"
        " for each row execute function fail_twice()"
    )

    @app.task(topic="t")
    async def quick(ctx: TaskContext) -> int:
        return ctx.attempt

    async with working("t"):
        assert (await ended(row, quick.enqueue()))["result"] == 1


async def test_a_wrong_clock_of_the_worker_changes_nothing(
    app: Sokka, working: Working, row: Row, seen: Seen
) -> None:
    for shift in (300, -300):
        now = asyncio.Event()
        task = app.task(topic="t", kind=f"slow{shift}")(_taking_only_context(now))
        with time_machine.travel(_shifted(shift), tick=True):
            made = task.enqueue()
            async with working("t", lease=1):
                await until_async(lambda made=made: seen.all(Started, task_id=made.task_id))
                first = row(made)["lease_expires_at"]
                await until_async(
                    lambda made=made, first=first: row(made)["lease_expires_at"] > first
                )
                now.set()
                assert (await ended(row, made))["result"] == 1
    assert not seen.all(Lost)


def _taking_only_context(now: asyncio.Event) -> Any:
    async def slow(ctx: TaskContext) -> int:
        await now.wait()
        return ctx.attempt

    return slow


def _shifted(seconds: float) -> float:
    import time

    return time.time() + seconds


async def test_a_revoked_lease_cancels_its_handler_and_the_worker_goes_on(
    app: Sokka, working: Working, row: Row, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []

    @app.task(topic="t")
    async def slow(ctx: TaskContext) -> str:
        if ctx.attempt > 1:
            return "second"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(ctx.cancel_reason)
            with pytest.raises(LeaseLost):
                await ctx.progress({"late": True})
            with pytest.raises(LeaseLost):
                async with ctx.transaction():
                    told.append("in the transaction")
        return "first"

    task = slow.enqueue()
    with caplog.at_level(logging.WARNING, "sokka_pg.worker"):
        async with working("t", lease=1):
            await until_async(lambda: seen.all(Started))
            await _revoke(app, task)
            found = await ended(row, task)
            await until_async(lambda: seen.all(Lost))
    assert found["result"] == "second"
    assert found["progress"] is None
    assert told == ["lost"]
    assert [lost.reason.startswith("SK") for lost in seen.all(Lost)] == [True]
    assert len([r for r in caplog.records if "lost lease" in r.getMessage()]) == 1


async def _revoke(app: Sokka, task: Any) -> None:
    from sokka_pg.errors import TaskConcurrentlyUpdated

    for _ in range(20):
        found = await app.async_store.task(task.task_id)
        assert found is not None
        try:
            await app.async_store.revoke_lease(task.task_id, found.record_ver)
            return
        except TaskConcurrentlyUpdated:  # a heartbeat came between
            continue
    raise AssertionError("the heartbeats won every time")


async def test_a_late_end_is_refused_once_and_said_once(
    app: Sokka, working: Working, row: Row, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = asyncio.Event()

    @app.task(topic="t")
    async def slow(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            await go_on.wait()
        return f"attempt {ctx.attempt}"

    task = slow.enqueue()
    with caplog.at_level(logging.WARNING, "sokka_pg.worker"):
        async with working("t", lease=60):
            await until_async(lambda: seen.all(Started))
            await _revoke(app, task)
            await until_async(lambda: len(seen.all(Started)) == 2)
            go_on.set()
            found = await ended(row, task)
            await until_async(lambda: seen.all(FenceRefused))
    assert found["result"] == "attempt 2"
    assert len([r for r in caplog.records if "lost lease" in r.getMessage()]) == 1


async def test_a_worker_cut_off_stops_its_handlers_and_recovers_by_itself(
    db: str, hole: BlackHole, row: Row, seen: Seen
) -> None:
    app = Sokka(hole.url, observers=[seen])
    reasons: list[Any] = []

    @app.task(topic="t")
    async def slow(ctx: TaskContext) -> str:
        if ctx.attempt > 1:
            return "second"
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)
        return "first"

    @app.task(topic="t")
    def threaded(ctx: SyncTaskContext) -> str:
        if ctx.attempt == 1:
            assert ctx.wait_cancelled(30)
        return f"attempt {ctx.attempt}"

    tasks = slow.enqueue(), threaded.enqueue()
    worker = app.worker("t", options=WorkerOptions(lease=1, grace=0))
    run = asyncio.create_task(worker.run())
    await until_async(lambda: len(seen.all(Started)) == 2)
    hole.swallow()
    await until_async(lambda: len(seen.all(Lost, reason="watchdog")) == 2)
    await until_async(lambda: reasons)
    hole.heal()
    for task in tasks:
        await ended(row, task)
    worker.stop(now=True)
    await run
    await app.async_store.close()
    app.store.close()
    assert reasons == ["lost"]
    assert [row(task)["result"] for task in tasks] == ["second", "attempt 2"]


async def test_connections_that_die_unnoticed_cost_neither_lease_nor_result(
    hole: BlackHole, row: Row, seen: Seen
) -> None:
    app = Sokka(hole.url, observers=[seen])
    go_on = asyncio.Event()

    @app.task(topic="t")
    async def slow(ctx: TaskContext) -> int:
        await go_on.wait()
        return ctx.attempt

    task = slow.enqueue()
    worker = app.worker("t", options=WorkerOptions(lease=3, grace=0))
    run = asyncio.create_task(worker.run())
    await until_async(lambda: seen.all(Started))
    first = row(task)["lease_expires_at"]
    await until_async(lambda: row(task)["lease_expires_at"] > first)
    hole.forget()
    await until_async(lambda: seen.all(Reconnected, part="keeper"))
    go_on.set()
    found = await ended(row, task)
    worker.stop(now=True)
    await run
    await app.async_store.close()
    app.store.close()
    assert found["result"] == 1
    assert not seen.all(Lost)


async def test_a_stop_leaves_no_task_without_an_owner(
    app: Sokka, working: Working, row: Row, seen: Seen
) -> None:
    swallowed: list[int] = []

    @app.task(topic="t")
    async def slow(n: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if n == 0:
                raise RuntimeError("clean-up failed") from None
            if n == 1:
                swallowed.append(n)
                await asyncio.sleep(5)
            raise

    tasks = [slow.enqueue(n) for n in range(5)]
    async with working("t", grace=0):
        await until_async(lambda: len(seen.all(Started)) == 5)
    for task in tasks:
        found = row(task)
        assert (found["status"], found["pid"], found["attempt"]) == ("starting", None, 0)
    assert len(seen.all(Released)) == 5


async def test_a_cancelled_run_gives_everything_back_before_it_ends(
    app: Sokka, row: Row, seen: Seen
) -> None:
    @app.task(topic="t")
    async def slow() -> None:
        await asyncio.Event().wait()

    task = slow.enqueue()
    run = asyncio.create_task(app.worker("t").run())
    await until_async(lambda: seen.all(Started))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (row(task)["status"], row(task)["attempt"]) == ("starting", 0)


async def test_a_stop_within_the_grace_period_lets_handlers_finish(
    app: Sokka, row: Row, seen: Seen
) -> None:
    go_on = asyncio.Event()

    @app.task(topic="t")
    async def slow() -> str:
        await go_on.wait()
        return "done"

    task, later = slow.enqueue(), None
    worker = app.worker("t", options=WorkerOptions(grace=30, lease=1))
    run = asyncio.create_task(worker.run())
    await until_async(lambda: seen.all(Started))
    worker.stop()
    later = slow.enqueue()
    go_on.set()
    await run
    assert row(task)["result"] == "done"
    assert row(later)["status"] == "starting"


async def test_a_transaction_that_cannot_begin_is_our_error_behind_a_pooler_too(
    db: str, conn: psycopg.Connection
) -> None:
    options = ConnectionOptions(pooler=True)
    link = Link(db, "sokka", options, 5.0)
    line = KeeperLine(db, "sokka", options, timedelta(seconds=3))
    await link.send(calls.clock())
    line.run(calls.clock())
    conn.execute(KILL_ALL)
    try:
        with pytest.raises(DatabaseUnavailable):
            await link.send(calls.clock())
        with pytest.raises(DatabaseUnavailable):
            line.run(calls.clock())
    finally:
        await link.close()
        line.close()


async def test_a_worker_without_a_database_gives_up_after_its_startup_time() -> None:
    app = Sokka("postgresql://127.0.0.1:9/nowhere")

    @app.task
    async def quick() -> None: ...

    with pytest.raises(DatabaseUnavailable):
        await app.worker("t", options=WorkerOptions(startup=0.2)).run()


async def test_a_worker_without_a_schema_says_what_to_do(empty_db: str) -> None:
    app = Sokka(empty_db)

    @app.task
    async def quick() -> None: ...

    with pytest.raises(SchemaMismatch, match="migrate"):
        await app.worker("t").run()


def test_leases_that_cannot_be_kept_are_refused(app: Sokka, db: str) -> None:
    from datetime import timedelta

    with pytest.raises(BadArgument, match="lease"):
        WorkerOptions(lease=0.299).checked()
    with pytest.raises(BadArgument, match="lease"):
        LeaseKeeper(db, "sokka", "w", timedelta(milliseconds=299), ward=None)  # type: ignore[arg-type]

"""A worker whose role is held short: time-outs of the server, and a limit of connections."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sokka_pg import Sokka, SyncTaskContext, TaskContext, Worker, WorkerOptions
from sokka_pg.connections import ConnectionOptions
from sokka_pg.events import Disconnected, Finished, Lost, Reconnected, Started
from tests.faults import auditing
from tests.faults.waiting import Seen, until_async
from tests.servers import Server

TIMEOUTS = {
    "statement_timeout": "500ms", "lock_timeout": "200ms",
    "idle_in_transaction_session_timeout": "1s",
}
# No moment of a transaction is excused: the worker's own calls run no longer than
# a look takes, and a look finds them active, not idle.
_IDLE_INSIDE = """
    select pid, state, query from pg_stat_activity
     where usename = %s and state like 'idle in transaction%%'"""
_OURS = "select pid from pg_stat_activity where usename = %s and application_name = 'sokka_pg'"
_END_OURS = """
    select pg_terminate_backend(pid) from pg_stat_activity
     where usename = %s and application_name = 'sokka_pg'"""


@pytest.fixture
def role(server: Server, db: str, conn: psycopg.Connection) -> Iterator[tuple[str, str]]:
    """A role with the time-outs, and the URL by which it comes to the test's database."""
    name, password = f"sokka_short_{uuid.uuid4().hex[:12]}", secrets.token_hex(8)
    conn.execute(f"create role {name} login password '{password}'")
    for setting, value in TIMEOUTS.items():
        conn.execute(f"alter role {name} set {setting} = '{value}'")
    conn.execute(f"grant usage on schema sokka to {name}")
    conn.execute(f"grant execute on all functions in schema sokka to {name}")
    yield name, make_conninfo(db, user=name, password=password)
    conn.execute(_END_OURS, (name,))
    conn.execute(f"drop owned by {name}")
    conn.execute(f"drop role {name}")


@pytest.fixture
async def limited(role: tuple[str, str], seen: Seen) -> AsyncIterator[Sokka]:
    made = Sokka(role[1], observers=[seen], connections=ConnectionOptions(max_size=2))
    yield made
    made.store.close()
    await made.async_store.close()


async def stopped(worker: Worker, run: asyncio.Task[None]) -> None:
    worker.stop(now=True)
    await run


async def test_a_handler_outlasts_every_timeout_of_the_role_and_ends_once(
    limited: Sokka, role: tuple[str, str], conn: psycopg.Connection, seen: Seen
) -> None:
    name, _ = role
    in_force: list[Any] = []

    def looked() -> list[Any]:
        return conn.execute(_IDLE_INSIDE, (name,)).fetchall()

    @limited.task(topic="t")
    async def longer(ctx: TaskContext, looks: int) -> list[Any]:
        found = []
        for n in range(looks):
            found += looked()
            await ctx.progress({"n": n})
            await asyncio.sleep(0.1)
        return found

    @limited.task(topic="t")
    def blocking(ctx: SyncTaskContext, looks: int) -> list[Any]:
        found = []
        with psycopg.connect(role[1], autocommit=True) as same_role:
            in_force.extend(
                same_role.execute(f"show {setting}").fetchone() for setting in TIMEOUTS
            )
        for n in range(looks):
            ctx.wait_cancelled(0.1)
            ctx.progress({"n": n})
            found += looked()
        return found

    worker = limited.worker("t", options=WorkerOptions(lease=1, grace=0))
    run = asyncio.create_task(worker.run())
    longer.enqueue(30)
    blocking.enqueue(30)
    await until_async(lambda: len(seen.all(Finished)) == 2, "the end of both")
    await stopped(worker, run)
    assert in_force == [(value,) for value in TIMEOUTS.values()]
    results = conn.execute("select result, attempt from sokka.all_tasks").fetchall()
    assert results == [([], 1), ([], 1)]
    assert len(seen.all(Started)) == 2
    assert not seen.all(Lost)
    auditing.check_records(conn)


async def test_a_statement_that_a_lock_of_another_outlasts_is_tried_again(
    limited: Sokka, conn: psycopg.Connection, db: str, seen: Seen
) -> None:
    go_on = asyncio.Event()

    @limited.task(topic="t")
    async def slow(ctx: TaskContext) -> int:
        await go_on.wait()
        return ctx.attempt

    worker = limited.worker("t", options=WorkerOptions(lease=60, grace=0))
    run = asyncio.create_task(worker.run())
    task = slow.enqueue()
    await until_async(lambda: seen.all(Started), "a start")
    with psycopg.connect(db) as blocker:
        blocker.execute("lock table sokka.finished_tasks in access exclusive mode")
        go_on.set()
        await until_async(lambda: seen.all(Disconnected, part="desk"), "a refusal")
        blocker.rollback()
    await until_async(lambda: seen.all(Finished, task_id=task.task_id), "the end")
    await stopped(worker, run)
    assert len(seen.all(Started)) == 1
    auditing.check_records(conn)


async def test_a_worker_recovers_when_others_leave_it_connections_of_its_role_again(
    limited: Sokka, role: tuple[str, str], conn: psycopg.Connection, seen: Seen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name, url = role
    go_on = asyncio.Event()

    @limited.task(topic="t")
    async def slow(ctx: TaskContext) -> int:
        await go_on.wait()
        return ctx.attempt

    worker = limited.worker("t", options=WorkerOptions(lease=60, grace=0))
    run = asyncio.create_task(worker.run())
    task = slow.enqueue()
    await until_async(lambda: seen.all(Started), "a start")
    await until_async(lambda: seen.all(Reconnected, part="listener"), "the listener")
    with ExitStack() as others:
        for _ in range(6):
            others.enter_context(psycopg.connect(url, application_name="other"))
        # they fill the limit; the worker has more beyond it until these are ended
        conn.execute(f"alter role {name} connection limit 6")
        conn.execute(_END_OURS, (name,))
        await until_async(lambda: seen.all(Disconnected, part="desk"), "the end of the desk's")
        await until_async(lambda: "too many connections for role" in caplog.text, "a refusal")
        assert conn.execute(_OURS, (name,)).fetchall() == []
        go_on.set()
    await until_async(lambda: seen.all(Finished, task_id=task.task_id), "the end")
    assert seen.all(Reconnected, part="desk")
    later = await asyncio.to_thread(slow.enqueue)
    await until_async(lambda: seen.all(Finished, task_id=later.task_id), "the end of the next")
    pids = {pid for (pid,) in conn.execute("select pid from sokka.all_tasks").fetchall()}
    await stopped(worker, run)
    assert pids == {worker.pid}
    assert len(seen.all(Started)) == 2
    auditing.check_records(conn)

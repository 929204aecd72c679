"""Our own connections: their settings, restarts, forks, poolers, and what errors say."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from sokka_pg import embedded
from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import (
    DatabaseUnavailable,
    SokkaError,
    TransactionConflict,
    UsageError,
)
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore
from tests import servers
from tests.contract.callers import AsyncCaller, SyncCaller

Terminate = Callable[[str], int]


@pytest.fixture
def terminate_all(conn: psycopg.Connection) -> Terminate:
    """Ends the server processes of every connection with an application name."""

    def terminate(application: str) -> int:
        found = conn.execute(
            "select count(*) filter (where pg_terminate_backend(pid, 10000))"
            " from pg_stat_activity where application_name = %s and datname = current_database()",
            (application,),
        ).fetchone()
        return int(found[0]) if found else 0

    return terminate


def at_once(count: int, work: Callable[[], Any]) -> list[Any]:
    """Results (or errors) of the same work in as many threads, held at once."""
    barrier = threading.Barrier(count)

    def one(_: int) -> Any:
        barrier.wait(20)
        try:
            return work()
        except SokkaError as error:
            return error

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def failures(found: list[Any]) -> list[Exception]:
    return [each for each in found if isinstance(each, Exception)]


def test_after_every_connection_was_ended_nobody_gets_an_error(
    db: str, terminate_all: Terminate
) -> None:
    options = ConnectionOptions(max_size=5, application_name="many")
    with PgTaskStore(db, options=options) as store:
        at_once(5, lambda: store.create_task("t"))
        assert terminate_all("many") >= 1
        assert [type(found) for found in at_once(5, lambda: store.task(uuid4()))] == [
            type(None)
        ] * 5
        # Not even those who may not repeat anything: the dead were noticed before use.
        terminate_all("many")
        assert not [
            f for f in at_once(5, lambda: store.create_task("t")) if isinstance(f, Exception)
        ]


async def test_the_same_holds_for_the_async_store(db: str, terminate_all: Terminate) -> None:
    options = ConnectionOptions(max_size=5, application_name="many")
    async with AsyncPgTaskStore(db, options=options) as store:
        await asyncio.gather(*(store.create_task("t") for _ in range(5)))
        assert terminate_all("many") >= 1
        await asyncio.gather(*(store.create_task("t") for _ in range(5)))


def test_a_restarted_server_costs_each_caller_one_call_at_most(tmp_path: Path) -> None:
    with embedded.Server.start(tmp_path / "data", settings=servers.LAUNCH_SETTINGS) as server:
        servers.load_newest(server.url())
        with PgTaskStore(server.url(), options=ConnectionOptions(max_size=10)) as store:
            at_once(10, lambda: store.create_task("t"))
            server.restart()
            first = at_once(10, lambda: store.create_task("t"))
            assert all(
                not isinstance(f, SokkaError | None) or isinstance(f, DatabaseUnavailable)
                for f in first
            )
            again = at_once(10, lambda: store.create_task("t"))
            assert not [found for found in again if isinstance(found, Exception)]

            server.stop()
            with pytest.raises(DatabaseUnavailable):
                store.create_task("t")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("kind", [SyncCaller, AsyncCaller], ids=["sync", "async"])
def test_own_transactions_are_read_committed_whatever_the_roles_default(
    db: str, conn: psycopg.Connection, level: str, kind: Any
) -> None:
    conn.execute(
        sql.SQL("alter database {} set default_transaction_isolation to {}").format(
            sql.Identifier(conn.info.dbname), sql.Literal(level)
        )
    )
    caller = kind(db)
    try:
        for _ in range(3):
            caller("create_task", "t")
            task = caller("reserve_task", "t", "w1", 60)
            caller("extend_lease", task)
            caller("terminate", task)
    finally:
        caller.close()
    with PgTaskStore(db) as store:
        store.create_task("t")
        task = store.reserve_task("t", "w1", 60)
        assert task is not None
        with store.transaction(task, terminate=True) as fenced:
            found = fenced.connection.execute("show transaction_isolation").fetchone()
            assert found == ("read committed",)


def test_many_workers_on_one_topic_share_it_without_error_under_a_serializable_default(
    db: str, conn: psycopg.Connection
) -> None:
    conn.execute(
        sql.SQL("alter database {} set default_transaction_isolation to serializable").format(
            sql.Identifier(conn.info.dbname)
        )
    )
    with PgTaskStore(db, options=ConnectionOptions(max_size=8)) as store:
        store.create_tasks([{"topic": "t", "data": n} for n in range(80)])

        def work() -> list[UUID]:
            done = []
            while task := store.reserve_task("t", f"w{threading.get_ident()}", 60):
                store.terminate(task)
                done.append(task.task_id)
            return done

        done = [task_id for part in at_once(8, work) for task_id in part]
    assert len(done) == len(set(done)) == 80


def test_behind_a_pooler_nothing_of_a_session_is_needed(db: str, conn: psycopg.Connection) -> None:
    conn.execute(
        sql.SQL("alter database {} set default_transaction_isolation to serializable").format(
            sql.Identifier(conn.info.dbname)
        )
    )
    options = ConnectionOptions(pooler=True, application_name="pooled")
    with PgTaskStore(db, options=options) as store:
        for _ in range(10):
            store.create_task("t", {"n": 1}, timeout=5)
            task = store.reserve_task("t", "w1", 60)
            assert task is not None
            with store.transaction(task, terminate=True):
                pass
        with store._source.connection() as connection:
            found = connection.execute("select count(*) from pg_prepared_statements").fetchone()
        assert found == (0,)


def test_a_pool_of_the_callers_is_used_as_it_is_and_left_open(db: str) -> None:
    with ConnectionPool(
        db, min_size=1, max_size=2, open=True, kwargs={"autocommit": False}
    ) as pool:
        with PgTaskStore(pool) as store:
            store.create_task("t")
            task = store.reserve_task("t", "w1", 60)
            assert task is not None
            with store.transaction(task, terminate=True) as fenced:
                fenced.connection.execute("select 1")
        with pool.connection() as connection:
            assert connection.isolation_level is None
            assert connection.execute("select 1").fetchone() == (1,)
    with pytest.raises(UsageError):
        PgTaskStore(pool, options=ConnectionOptions())


async def test_an_async_pool_of_the_callers_is_used_as_it_is(db: str) -> None:
    async with AsyncConnectionPool(db, min_size=1, max_size=2, open=False) as pool:
        store = AsyncPgTaskStore(pool)
        await store.create_task("t")
        task = await store.reserve_task("t", "w1", 60)
        assert task is not None
        async with store.transaction(task, terminate=True):
            pass
        await store.close()
        with pytest.raises(UsageError):
            PgTaskStore(pool)  # type: ignore[arg-type]


def test_one_async_store_serves_one_event_loop_after_the_other(db: str) -> None:
    store = AsyncPgTaskStore(db)

    async def once() -> None:
        await store.create_task("t")
        await store.close()

    asyncio.run(once())
    asyncio.run(once())


def test_a_call_waits_for_a_free_connection_for_a_bounded_time(db: str) -> None:
    options = ConnectionOptions(max_size=1, wait=timedelta(milliseconds=50))
    with PgTaskStore(db, options=options) as store:
        store.create_task("t")
        task = store.reserve_task("t", "w1", 60)
        assert task is not None
        with store.transaction(task), pytest.raises(DatabaseUnavailable) as refused:
            store.task(task.task_id)
        assert refused.value.detail["sent"] is False


def test_a_connection_that_idles_in_a_fence_too_long_is_ended_and_replaced(
    db: str, until: Callable[..., None]
) -> None:
    options = ConnectionOptions(
        idle_in_transaction=timedelta(milliseconds=50), application_name="idler"
    )
    with PgTaskStore(db, options=options) as store:
        store.create_task("t")
        task = store.reserve_task("t", "w1", 60)
        with pytest.raises(DatabaseUnavailable), store.transaction(task, terminate=True):
            until(
                "select not exists (select from pg_stat_activity where application_name = 'idler')"
            )
        found = store.task(task.task_id)
        assert found is not None
        assert found.status == "running"


def test_a_server_gone_read_only_is_unavailable_and_its_connection_thrown_away(
    db: str, conn: psycopg.Connection
) -> None:
    with PgTaskStore(db) as store:
        store.create_task("t")
        database = sql.Identifier(conn.info.dbname)
        conn.execute(
            sql.SQL("alter database {} set default_transaction_read_only to on").format(database)
        )
        store._source.close()
        with pytest.raises(DatabaseUnavailable) as refused:
            store.create_task("t")
        assert refused.value.detail["sqlstate"] == "25006"
        conn.execute("set default_transaction_read_only to off")
        conn.execute(
            sql.SQL("alter database {} reset default_transaction_read_only").format(database)
        )
        # The pool may have replaced the connection while the database was still read-only:
        # every refused call throws one away, so the calls soon come through.
        for refusals_left in reversed(range(3)):
            try:
                store.create_task("t")
                break
            except DatabaseUnavailable:
                assert refusals_left


def test_conflicts_are_repeated_out_of_the_callers_sight(
    db: str, conn: psycopg.Connection, store: PgTaskStore
) -> None:
    conn.execute("create sequence public.conflicts")
    conn.execute(
        """create function public.conflict() returns trigger language plpgsql as $$
        begin
            if nextval('public.conflicts') <= 3 then
                raise exception 'made up' using errcode = '40P01';
            end if;
            return new;
        end $$"""
    )
    conn.execute(
        "create trigger conflict before insert on sokka.tasks"
        " for each row execute function public.conflict()"
    )
    store.create_task("t")
    conn.execute("alter sequence public.conflicts restart")
    with psycopg.connect(db) as connection, pytest.raises(TransactionConflict):
        store.create_task("t", connection=connection)


FORKING = """
    import os, sys
    from uuid import uuid4
    from sokka_pg.store import PgTaskStore
    from sokka_pg.store_async import AsyncPgTaskStore
    import asyncio

    store = PgTaskStore(sys.argv[1])
    async_store = AsyncPgTaskStore(sys.argv[1])
    loop = asyncio.Runner()
    mine = store.create_task("t", {"of": "parent"})
    loop.run(async_store.task(mine.task_id))
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            wrong = 0
            for n in range(25):
                task_id = uuid4()
                made = store.create_task("t", {"of": child, "n": n}, task_id=task_id)
                found = store.task(task_id)
                wrong += made.task_id != task_id or found.data != {"of": child, "n": n}
            async def more():
                made = await async_store.create_task("t", {"of": child})
                found = await async_store.task(made.task_id)
                await async_store.close()
                return found.data != {"of": child}
            wrong += asyncio.run(more())
            store.close()
            os._exit(1 if wrong else 0)
        children.append(pid)
    for n in range(50):
        assert store.task(mine.task_id).data == {"of": "parent"}
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    assert codes == [0, 0, 0, 0], codes
    assert store.task(mine.task_id).data == {"of": "parent"}
    assert loop.run(async_store.task(mine.task_id)).data == {"of": "parent"}
    loop.run(async_store.close()); loop.close()
    store.close()
"""


def test_a_forked_process_opens_connections_of_its_own(db: str, store: PgTaskStore) -> None:
    script = textwrap.dedent(FORKING)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, db],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    stat = store.topics("t")[0]
    assert stat.starting == 1 + 4 * 26


def test_two_schemas_in_one_database_are_two_queues(db: str, server: servers.Server) -> None:
    from sokka_pg import schema

    with psycopg.connect(db, autocommit=True) as connection:
        schema.load(connection, "other")
    with PgTaskStore(db) as one, PgTaskStore(db, "other") as two:
        created = one.create_task("t")
        assert two.task(created.task_id) is None
        assert two.reserve_task("t", "w1") is None
        assert one.reserve_task("t", "w1") is not None


async def test_calls_that_are_cancelled_cost_no_connection(db: str) -> None:
    """psycopg's pool forgets one that it hands to a caller who is cancelled meanwhile."""
    options = ConnectionOptions(max_size=3, wait=timedelta(seconds=10))
    async with AsyncPgTaskStore(db, options=options) as store:

        async def given_up() -> None:
            asked = asyncio.create_task(store.topics())
            await asyncio.sleep(random.uniform(0, 0.004))
            asked.cancel()
            await asyncio.wait([asked])

        await store.topics()
        for _ in range(120):
            await asyncio.gather(*(given_up() for _ in range(12)))
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(store._source.connection())


async def test_a_call_that_finds_a_connection_free_needs_no_task(db: str) -> None:
    made = []

    def noted(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **options)

    async with AsyncPgTaskStore(db) as store:
        await store.create_task("t")
        loop = asyncio.get_running_loop()
        loop.set_task_factory(noted)
        try:
            for _ in range(3):
                await store.create_task("t")
        finally:
            loop.set_task_factory(None)
        assert made == []


async def test_a_call_that_waits_for_a_connection_is_told_when_none_comes(db: str) -> None:
    options = ConnectionOptions(max_size=1, wait=timedelta(milliseconds=50))
    async with AsyncPgTaskStore(db, options=options) as store:
        async with store._source.connection():
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable):
                    await store.topics()
        assert await store.topics() == []

"""Fenced transactions: a stale lease writes nothing; effects and end are both or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from sokka_pg import calls
from sokka_pg.connections import run_on
from sokka_pg.errors import (
    AlreadyDone,
    Busy,
    LeaseExpired,
    StaleToken,
    UnfencedWrite,
    UsageError,
    WrongOwner,
)
from sokka_pg.integrations.sqlalchemy import (
    fenced_async_connection,
    fenced_async_session,
    fenced_connection,
    fenced_session,
)
from sokka_pg.model import LeasedTask, Status
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore

Row = Callable[[UUID], dict[str, Any]]


class Boom(Exception):
    pass


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"

    n: Mapped[int] = mapped_column(primary_key=True)


def alchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


class Through:
    """One way into a fenced transaction, with a write through it."""

    def __init__(self, url: str) -> None:
        self.url = url


class StoreItself(Through):
    @contextmanager
    def fenced(self, lease: Any, terminate: bool = False) -> Any:
        with PgTaskStore(self.url) as store, store.transaction(lease, terminate=terminate) as found:
            yield found

    def write(self, fenced: Any, n: int) -> None:
        fenced.connection.execute("insert into effects values (%s)", (n,))


class AlchemySession(Through):
    @contextmanager
    def fenced(self, lease: Any, terminate: bool = False) -> Any:
        with (
            Session(create_engine(alchemy(self.url), poolclass=NullPool)) as session,
            fenced_session(session, lease, terminate=terminate) as found,
        ):
            yield found

    def write(self, fenced: Any, n: int) -> None:
        # Not flushed: the fence must see to that before the task's end.
        fenced.connection.add(Effect(n=n))


class AlchemyConnection(Through):
    @contextmanager
    def fenced(self, lease: Any, terminate: bool = False) -> Any:
        engine = create_engine(alchemy(self.url), poolclass=NullPool)
        with (
            engine.connect() as connection,
            fenced_connection(connection, lease, terminate=terminate) as found,
        ):
            yield found

    def write(self, fenced: Any, n: int) -> None:
        fenced.connection.execute(text("insert into effects values (:n)"), {"n": n})


class AsyncThrough(Through):
    """Drives an async context manager from a test without a loop of its own."""

    @contextmanager
    def fenced(self, lease: Any, terminate: bool = False) -> Any:
        with asyncio.Runner() as self.runner:
            block = self.fenced_async(lease, terminate)
            found = self.runner.run(block.__aenter__())
            try:
                yield found
            except BaseException as error:
                if not self.runner.run(block.__aexit__(type(error), error, None)):
                    raise
            else:
                self.runner.run(block.__aexit__(None, None, None))


class AsyncStore(AsyncThrough):
    @asynccontextmanager
    async def fenced_async(self, lease: Any, terminate: bool) -> Any:
        async with (
            AsyncPgTaskStore(self.url) as store,
            store.transaction(lease, terminate=terminate) as found,
        ):
            yield found

    def write(self, fenced: Any, n: int) -> None:
        self.runner.run(fenced.connection.execute("insert into effects values (%s)", (n,)))


class AlchemyAsyncSession(AsyncThrough):
    @asynccontextmanager
    async def fenced_async(self, lease: Any, terminate: bool) -> Any:
        engine = create_async_engine(alchemy(self.url), poolclass=NullPool)
        async with (
            AsyncSession(engine) as session,
            fenced_async_session(session, lease, terminate=terminate) as found,
        ):
            yield found

    def write(self, fenced: Any, n: int) -> None:
        fenced.connection.add(Effect(n=n))


class AlchemyAsyncConnection(AsyncThrough):
    @asynccontextmanager
    async def fenced_async(self, lease: Any, terminate: bool) -> Any:
        engine = create_async_engine(alchemy(self.url), poolclass=NullPool)
        async with (
            engine.connect() as connection,
            fenced_async_connection(connection, lease, terminate=terminate) as found,
        ):
            yield found

    def write(self, fenced: Any, n: int) -> None:
        statement = text("insert into effects values (:n)")
        self.runner.run(fenced.connection.execute(statement, {"n": n}))


WAYS = [
    StoreItself,
    AsyncStore,
    AlchemySession,
    AlchemyConnection,
    AlchemyAsyncSession,
    AlchemyAsyncConnection,
]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, db: str, conn: psycopg.Connection) -> Any:
    conn.execute("create table effects (n int primary key)")
    return request.param(db)


@pytest.fixture
def effects(conn: psycopg.Connection) -> Callable[[], list[int]]:
    return lambda: [n for (n,) in conn.execute("select n from effects order by n").fetchall()]


@pytest.fixture
def task(store: PgTaskStore) -> LeasedTask:
    store.create_task("t", {"n": 1})
    found = store.reserve_task("t", "w1", 60)
    assert found is not None
    return found


def test_writes_and_the_end_of_the_task_are_one(
    way: Any, task: LeasedTask, effects: Any, row: Row
) -> None:
    with way.fenced(task, terminate=True) as fenced:
        way.write(fenced, 1)
        fenced.result = {"effects": 1}
        assert effects() == []
    assert effects() == [1]
    assert row(task.task_id)["status"] == "terminated"
    assert row(task.task_id)["result"] == {"effects": 1}
    assert fenced.outcome.status == Status.TERMINATED


@pytest.mark.parametrize("accident", [Boom, KeyboardInterrupt, SystemExit])
def test_an_accident_in_the_block_undoes_both(
    way: Any, task: LeasedTask, effects: Any, row: Row, accident: type[BaseException]
) -> None:
    with pytest.raises(accident), way.fenced(task, terminate=True) as fenced:
        way.write(fenced, 1)
        raise accident
    assert effects() == []
    assert row(task.task_id)["status"] == "running"


def test_without_the_end_the_writes_are_committed_and_the_task_runs_on(
    way: Any, task: LeasedTask, effects: Any, row: Row
) -> None:
    with way.fenced(task) as fenced:
        way.write(fenced, 1)
    assert effects() == [1]
    assert row(task.task_id)["status"] == "running"
    assert fenced.outcome is None


def test_a_ghost_writes_nothing(
    way: Any, task: LeasedTask, store: PgTaskStore, effects: Any, row: Row
) -> None:
    store.revoke_lease(task.task_id, row(task.task_id)["record_ver"])
    assert store.reserve_task("t", "w2", 60) is not None
    with pytest.raises(WrongOwner), way.fenced(task, terminate=True) as fenced:
        way.write(fenced, 1)
    assert effects() == []


def test_an_old_token_and_a_finished_task_open_nothing(
    way: Any, task: LeasedTask, store: PgTaskStore, effects: Any
) -> None:
    with pytest.raises(StaleToken), way.fenced((task.task_id, "w1", task.token - 1)) as fenced:
        way.write(fenced, 1)
    store.terminate(task)
    with pytest.raises(AlreadyDone), way.fenced(task) as fenced:
        way.write(fenced, 1)
    assert effects() == []


def test_an_expired_lease_opens_nothing_even_if_nobody_took_over(
    way: Any, store: PgTaskStore, effects: Any, expired: Callable[[UUID], None]
) -> None:
    store.create_task("t")
    task = store.reserve_task("t", "w1", 0.001)
    assert task is not None
    expired(task.task_id)
    with pytest.raises(LeaseExpired), way.fenced(task) as fenced:
        way.write(fenced, 1)
    assert effects() == []


def test_a_result_that_is_no_json_undoes_the_writes(
    way: Any, task: LeasedTask, effects: Any, row: Row
) -> None:
    with pytest.raises(ValueError, match="result at"), way.fenced(task, terminate=True) as fenced:
        way.write(fenced, 1)
        fenced.result = {"when": object()}
    assert effects() == []
    assert row(task.task_id)["status"] == "running"


def test_an_error_at_the_commit_undoes_the_end(
    way: Any, task: LeasedTask, conn: psycopg.Connection, effects: Any, row: Row
) -> None:
    conn.execute(
        "alter table effects add refers int references effects deferrable initially deferred"
    )
    conn.execute("alter table effects alter refers set default 99")
    with pytest.raises(Exception, match="foreign key"), way.fenced(task, terminate=True) as fenced:
        way.write(fenced, 1)
    assert effects() == []
    assert row(task.task_id)["status"] == "running"


def test_while_it_is_open_heartbeats_pass_and_nobody_takes_over(
    way: Any, task: LeasedTask, store: PgTaskStore, row: Row
) -> None:
    with way.fenced(task):
        store.extend_lease(task, duration=90)
        store.report_progress(task, progress=1)
        with pytest.raises(Busy):
            store.revoke_lease(task.task_id, row(task.task_id)["record_ver"])
    store.revoke_lease(task.task_id, row(task.task_id)["record_ver"])


def test_a_guarded_table_is_written_only_under_a_lease(
    store: PgTaskStore, conn: psycopg.Connection, task: LeasedTask
) -> None:
    conn.execute("create table effects (n int primary key)")
    run_on(conn, calls.guard_table("public.effects"), "sokka")
    with pytest.raises(psycopg.Error) as refused:
        conn.execute("insert into effects values (1)")
    assert refused.value.sqlstate == UnfencedWrite.sqlstate
    with store.transaction(task) as fenced:
        fenced.connection.execute("insert into effects values (2)")
    run_on(conn, calls.unguard_table("public.effects"), "sokka")
    conn.execute("insert into effects values (3)")
    assert conn.execute("select array_agg(n order by n) from effects").fetchone() == ([2, 3],)


def test_a_session_that_is_in_a_transaction_already_is_refused(db: str, task: LeasedTask) -> None:
    with Session(create_engine(alchemy(db), poolclass=NullPool)) as session:
        session.execute(text("select 1"))
        with (
            pytest.raises(UsageError, match="transaction of its own"),
            fenced_session(session, task),
        ):
            pass


def test_psycopgs_rollback_ends_the_block_quietly_and_undoes_it(
    db: str, store: PgTaskStore, conn: psycopg.Connection, task: LeasedTask, row: Row
) -> None:
    conn.execute("create table effects (n int)")
    with store.transaction(task, terminate=True) as fenced:
        fenced.connection.execute("insert into effects values (1)")
        raise psycopg.Rollback
    assert conn.execute("select count(*) from effects").fetchone() == (0,)
    assert row(task.task_id)["status"] == "running"


def test_a_callers_own_database_error_stays_the_callers(
    store: PgTaskStore, task: LeasedTask
) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable), store.transaction(task) as fenced:
        fenced.connection.execute("select * from no_such_table")
    assert store.task(task.task_id) is not None, "the connection is of use again"


async def test_a_cancelled_handler_leaves_nothing_behind(
    async_store: AsyncPgTaskStore, conn: psycopg.Connection, task: LeasedTask, row: Row
) -> None:
    conn.execute("create table effects (n int)")
    inside = asyncio.Event()

    async def handler() -> None:
        async with async_store.transaction(task, terminate=True) as fenced:
            await fenced.connection.execute("insert into effects values (1)")
            inside.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(handler())
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert conn.execute("select count(*) from effects").fetchone() == (0,)
    assert row(task.task_id)["status"] == "running"
    assert await async_store.task(task.task_id) is not None

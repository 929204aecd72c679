"""Verbs in the caller's own transaction: psycopg and SQLAlchemy, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from sokka_pg.errors import (
    AlreadyDone,
    BadArgument,
    SchemaMismatch,
    StaleToken,
    TaskAlreadyExists,
    UsageError,
    WrongIsolation,
)
from sokka_pg.model import Settlement
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore

NESTED = {"text": 'quotes " \\ and é𝄞 :name %s {0}', "numbers": [1, -0.5, 10**30], "none": None}


def alchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def psycopg_connection(url: str) -> Iterator[Any]:
    # A row factory of the caller's must not disturb ours, nor ours the caller's.
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield connection


@contextmanager
def psycopg_client_cursor(url: str) -> Iterator[Any]:
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        yield connection


@contextmanager
def sqlalchemy_connection(url: str) -> Iterator[Any]:
    with create_engine(alchemy(url), poolclass=NullPool).connect() as connection:
        yield connection


@contextmanager
def sqlalchemy_session(url: str) -> Iterator[Any]:
    with Session(create_engine(alchemy(url), poolclass=NullPool)) as session:
        yield session


@contextmanager
def sqlalchemy_scoped(url: str) -> Iterator[Any]:
    session = scoped_session(sessionmaker(create_engine(alchemy(url), poolclass=NullPool)))
    yield session
    session.remove()


SYNC = [
    psycopg_connection,
    psycopg_client_cursor,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_scoped,
]


@asynccontextmanager
async def async_psycopg_connection(url: str) -> Any:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def async_sqlalchemy_connection(url: str) -> Any:
    engine = create_async_engine(alchemy(url), poolclass=NullPool)
    async with engine.connect() as connection:
        yield connection


@asynccontextmanager
async def async_sqlalchemy_session(url: str) -> Any:
    engine = create_async_engine(alchemy(url), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield session


@asynccontextmanager
async def async_sqlalchemy_over_asyncpg(url: str) -> Any:
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://", 1), poolclass=NullPool
    )
    async with engine.connect() as connection:
        yield connection


ASYNC = [
    async_psycopg_connection,
    async_sqlalchemy_connection,
    async_sqlalchemy_session,
]
# Any driver will do under SQLAlchemy; this one is stricter about types than most.
if find_spec("asyncpg"):
    ASYNC.append(async_sqlalchemy_over_asyncpg)


def name(maker: Callable[..., Any]) -> str:
    return maker.__name__


@pytest.mark.parametrize("begun", SYNC, ids=name)
def test_a_task_exists_if_and_only_if_its_callers_transaction_committed(
    db: str, store: PgTaskStore, begun: Any
) -> None:
    with begun(db) as connection:
        undone = store.create_task("t", NESTED, task_id=uuid4(), connection=connection)
        assert store.task(undone.task_id, connection=connection) == undone.task
        assert store.task(undone.task_id) is None, "seen before the commit"
        connection.rollback()
        assert store.task(undone.task_id) is None, "seen after a rollback"

        many = store.create_tasks(
            [{"topic": "t", "data": n} for n in range(3)], connection=connection
        )
        done = store.create_task("t", NESTED, headers={"a": "b"}, timeout=5, connection=connection)
        connection.commit()
    assert store.task(done.task_id) == done.task
    assert done.task.data == NESTED
    assert all(store.task(each.task_id) for each in many)


@pytest.mark.parametrize("begun", ASYNC, ids=name)
async def test_the_same_holds_for_async_callers(
    db: str, async_store: AsyncPgTaskStore, begun: Any
) -> None:
    async with begun(db) as connection:
        undone = await async_store.create_task("t", NESTED, connection=connection)
        assert await async_store.task(undone.task_id, connection=connection) == undone.task
        assert await async_store.task(undone.task_id) is None
        await connection.rollback()
        assert await async_store.task(undone.task_id) is None

        done = await async_store.create_task("t", NESTED, timeout=5, connection=connection)
        await connection.commit()
    assert await async_store.task(done.task_id) == done.task


@pytest.mark.parametrize("begun", SYNC, ids=name)
def test_lease_verbs_work_in_the_callers_transaction_and_vanish_with_it(
    db: str, store: PgTaskStore, begun: Any
) -> None:
    task_id = store.create_task("t", {"n": 1}).task_id
    with begun(db) as connection:
        leased = store.reserve_tasks(["t"], "w1", 5, 60, connection=connection)
        assert [each.task_id for each in leased] == [task_id]
        verdicts = store.settle_tasks(
            "w1",
            [Settlement(task_id, leased[0].token, "terminate", NESTED)],
            connection=connection,
        )
        assert verdicts[0].verdict == "ok"
        assert store.task(task_id, connection=connection).result == NESTED
        connection.rollback()
    found = store.task(task_id)
    assert found is not None
    assert (found.status, found.attempt) == ("starting", 0)


@pytest.mark.parametrize("begun", SYNC, ids=name)
def test_refusals_are_ours_whatever_carried_the_call(
    db: str, store: PgTaskStore, begun: Any
) -> None:
    created = store.create_task("t", {"n": 1}, task_id=uuid4())
    task = store.reserve_task("t", "w1", 60)
    assert task is not None
    with begun(db) as connection:
        with pytest.raises(TaskAlreadyExists):
            store.create_task("t", task_id=created.task_id, connection=connection)
        connection.rollback()
        with pytest.raises(StaleToken) as refused:
            store.terminate(task.task_id, "w1", task.token - 1, connection=connection)
        connection.rollback()
        assert refused.value.detail["token"] == task.token
        with pytest.raises(BadArgument):
            store.create_task("t", float("nan"), connection=connection)
        store.terminate(task, connection=connection)
        with pytest.raises(AlreadyDone):
            store.terminate(task, connection=connection)


@pytest.mark.parametrize("begun", ASYNC, ids=name)
async def test_refusals_are_ours_for_async_callers_too(
    db: str, async_store: AsyncPgTaskStore, begun: Any
) -> None:
    await async_store.create_task("t", {"n": 1})
    task = await async_store.reserve_task("t", "w1", 60)
    assert task is not None
    async with begun(db) as connection:
        with pytest.raises(StaleToken) as refused:
            await async_store.terminate(task.task_id, "w1", task.token - 1, connection=connection)
        assert refused.value.detail["token"] == task.token
        await connection.rollback()


def test_a_batch_travels_through_a_session_whole(db: str, store: PgTaskStore) -> None:
    store.create_tasks([{"topic": "t", "data": n} for n in range(4)])
    with sqlalchemy_session(db) as session:
        first = store.settle_and_reserve("w1", [], ["t"], 2, 60, connection=session)
        settled = [
            Settlement(each.task_id, each.token, verb, argument)
            for each, verb, argument in zip(
                first.leases, ("terminate", "fail"), (NESTED, {"message": "x"}), strict=True
            )
        ]
        second = store.settle_and_reserve("w1", settled, ["t"], 2, 60, connection=session)
        session.commit()
    assert [each.verdict for each in second.verdicts] == ["ok", "ok"]
    assert len(second.leases) == 2
    found = store.task(first.leases[0].task_id)
    assert found is not None
    assert found.result == NESTED


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_enqueueing_works_in_any_isolation_and_lease_verbs_say_what_they_need(
    db: str, store: PgTaskStore, level: str
) -> None:
    engine = create_engine(alchemy(db), poolclass=NullPool, isolation_level=level)
    with engine.connect() as connection:
        created = store.create_task("t", {"n": 1}, connection=connection)
        connection.commit()
        with pytest.raises(WrongIsolation):
            store.reserve_task("t", "w1", connection=connection)
    assert store.task(created.task_id) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard", "TimeZone": "America/New_York"},
        {"IntervalStyle": "postgres_verbose", "TimeZone": "Asia/Kathmandu"},
        {"IntervalStyle": "iso_8601", "extra_float_digits": "-5"},
    ],
    ids=["sql_standard", "verbose", "iso_8601"],
)
def test_session_settings_of_the_role_change_no_answer(
    db: str, conn: psycopg.Connection, store: PgTaskStore, settings: dict[str, str]
) -> None:
    created = store.create_task("t", NESTED, timeout=90_061.5, headers={"a": "b"})
    for setting, value in settings.items():
        conn.execute(
            sql.SQL("alter database {} set {} to {}").format(
                sql.Identifier(conn.info.dbname), sql.Identifier(setting), sql.Literal(value)
            )
        )
    with PgTaskStore(db) as other:
        assert other.task(created.task_id) == created.task
    if "DateStyle" not in settings:
        with psycopg.connect(db) as connection:
            assert store.task(created.task_id, connection=connection) == created.task
        with sqlalchemy_session(db) as session:
            assert store.task(created.task_id, connection=session) == created.task


def test_a_connection_of_the_wrong_sort_is_refused_by_name(db: str, store: PgTaskStore) -> None:
    async def run() -> None:
        async with AsyncPgTaskStore(db) as async_store:
            with psycopg.connect(db) as connection, pytest.raises(UsageError, match="PgTaskStore"):
                await async_store.task(uuid4(), connection=connection)
            with pytest.raises(UsageError, match="must be a psycopg or SQLAlchemy"):
                await async_store.task(uuid4(), connection="postgresql://")
            engine = create_async_engine(alchemy(db), poolclass=NullPool)
            async with engine.connect() as connection:
                assert isinstance(connection, AsyncConnection)
                with pytest.raises(UsageError, match="AsyncPgTaskStore"):
                    store.task(uuid4(), connection=connection)

    asyncio.run(run())
    with pytest.raises(UsageError, match="must be a psycopg or SQLAlchemy"):
        store.task(uuid4(), connection=object())


def test_a_missing_schema_says_migrate(empty_db: str) -> None:
    with PgTaskStore(empty_db) as store, pytest.raises(SchemaMismatch, match="sokka migrate"):
        store.create_task("t")
    engine = create_engine(alchemy(empty_db), poolclass=NullPool)
    with PgTaskStore(empty_db) as store, engine.connect() as connection:
        with pytest.raises(SchemaMismatch):
            store.task(UUID(int=1), connection=connection)
        connection.rollback()
        assert connection.execute(text("select 1")).scalar() == 1

"""Any number of tasks in batches, by both stores: what is stored, and what is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, IsolationLevel, sql
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import BadArgument, DatabaseUnavailable, UniqueKeyTaken
from sokka_pg.model import BatchesCreated, CreatedId
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore
from tests.contract.callers import AsyncCaller, SyncCaller
from tests.contract.proxy import LossyProxy

Maker = Callable[..., Any]
COUNT = "select count(*) from sokka.tasks"


def specs(count: int, **options: Any) -> Iterator[dict[str, Any]]:
    return ({"topic": "t", "kind": "k", **options, "data": n} for n in range(count))


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest, db: str) -> Maker:
    """``create_tasks_in_batches`` of a store of either kind, made for the call."""

    def create(given: Any, *, url: str = db, pooler: bool = False, **options: Any) -> Any:
        connections = ConnectionOptions(pooler=pooler)
        if request.param == "sync":
            with PgTaskStore(url, options=connections) as store:
                return store.create_tasks_in_batches(given, **options)

        async def in_a_loop() -> Any:
            async with AsyncPgTaskStore(url, options=connections) as store:
                return await store.create_tasks_in_batches(given, **options)

        return asyncio.run(in_a_loop())

    return create


@pytest.mark.parametrize("pooler", [False, True], ids=["own", "pooler"])
@pytest.mark.parametrize("size", [1, 7, 100, 1_000])
def test_everything_is_stored_in_order_and_told_of(
    make: Maker, conn: psycopg.Connection, size: int, pooler: bool
) -> None:
    told: list[CreatedId] = []
    made = make(specs(250), batch_size=size, each=told.extend, pooler=pooler)
    assert made == BatchesCreated(250, 0)
    rows = conn.execute("select task_id, data from sokka.tasks order by queue_pos").fetchall()
    assert [data for _, data in rows] == list(range(250))
    assert told == [CreatedId(task_id, True) for task_id, _ in rows]
    # A commit for each batch.
    commits = conn.execute("select count(distinct xmin::text) from sokka.tasks").fetchone()
    assert commits == (-(-250 // size),)


def test_without_a_listener_the_same_is_counted(make: Maker, conn: psycopg.Connection) -> None:
    given = [{"topic": "t", "unique_key": f"{n % 40}"} for n in range(100)]
    assert make(given, batch_size=15) == BatchesCreated(40, 60)
    told: list[CreatedId] = []
    assert make(given, batch_size=15, each=told.extend) == BatchesCreated(0, 100)
    assert len(told) == 100
    assert conn.execute(COUNT).fetchone() == (40,)
    assert make([]) == BatchesCreated(0, 0)


def test_tasks_of_several_sorts_go_together(make: Maker, conn: psycopg.Connection) -> None:
    given = [
        {"topic": f"t{n // 30 % 2}", "priority": n % 3, "data": {"n": n}} for n in range(200)
    ]
    assert make(given, batch_size=50).created == 200
    rows = conn.execute(
        "select topic, priority, data from sokka.tasks order by queue_pos"
    ).fetchall()
    assert rows == [(each["topic"], each["priority"], each["data"]) for each in given]


def test_what_the_server_refuses_ends_the_call_and_is_named_by_its_place_among_all(
    make: Maker, conn: psycopg.Connection, store: PgTaskStore
) -> None:
    store.create_task("t", unique_key="taken")
    given = [{"topic": "t", "data": n} for n in range(50)]
    given[33] |= {"unique_key": "taken", "on_conflict": "error"}
    told: list[CreatedId] = []
    with pytest.raises(UniqueKeyTaken) as refused:
        make(iter(given), batch_size=10, each=told.extend)
    assert (refused.value.detail["position"], refused.value.detail["stored"]) == (34, 30)
    assert refused.value.__notes__ == ["the first 30 specs are stored"]
    assert len(told) == 30
    assert conn.execute(COUNT + " where unique_key is null").fetchone() == (30,)


def test_the_limit_of_the_installation_is_the_servers_to_judge(
    make: Maker, conn: psycopg.Connection
) -> None:
    conn.execute("update sokka.settings set max_data_bytes = 2000")
    given = list(specs(25))
    given[16]["data"] = "x" * 3_000
    with pytest.raises(BadArgument, match=r"specs\[17\]: data") as refused:
        make(given, batch_size=10)
    assert (refused.value.detail["argument"], refused.value.detail["stored"]) == ("data", 10)
    assert conn.execute(COUNT).fetchone() == (10,)


@pytest.mark.parametrize("size", [10, 200_000], ids=["small", "large"])
def test_a_slow_source_keeps_no_transaction_open(
    make: Maker, conn: psycopg.Connection, until: Callable[..., None], size: int
) -> None:
    """Else its locks would be held, and nobody would see the tasks, until it goes on. A
    large batch is more than a socket takes at once."""

    def slow() -> Iterator[dict[str, Any]]:
        for n in range(35):
            if n % 10 == 0:
                # The batch before is under way while the next is asked for.
                until(COUNT.replace("count(*)", f"count(*) = {n}"))
                until(
                    "select count(*) = 0 from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                    " and xact_start is not null and backend_type = 'client backend'"
                )
            yield {"topic": "t", "data": "x" * size}

    assert make(slow(), batch_size=10).created == 35


def test_a_source_that_fails_leaves_what_it_gave(make: Maker, conn: psycopg.Connection) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield from specs(25)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more") as raised:
        make(failing(), batch_size=10)
    assert raised.value.__notes__ == ["the first 25 specs are stored"]
    assert conn.execute(COUNT).fetchone() == (25,)


@pytest.mark.parametrize("kind", [SyncCaller, AsyncCaller], ids=["sync", "async"])
def test_a_lost_answer_leaves_one_batch_in_doubt(
    db: str, conn: psycopg.Connection, kind: Any
) -> None:
    proxy = LossyProxy(db)
    caller = kind(proxy.url)
    caller("create_tasks", [{"topic": "t"}])

    batches = 0

    def each(ids: list[CreatedId]) -> None:
        nonlocal batches
        batches += 1
        if batches == 2:
            proxy.lose_next_answer()

    try:
        with pytest.raises(DatabaseUnavailable) as lost:
            caller("create_tasks_in_batches", specs(60), batch_size=10, each=each)
    finally:
        caller.close()
        proxy.close()
    assert lost.value.detail["sent"] is True
    first, last = lost.value.detail["unknown"]
    assert (first, last) == (lost.value.detail["stored"] + 1, lost.value.detail["stored"] + 10)
    (found,) = conn.execute(COUNT).fetchone() or (0,)
    assert found - 1 in (first - 1, last)


@pytest.mark.parametrize("kind", [SyncCaller, AsyncCaller], ids=["sync", "async"])
def test_a_batch_that_the_server_undid_for_anothers_sake_is_sent_again(
    db: str, conn: psycopg.Connection, kind: Any
) -> None:
    conn.execute(
        """
        create sequence public.tries;
        create function public.undone() returns trigger language plpgsql as $$
        begin
            if nextval('public.tries') in (2, 3) then
                raise serialization_failure;
            end if;
            return null;
        end $$;
        create trigger undone after insert on sokka.tasks for each statement
            execute function public.undone();
        """
    )
    caller = kind(db)
    told: list[CreatedId] = []
    try:
        made = caller("create_tasks_in_batches", specs(35), batch_size=10, each=told.extend)
    finally:
        caller.close()
    assert made == BatchesCreated(35, 0)
    rows = conn.execute("select task_id, data from sokka.tasks order by queue_pos").fetchall()
    assert [data for _, data in rows] == list(range(35))
    assert [each.task_id for each in told] == [task_id for task_id, _ in rows]
    assert conn.execute("select last_value from public.tries").fetchone() == (6,)


@pytest.mark.parametrize("kind", [SyncCaller, AsyncCaller], ids=["sync", "async"])
def test_what_is_stored_is_told_of_even_if_the_next_batch_cannot_be_sent(
    db: str, conn: psycopg.Connection, kind: Any
) -> None:
    told: list[CreatedId] = []
    caller = kind(db)
    source = caller.store._source
    send, left = source.run_beside, [2]

    def run_beside(call: Any, meanwhile: Any) -> Any:
        if not left[0]:
            raise DatabaseUnavailable("no connection in time", {"sent": False})
        left[0] -= 1
        return send(call, meanwhile)

    source.run_beside = run_beside
    try:
        with pytest.raises(DatabaseUnavailable) as failed:
            caller("create_tasks_in_batches", specs(35), batch_size=10, each=told.extend)
    finally:
        caller.close()
    assert len(told) == failed.value.detail["stored"] == 20
    assert "unknown" not in failed.value.detail
    assert conn.execute(COUNT).fetchone() == (20,)


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled back"])
def test_in_the_callers_transaction_all_or_nothing(
    db: str, conn: psycopg.Connection, commit: bool
) -> None:
    told: list[CreatedId] = []
    with psycopg.connect(db) as mine, PgTaskStore(db) as store:
        made = store.create_tasks_in_batches(
            specs(25), batch_size=10, each=told.extend, connection=mine
        )
        assert (made.created, len(told)) == (25, 25)
        assert conn.execute(COUNT).fetchone() == (0,)
        mine.commit() if commit else mine.rollback()
    assert conn.execute(COUNT).fetchone() == (25 if commit else 0,)


async def test_in_the_callers_transaction_awaited(db: str, async_store: AsyncPgTaskStore) -> None:
    async with await AsyncConnection.connect(db) as mine:
        await async_store.create_tasks_in_batches(specs(25), batch_size=10, connection=mine)
        await mine.rollback()
        await async_store.create_tasks_in_batches(specs(5), batch_size=2, connection=mine)
    assert len((await async_store.list_tasks({"topic": "t"})).items) == 5


def test_a_pool_of_the_callers_will_do(db: str, conn: psycopg.Connection) -> None:
    with ConnectionPool(db, min_size=1, max_size=1, kwargs={"autocommit": False}) as pool:
        store = PgTaskStore(pool)
        assert store.create_tasks_in_batches(specs(25), batch_size=10).created == 25

    async def awaited() -> None:
        async with AsyncConnectionPool(db, min_size=1, max_size=1, open=False) as pool:
            store = AsyncPgTaskStore(pool)
            made = await store.create_tasks_in_batches(specs(25), batch_size=10)
            assert made.created == 25

    asyncio.run(awaited())
    assert conn.execute(COUNT).fetchone() == (50,)


@pytest.mark.parametrize("level", [IsolationLevel.SERIALIZABLE, IsolationLevel.REPEATABLE_READ])
def test_batches_are_read_committed_whatever_the_databases_default(
    make: Maker, conn: psycopg.Connection, level: IsolationLevel
) -> None:
    said = level.name.lower().replace("_", " ")
    conn.execute(
        sql.SQL("alter database {} set default_transaction_isolation to {}").format(
            sql.Identifier(conn.info.dbname), sql.Literal(said)
        )
    )
    for pooler in (False, True):
        assert make(specs(25), batch_size=10, pooler=pooler).created == 25


async def test_others_have_their_turn_between_the_steps(async_store: AsyncPgTaskStore) -> None:
    turns = 0
    seen: list[int] = []

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def given() -> Iterator[dict[str, Any]]:
        for spec in specs(1_000):
            seen.append(turns)
            yield spec

    task = asyncio.create_task(other())
    await async_store.create_tasks_in_batches(given(), batch_size=1_000)
    task.cancel()
    # 1,000 specs of one batch, taken a hundred at a time at most.
    assert len(set(seen)) >= 10


async def test_a_call_that_is_cancelled_gives_its_connection_back(db: str) -> None:
    async with AsyncPgTaskStore(db, options=ConnectionOptions(max_size=1)) as store:
        started = asyncio.Event()

        def endless() -> Iterator[dict[str, Any]]:
            while True:
                started.set()
                yield {"topic": "t", "data": 1}

        for _ in range(5):
            started.clear()
            task = asyncio.create_task(store.create_tasks_in_batches(endless(), batch_size=50))
            await started.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await store.create_tasks_in_batches(specs(3)) == BatchesCreated(3, 0)

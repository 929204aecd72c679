"""A queue at work goes from a revision to a later one, and back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg.types.json import Jsonb

from sokka_pg import Sokka, WorkerOptions, migrate
from sokka_pg.errors import SokkaError
from sokka_pg.migrate import Run

FIRST, SECOND = "0001", "0002"


@pytest.fixture
def producer(empty_db: str) -> Iterator[str]:
    """A role that may enqueue and list, in a database at the first revision."""
    migrate.upgrade(empty_db, to=FIRST)
    name = f"sokka_role_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute(f"create role {name}")
        connection.execute(f"grant usage on schema sokka to {name}")
        connection.execute(
            f"grant execute on function sokka.create_task, sokka.resubmit_task to {name}"
        )
        connection.execute(f"grant execute on function sokka.get_task to {name} with grant option")
        yield name
        connection.execute(f"drop owned by {name} cascade")
        connection.execute(f"drop role {name}")


def functions_of(url: str, role: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select p.proname, a.is_grantable from pg_proc p, aclexplode(p.proacl) a"
            " where a.grantee = %s::regrole",
            (role,),
        ).fetchall()
    return {f"{name}*" if grantable else name for name, grantable in rows}


def test_grants_outlive_both_ways(empty_db: str, producer: str) -> None:
    granted = {"create_task", "resubmit_task", "get_task*"}
    assert functions_of(empty_db, producer) == granted
    migrate.upgrade(empty_db)
    assert functions_of(empty_db, producer) == granted
    migrate.downgrade(empty_db, to=FIRST)
    assert functions_of(empty_db, producer) == granted


def test_leases_from_before_are_good_after_it_and_back(empty_db: str) -> None:
    migrate.upgrade(empty_db, to=FIRST)
    with psycopg.connect(empty_db, autocommit=True) as connection:

        def one(query: str, *values: object) -> tuple[object, ...]:
            row = connection.execute(query.encode(), values).fetchone()
            assert row is not None
            return row

        connection.execute("create table kept (n integer)")
        one("select sokka.guard_table('kept')")
        connection.execute("create view theirs as select task_id, status from sokka.all_tasks")
        for _ in range(3):
            one("select task_id from sokka.create_task('t', '[1]')")
        leases = [one("select task_id, token from sokka.reserve_task('t', 'me')") for _ in "abc"]
        end = "select status from sokka.terminate_task(%s, 'me', %s)"

        assert one(end, *leases[0]) == ("terminated",)
        migrate.upgrade(empty_db)
        assert one(end, *leases[1]) == ("terminated",)
        join = one("select task_id from sokka.fan_out('[{\"topic\": \"t\"}]')")
        child = one("select task_id, token from sokka.reserve_task('t', 'me')")
        assert one(end, *child) == ("terminated",)
        assert one("select status from sokka.get_task(%s)", *join) == ("terminated",)
        migrate.downgrade(empty_db, to=FIRST)
        assert one(end, *leases[2]) == ("terminated",)

        assert one("select count(*) from theirs where status = 'terminated'") == (5,)
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("insert into kept values (1)")
        assert refused.value.sqlstate == "SK013"
        assert one("select created from sokka.create_task('t')") == (True,)


def test_what_still_waits_for_others_keeps_the_revision(empty_db: str) -> None:
    migrate.upgrade(empty_db)
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute("select sokka.fan_out('[{\"topic\": \"t\"}]')")
    with pytest.raises(SokkaError, match="tasks still wait for others"):
        migrate.downgrade(empty_db, to=FIRST)
    assert migrate.current(empty_db) == migrate.revisions()[-1]


def test_work_goes_on_through_the_second_revision_and_back(empty_db: str) -> None:
    migrate.upgrade(empty_db)
    with psycopg.connect(empty_db, autocommit=True) as connection:

        def rows(query: str, *values: object) -> list[tuple[object, ...]]:
            return connection.execute(query.encode(), values).fetchall()

        create = """select created from sokka.create_tasks('[{"topic": "t"}, {"topic": "t"}]')"""
        step = """
            select verdict from sokka.settle_and_reserve('me',
                array(select task_id from sokka.tasks where status = 'running' order by 1),
                array(select token from sokka.tasks where status = 'running' order by task_id),
                array(select 'terminate' from sokka.tasks where status = 'running'), null,
                array['t'], 1)
        """
        assert rows(create) == [(True,), (True,)]
        assert rows(step) == [("reserved",)]
        migrate.downgrade(empty_db, to=SECOND)
        assert rows(step) == [("ok",), ("reserved",)]
        assert rows(create) == [(True,), (True,)]
        assert rows("select created from sokka.create_task('t')") == [(True,)]
        assert rows("select woken from sokka.sweep()") == [(0,)]
        migrate.upgrade(empty_db)
        assert rows(step) == [("ok",), ("reserved",)]
        assert rows("select proname from pg_proc where pronamespace = 'sokka'::regnamespace"
                    " group by 1 having count(*) > 1") == []  # fmt: skip


def test_the_body_of_an_older_release_may_go_on_over_a_migration(db: str) -> None:
    """A call that waited for the migration's locks goes on in its old body, and calls the
    functions that are there now: with specs that lack what has come since."""
    with psycopg.connect(db, autocommit=True) as connection:
        made = connection.execute(
            "select i.created from sokka.insert_tasks(array(select jsonb_populate_record("
            " null::sokka.task_spec, %s))) i",
            (
                '{"topic": "t", "kind": "k", "sub_topic": "s", "priority": 5, "max_attempts": 1,'
                ' "max_losses": 5, "on_conflict": "existing", "given": false,'
                ' "task_id": "00000000-0000-7000-8000-000000000001"}',
            ),
        ).fetchall()
        assert made == [(True,)]
        filled = connection.execute("select depth, is_join from sokka.tasks").fetchall()
        assert filled == [(0, False)]


def test_what_the_bodies_of_the_release_before_call_is_there(empty_db: str) -> None:
    """Calls under way end in those bodies. What nobody calls any more is dropped one
    revision later."""

    def signatures() -> set[str]:
        with psycopg.connect(empty_db) as connection:
            return {name for (name,) in connection.execute(
                "select p.oid::regprocedure::text from pg_proc p"
                " where p.pronamespace = 'sokka'::regnamespace"
            )}  # fmt: skip

    migrate.upgrade(empty_db, to="0003")
    before = signatures()
    migrate.upgrade(empty_db)
    assert before <= signatures()


def test_reserving_goes_on_in_the_body_of_the_release_before(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as connection:
        connection.execute("select sokka.create_task('t'), sokka.create_task('t')")
        found = connection.execute(
            "select pid, attempt from sokka.reserve_batch(array['t'], null, 'w', 1, '1 s')"
        ).fetchall()
        assert found == [("w", 1)]


def test_who_may_work_in_the_old_ways_may_in_the_new_ones(empty_db: str, producer: str) -> None:
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute(
            "grant execute on function sokka.settle_and_reserve, sokka.reserve_tasks"
            f" to {producer}"
        )
    migrate.upgrade(empty_db)
    assert {
        "exchange_leases", "exchange_work", "look_for_work", "look_around",
    } <= functions_of(empty_db, producer)  # fmt: skip
    migrate.downgrade(empty_db, to="0003")
    assert "settle_and_reserve" in functions_of(empty_db, producer)


@pytest.mark.parametrize("revision", ["0003", "0006"])
async def test_a_worker_serves_a_schema_that_has_not_been_migrated_yet(
    empty_db: str, revision: str
) -> None:
    migrate.upgrade(empty_db, to=revision)
    app = Sokka(empty_db)
    ran = []

    @app.task(topic="t")
    async def work(number: int) -> None:
        ran.append(number)
        if len(ran) == 3:
            worker.stop()

    worker = app.worker("t", options=WorkerOptions(schedules=False))
    with psycopg.connect(empty_db, autocommit=True) as connection:
        for number in range(3):
            connection.execute(
                "select from sokka.create_task('t', %s, 'work')", (Jsonb({"number": number}),)
            )
        async with asyncio.timeout(30):
            await worker.run()
        found = connection.execute("select count(*) from sokka.finished_tasks").fetchone()
    assert sorted(ran) == [0, 1, 2]
    assert found == (3,)


@pytest.mark.parametrize(("below", "above"), [("0004", "0005"), ("0006", "0007")])
def test_a_revision_of_functions_alone_waits_for_nobody(
    empty_db: str, below: str, above: str
) -> None:
    """One that locked all there is never came to its turn among busy workers."""
    migrate.upgrade(empty_db, to=below)
    with psycopg.connect(empty_db) as caller:
        caller.execute("select from sokka.tasks, sokka.topics, sokka.live_leases")
        caller.execute("select from sokka.create_task('t')")
        migrate.upgrade(empty_db, to=above, run=Run(patience=timedelta(seconds=5)))
        migrate.downgrade(empty_db, to=below, run=Run(patience=timedelta(seconds=5)))

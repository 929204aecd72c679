"""A run is all or nothing, alone on its schema, and patient for locks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from sokka_pg import catalogue, migrate
from sokka_pg.errors import Busy, SchemaMismatch, UsageError

Objects = Callable[..., dict[str, str]]
HEAD = migrate.revision("head")
CALL = "from sokka_pg.cli.main import run; run()"


def test_a_second_run_finds_nothing_to_do(empty_db: str, objects: Objects) -> None:
    first = migrate.upgrade(empty_db)
    before = objects(empty_db)
    second = migrate.upgrade(empty_db)

    assert (first.before, first.after) == (None, HEAD)
    assert (second.before, second.after) == (HEAD, HEAD)
    assert objects(empty_db) == before


def test_down_to_base_leaves_the_database_as_it_was(empty_db: str, server: object) -> None:
    everything = """
        select 'class', relname::text from pg_class where oid >= 16384
        union all select 'function', proname::text from pg_proc where oid >= 16384
        union all select 'type', typname::text from pg_type where oid >= 16384
        union all select 'schema', nspname::text from pg_namespace where nspname !~ '_temp_'
        order by 1, 2
    """
    with psycopg.connect(empty_db, autocommit=True) as connection:
        before = connection.execute(everything).fetchall()
        migrate.upgrade(empty_db)
        assert migrate.downgrade(empty_db).after is None
        assert connection.execute(everything).fetchall() == before


def test_going_down_drops_live_data_and_up_again_starts_empty(db: str) -> None:
    with psycopg.connect(db) as connection:
        connection.execute("select sokka.create_task('a')")
    migrate.downgrade(db)
    migrate.upgrade(db)
    with psycopg.connect(db) as connection:
        assert connection.execute("select count(*) from sokka.tasks").fetchone() == (0,)


def test_going_down_from_nothing_is_nothing(empty_db: str) -> None:
    assert migrate.downgrade(empty_db).after is None
    assert migrate.move(empty_db, "sokka", "base").after is None
    with psycopg.connect(empty_db) as connection:
        assert connection.execute("select to_regnamespace('sokka')").fetchone() == (None,)


def test_two_runs_at_once_both_succeed_and_one_does_the_work(
    empty_db: str, objects: Objects
) -> None:
    command = [sys.executable, "-c", CALL, "migrate", "--database-url", empty_db, "--json"]
    with psycopg.connect(empty_db) as gate:
        gate.execute("select pg_advisory_xact_lock(hashtextextended('sokka_pg.migrate.sokka', 0))")
        runs = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        _wait_for_waiters(empty_db, 2)
        gate.rollback()
    answers = [run.communicate(timeout=60) for run in runs]

    assert [run.returncode for run in runs] == [0, 0], answers
    changed = [f'"before": null, "after": "{HEAD}"' in out for out, _ in answers]
    assert sorted(changed) == [False, True]
    assert migrate.check(empty_db).ok


def _wait_for_waiters(url: str, wanted: int) -> None:
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as watcher:
        while True:
            row = watcher.execute(
                "select count(*) from pg_locks where locktype = 'advisory' and not granted"
                " and database = (select oid from pg_database where datname = current_database())"
            ).fetchone()
            if row and row[0] == wanted:
                return
            assert time.monotonic() < deadline, "the runs never came to wait"
            time.sleep(0.01)


def test_a_run_gives_up_its_locks_and_tries_again_while_someone_holds_the_table(db: str) -> None:
    waits: list[int] = []
    with psycopg.connect(db) as blocker:
        blocker.execute("select count(*) from sokka.tasks")

        def release_after_two(attempt: int) -> None:
            waits.append(attempt)
            if attempt == 2:
                blocker.rollback()

        run = migrate.Run(lock_timeout=timedelta(milliseconds=20), on_wait=release_after_two)
        assert migrate.downgrade(db, run=run).after is None
    assert waits == [1, 2]


def test_a_run_that_waits_for_a_caller_is_gone_before_that_caller_looks_for_deadlocks(
    empty_db: str,
) -> None:
    """A caller has a table that the run wants, and then wants a view that the run has."""
    migrate.upgrade(empty_db, to="0001")
    with psycopg.connect(empty_db, autocommit=True) as owner:
        # the run itself looks so late that it is never the one to find out
        owner.execute(
            "do $$ begin execute format('alter database %I set deadlock_timeout = 30000',"
            " current_database()); end $$"
        )
    with psycopg.connect(empty_db) as caller:
        caller.execute("set deadlock_timeout = '2s'")
        caller.execute("select from sokka.settings")
        upgrading = threading.Thread(target=migrate.upgrade, args=(empty_db,))
        upgrading.start()
        with psycopg.connect(empty_db, autocommit=True) as watcher:
            deadline = time.monotonic() + 60
            while not watcher.execute(_LOCKED).fetchall():
                assert time.monotonic() < deadline, "the run never had the view"
                time.sleep(0.01)
        caller.execute("select from sokka.locked_task")
        caller.commit()
        upgrading.join(60)
    assert migrate.current(empty_db) == HEAD


_LOCKED = """
    select from pg_locks where relation = 'sokka.locked_task'::regclass
       and mode = 'AccessExclusiveLock' and granted"""


def test_a_run_without_patience_left_changes_nothing(db: str, objects: Objects) -> None:
    before = objects(db)
    run = migrate.Run(lock_timeout=timedelta(milliseconds=20), patience=timedelta(0))
    with psycopg.connect(db) as blocker:
        blocker.execute("select count(*) from sokka.tasks")
        with pytest.raises(Busy, match="pg_stat_activity"):
            migrate.downgrade(db, run=run)
    assert objects(db) == before
    assert migrate.current(db) == HEAD


def test_a_run_works_where_the_role_defaults_to_serializable(empty_db: str) -> None:
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute(
            "do $$ begin execute format('alter database %I set default_transaction_isolation"
            " = serializable', current_database()); end $$"
        )
    assert migrate.upgrade(empty_db).after == HEAD
    assert migrate.check(empty_db).ok


def test_going_down_never_drops_what_others_built(db: str, objects: Objects) -> None:
    before = objects(db)
    with psycopg.connect(db, autocommit=True) as connection:
        connection.execute("create view public.report as select topic from sokka.all_tasks")
        with pytest.raises(SchemaMismatch, match=r"view public\.report depends on"):
            migrate.downgrade(db)
        assert connection.execute("select count(*) from public.report").fetchone() == (0,)
    assert objects(db) == before


def test_going_down_takes_its_guards_off_other_tables(db: str) -> None:
    with psycopg.connect(db, autocommit=True) as connection:
        connection.execute("create table public.orders (id int primary key)")
        connection.execute("select sokka.guard_table('public.orders')")
        migrate.downgrade(db)
        connection.execute("insert into public.orders values (1)")


def test_a_schema_that_no_migration_made_is_refused(empty_db: str) -> None:
    with psycopg.connect(empty_db, autocommit=True) as connection:
        connection.execute("create schema sokka")
        connection.execute("create table sokka.mine (id int)")
    with pytest.raises(SchemaMismatch, match="choose another schema"):
        migrate.upgrade(empty_db)
    with psycopg.connect(empty_db) as connection:
        names = connection.execute(
            "select relname from pg_class where relnamespace = 'sokka'::regnamespace"
        ).fetchall()
    assert names == [("mine",)]


def test_a_schema_of_a_newer_version_is_refused(db: str) -> None:
    with psycopg.connect(db) as connection:
        connection.execute("update sokka.sokka_version set version_num = '9999'")
    for act in (migrate.upgrade, migrate.downgrade):
        with pytest.raises(SchemaMismatch, match="newer version"):
            act(db)
    assert not migrate.check(db).ok


@pytest.mark.parametrize("name", ["", "9999", "heads", "-1", "0001:base", "x\x00y", "%"])
def test_an_unknown_revision_is_wrong_usage(name: str) -> None:
    with pytest.raises(UsageError, match="revision: "):
        migrate.upgrade("host=nowhere.invalid", to=name)


def test_check_names_each_object_that_differs(db: str) -> None:
    assert migrate.check(db).drift == ()
    with psycopg.connect(db) as connection:
        connection.execute("drop function sokka.get_task")
        connection.execute("create index odd on sokka.tasks (kind)")
    found = migrate.check(db)
    assert not found.ok
    assert found.drift is not None
    assert "missing: function sokka.get_task(uuid)" in found.drift
    assert "not ours: index sokka.odd" in found.drift


def test_check_leaves_no_trace(db: str, objects: Objects) -> None:
    schemas = "select nspname from pg_namespace order by 1"
    with psycopg.connect(db, autocommit=True) as connection:
        before = connection.execute(schemas).fetchall()
        migrate.check(db)
        assert connection.execute(schemas).fetchall() == before


def test_check_of_an_empty_database_says_base(empty_db: str) -> None:
    found = migrate.check(empty_db)
    assert (found.current, found.drift, found.ok) == (None, None, False)


def test_the_template_of_the_tests_is_what_migrations_make(db: str, objects: Objects) -> None:
    migrate.upgrade(db, "migrated")
    assert catalogue.differences(objects(db, "migrated"), objects(db)) == []

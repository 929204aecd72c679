"""guard_table: a user's own table that takes writes under an asserted lease only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.sql.calling import Queue, Row, refusal_of

WRITES = {
    "insert": "insert into app values (1, 'new')",
    "update": "update app set note = 'changed'",
    "delete": "delete from app",
    "truncate": "truncate app",
    "many": "insert into app select n, 'x' from generate_series(1, 3) n",
    "upsert": "insert into app values (0, 'old') on conflict (id, note) do update set note = 'up'",
}
Another = Callable[..., Queue]


@pytest.fixture(params=["plain", "partitioned"])
def app(fresh: Queue, request: pytest.FixtureRequest) -> Queue:
    """A queue beside a guarded table with a row in it."""
    if request.param == "plain":
        fresh.execute("create table app (id int, note text, unique (id, note))")
    else:
        fresh.execute(
            "create table app (id int, note text, unique (id, note)) partition by range (id)"
        )
        fresh.execute("create table app_low partition of app for values from (0) to (5)")
        fresh.execute("create table app_rest partition of app default")
    fresh.execute("insert into app values (0, 'old')")
    fresh.call("guard_table", table="app")
    return fresh


def refused(queue: Queue, statement: str) -> dict[str, Any]:
    with pytest.raises(psycopg.Error) as caught, queue.connection.transaction():
        queue.execute(statement)
    found = refusal_of(caught.value)
    assert found.sqlstate == "SK013", found
    return found.detail


def content(queue: Queue) -> list[Row]:
    return queue.rows("select * from app order by id, note")


@pytest.mark.parametrize("write", WRITES)
def test_an_unfenced_write_is_refused(app: Queue, write: str) -> None:
    before = content(app)
    detail = refused(app, WRITES[write])
    assert detail["operation"] in ("INSERT", "UPDATE", "DELETE", "TRUNCATE")
    assert content(app) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_write_under_an_asserted_lease_passes(app: Queue, write: str) -> None:
    lease = app.leased("t")
    with app.connection.transaction():
        app.verb("assert_lease", lease)
        app.execute(WRITES[write])
    refused(app, WRITES["insert"])


def test_partitions_are_guarded_by_their_own_names_too(fresh: Queue) -> None:
    fresh.execute("create table app (id int, note text) partition by range (id)")
    fresh.execute("create table app_low partition of app for values from (0) to (5)")
    fresh.call("guard_table", table="app")
    fresh.execute("create table app_new partition of app for values from (5) to (9)")
    for statement in ("insert into app_low values (1, 'x')", "insert into app_new values (6, 'x')",
                      "truncate app_low"):  # fmt: skip
        refused(fresh, statement)
    fresh.call("guard_table", table="app")  # again, for the partition made since
    refused(fresh, "truncate app_new")


def test_a_lease_asserted_in_a_savepoint_that_was_undone_does_not_count(app: Queue) -> None:
    lease = app.leased("t")
    with app.connection.transaction():
        app.execute("savepoint before")
        app.verb("assert_lease", lease)
        app.execute(WRITES["insert"])
        app.execute("rollback to savepoint before")
        refused(app, WRITES["insert"])
        app.verb("assert_lease", lease)
        app.execute(WRITES["insert"])
    assert len(content(app)) == 2


def test_a_lease_of_the_last_transaction_does_not_count(app: Queue) -> None:
    lease = app.leased("t")
    app.verb("assert_lease", lease)
    refused(app, WRITES["insert"])


def test_the_trigger_checks_the_lease_again(app: Queue) -> None:
    """What was asserted has been given back, or ended, before the write."""
    lease = app.leased("t")
    for verb in ("release_lease", "terminate_task"):
        lease = lease if verb == "release_lease" else app.reserve("t")
        with app.connection.transaction():
            app.verb("assert_lease", lease)
            app.verb(verb, lease)
            refused(app, WRITES["insert"])


def test_a_fence_covers_writes_after_its_lease_ran_out(app: Queue) -> None:
    lease = app.leased("t", lease="50 ms")
    with app.connection.transaction():
        app.verb("assert_lease", lease)
        app.until_expired(lease.task_id)
        app.execute(WRITES["insert"])
    assert len(content(app)) == 2


def test_several_leases_may_be_asserted_and_any_counts(app: Queue) -> None:
    one, other = app.leased("t"), app.leased("t")
    with app.connection.transaction():
        app.verb("assert_lease", one)
        app.verb("assert_lease", other)
        app.verb("terminate_task", one)
        app.execute(WRITES["insert"])
        app.verb("terminate_task", other)
        refused(app, "update app set note = 'late'")
    assert len(content(app)) == 2


def test_an_unguarded_table_is_free_again_and_both_calls_may_be_repeated(app: Queue) -> None:
    app.call("guard_table", table="app")
    app.call("unguard_table", table="app")
    app.call("unguard_table", table="app")
    for name in ("insert", "update", "truncate"):
        app.execute(WRITES[name])


def test_a_name_that_needs_quotes_is_guarded(fresh: Queue) -> None:
    fresh.execute('create schema "My Schema"')
    fresh.execute('create table "My Schema"."o\'brien.""x"" %s" (id int)')
    name = fresh.value("select max(oid)::regclass::text from pg_class where relname ~ '^o.brien'")
    fresh.call("guard_table", table=name)
    detail = refused(fresh, f"insert into {name} values (1)")
    assert "My Schema" in detail["table"]
    fresh.call("unguard_table", table=name)
    assert fresh.execute(f"insert into {name} values (1)") == 1


def test_null_and_unknown_tables_are_refused(fresh: Queue) -> None:
    for function in ("guard_table", "unguard_table"):
        assert fresh.refused(function, table=None).sqlstate == "22023"
        assert fresh.refused(function, table="no_such_table").sqlstate == "42P01"


@pytest.mark.parametrize("note", ["x", "x/1", "/", " ", "00000000-0000-0000-0000-000000000000/x"])
def test_a_note_that_cannot_be_read_opens_no_fence(app: Queue, note: str) -> None:
    with app.connection.transaction():
        app.value("select set_config('skpg_fence.sokka', %s, true)", note)
        with pytest.raises(psycopg.Error):
            app.execute(WRITES["insert"])

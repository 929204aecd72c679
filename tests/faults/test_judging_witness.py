"""The witness on real servers: what it sees, for whom, and on an older schema."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sokka_pg import migrate
from tests.faults.chaos.judging import witness
from tests.faults.chaos.words import Change

TASK = "11111111-1111-4111-8111-111111111111"
CREATE = (
    "select r.task_id"
    " from sokka.create_task(p_topic => 'a', p_task_id => %s, p_data => '{\"n\": 1}') r"
)
RESERVE = "select r.token from sokka.reserve_task('a', 'w1', '10 seconds') r"
Connect = Callable[..., psycopg.Connection]


def token(conn: psycopg.Connection) -> int:
    row = conn.execute(RESERVE).fetchone()
    assert row is not None
    return int(row[0])


def told(changes: list[Change]) -> list[tuple[str, str, str | None]]:
    return [(c.source, c.function, c.new["status"] if c.new else None) for c in changes]


def test_it_sees_each_change_with_the_function_that_made_it(conn: psycopg.Connection) -> None:
    witness.install(conn)
    witness.install(conn)
    conn.execute(CREATE, (TASK,))
    granted = token(conn)
    conn.execute("select from sokka.save_checkpoint(%s, 'w1', %s, '{\"at\": 1}')", (TASK, granted))
    conn.execute("select from sokka.terminate_task(%s, 'w1', %s, '\"done\"')", (TASK, granted))
    seen = witness.read(conn)
    assert told(seen) == [
        ("tasks", "create_task", "starting"),
        ("tasks", "reserve_task", "running"),
        ("tasks", "save_checkpoint", "running"),
        ("finished_tasks", "terminate_task", "terminated"),
        ("tasks", "terminate_task", None),
    ]
    made, reserved, saved, final, left = seen
    assert made.new is reserved.old and saved.new is left.old
    assert saved.new is not None and final.new is not None
    assert (saved.new["data"], saved.new["checkpoint"]) == ({"n": 1}, {"at": 1})
    assert (final.new["result"], final.new["token"]) == ("done", granted)
    assert left.xid == final.xid != saved.xid
    assert all(c.began <= c.at and c.backend == conn.info.backend_pid for c in seen)
    assert reserved.new is not None
    assert reserved.began <= reserved.new["now"] <= reserved.at


@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
def test_it_sees_what_any_role_does_under_any_settings(
    conn: psycopg.Connection, connect: Connect, db: str, isolation: str
) -> None:
    witness.install(conn)
    # roles belong to the server, which other tests use, too
    role = f"sokka_seen_{uuid.uuid4().hex[:12]}"
    conn.execute(f"create role {role} login password 'seen'")
    conn.execute(f"grant usage on schema sokka to {role}")
    conn.execute(f"grant execute on all functions in schema sokka to {role}")
    try:
        other = connect(make_conninfo(db, user=role, password="seen"))
        other.execute("set search_path = ''")
        other.execute(f"set default_transaction_isolation = '{isolation}'")
        other.execute(CREATE, (TASK,))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute("delete from chaos.changes")
        other.close()
    finally:
        conn.execute(f"drop owned by {role}")
        conn.execute(f"drop role {role}")
    assert told(witness.read(conn)) == [("tasks", "create_task", "starting")]


def test_what_was_rolled_back_is_not_seen(conn: psycopg.Connection) -> None:
    witness.install(conn)
    with conn.transaction(force_rollback=True):
        conn.execute(CREATE, (TASK,))
    assert witness.read(conn) == []


def test_it_sees_a_table_of_the_handlers(conn: psycopg.Connection) -> None:
    witness.install(conn)
    conn.execute("create table written (task_id uuid, token bigint, what text)")
    witness.guard(conn, "written")
    conn.execute("select sokka.guard_table('written')")
    conn.execute(CREATE, (TASK,))
    granted = token(conn)
    with conn.transaction():
        conn.execute("select from sokka.assert_lease(%s, 'w1', %s)", (TASK, granted))
        conn.execute("insert into written values (%s, %s, 'x')", (TASK, granted))
    last = witness.read(conn)[-1]
    assert (last.source, last.id, last.row["token"]) == ("guarded", TASK, granted)


def test_it_stands_on_an_older_schema_and_goes_on_after_a_migration(
    empty_db: str, connect: Connect
) -> None:
    migrate.upgrade(empty_db, to="0001")
    conn = connect(empty_db)
    witness.install(conn)
    conn.execute(CREATE, (TASK,))
    migrate.upgrade(empty_db)
    granted = token(conn)
    witness.install(conn)
    conn.execute("select from sokka.record_step(%s, 'w1', %s, 'one', '1')", (TASK, granted))
    conn.execute("select from sokka.try_lock('k', 'o', '10 seconds')")
    conn.execute("select from sokka.report_progress(%s, 'w1', %s, '5')", (TASK, granted))
    seen = witness.read(conn)
    assert [c.source for c in seen] == ["tasks", "tasks", "task_steps", "locks", "tasks"]
    assert seen[1].new is not None and "parent" not in seen[1].new
    assert seen[4].new is not None and seen[4].new["parent"] is None


def test_its_rows_can_be_kept_in_a_file(conn: psycopg.Connection, tmp_path: Path) -> None:
    witness.install(conn)
    conn.execute(CREATE, (TASK,))
    conn.execute("select from sokka.cancel_task(%s)", (TASK,))
    kept = tmp_path / "changes.jsonl.gz"
    assert witness.keep(conn, kept) == 3
    assert witness.kept(kept) == witness.read(conn)

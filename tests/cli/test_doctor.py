"""``sokka doctor`` finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sokka_pg.doctor import Level
from sokka_pg.store import PgTaskStore
from tests.cli.conftest import Look, Sokka, call, set_clock, worst
from tests.servers import Server


def test_every_question_is_answered_by_a_fresh_installation(sokka: Sokka) -> None:
    answer = sokka("doctor", "--json")
    facts = answer.json
    # The servers of the tests run without fsync, which is for the doctor to find.
    bad = {f["check"] for f in facts["findings"] if f["level"] != "ok"}
    assert bad <= {"settings", "idle transactions"}
    assert not any("could not look" in f["what"] for f in facts["findings"])
    assert answer.code == (0 if facts["ok"] else 1)
    for finding in facts["findings"]:
        assert finding["why"] and finding["what"]
        assert finding["level"] == "ok" or finding["advice"]


def test_the_text_says_why_and_what_to_do(sokka: Sokka, conn: psycopg.Connection) -> None:
    conn.execute("alter table sokka.tasks disable trigger tasks_move")
    answer = sokka("doctor")
    assert answer.code == 1
    assert "fail guards" in answer.out
    assert "why: the triggers refuse" in answer.out
    assert "do:  alter table" in answer.out
    assert answer.err == ""


def test_fsync_off_is_a_failure(look: Look, conn: psycopg.Connection) -> None:
    fsync = conn.execute("show fsync").fetchone()
    expected = Level.OK if fsync == ("on",) else Level.FAIL
    assert worst(look("settings")) is expected


def test_nothing_installed_is_a_failure_that_names_migrate(empty_db: str) -> None:
    answer = call("doctor", "--database-url", empty_db, "--json")
    assert answer.code == 1
    (finding,) = [f for f in answer.json["findings"] if f["check"] == "schema"]
    assert (finding["level"], finding["advice"]) == ("fail", "sokka migrate")
    assert "tokens" not in {f["check"] for f in answer.json["findings"]}


def test_a_changed_function_is_named(look: Look, conn: psycopg.Connection) -> None:
    conn.execute(
        "create or replace function sokka.topic_hash(p_topic text) returns text"
        " language sql immutable as $$ select 'x' $$"
    )
    conn.execute("create table sokka.mine (n int)")
    found = look("schema")
    assert [each.level for each in found] == ["fail", "warn"]
    assert "topic_hash" in found[0].what
    assert "table mine" in found[1].what


def test_another_revision_is_a_failure(look: Look, conn: psycopg.Connection) -> None:
    conn.execute("update sokka.sokka_version set version_num = '9999'")
    (found,) = look("schema")
    assert (found.level, "9999" in found.what) == ("fail", True)


def test_what_public_may_do_is_named(look: Look, conn: psycopg.Connection) -> None:
    conn.execute("grant execute on function sokka.sweep(integer) to public")
    conn.execute("grant select on sokka.tasks to public")
    (found,) = look("privileges")
    assert found.level == "fail"
    assert "sokka.sweep(integer) (EXECUTE)" in found.what
    assert "sokka.tasks (SELECT)" in found.what


def test_an_invalid_index_is_named(look: Look, conn: psycopg.Connection) -> None:
    conn.execute(
        "update pg_index set indisvalid = false where indexrelid = 'sokka.tasks_token'::regclass"
    )
    (found,) = look("indexes")
    assert (found.level, "tasks_token" in found.what) == ("fail", True)


def test_leases_and_tasks_that_no_sweep_took_are_counted(
    look: Look, db: str, conn: psycopg.Connection
) -> None:
    with PgTaskStore(db) as store:
        store.create_tasks([{"topic": "mail"}] * 3)
        store.reserve_tasks(["mail"], "worker-1", 2, timedelta(seconds=30))
    assert worst(look("sweep")) is Level.OK
    assert look("leases")[0].what.startswith("2 held")
    set_clock(conn, "clock_timestamp() + interval '50 seconds'")
    assert worst(look("sweep")) is Level.WARN
    set_clock(conn, "clock_timestamp() + interval '1 hour'")
    (found,) = look("sweep")
    assert found.level == "fail"
    assert found.what.startswith("2 leases are over")


def test_a_fence_that_outlives_its_lease_is_named_with_its_session(
    look: Look, db: str, connect: Callable[..., psycopg.Connection]
) -> None:
    holder = connect(autocommit=False)
    with PgTaskStore(db) as store:
        task_id = store.create_task("mail").task_id
        leased = store.reserve_task("mail", "worker-1", 1.0)
        assert leased is not None
        store.assert_lease(leased, connection=holder)
        wait_until(connect(), "select lease_expires_at <= sokka.clock() from sokka.tasks")
    (found,) = look("open fences")
    assert found.level == "warn"
    assert str(task_id) in found.what
    assert str(holder.info.backend_pid) in found.what
    # It is no fault of the sweep.
    assert worst(look("sweep")) is Level.OK


def wait_until(conn: psycopg.Connection, question: str) -> None:
    give_up_at = time.monotonic() + 30
    while conn.execute(question).fetchone() != (True,):
        assert time.monotonic() < give_up_at, question
        time.sleep(0.02)


def test_a_paused_topic_is_told_with_its_reason(look: Look, db: str) -> None:
    with PgTaskStore(db) as store:
        store.pause_topic("mail", "server down")
    (found,) = look("paused topics")
    assert (found.level, "server down" in found.what) == ("warn", True)


def test_tokens_that_went_back_are_a_failure(
    look: Look, db: str, conn: psycopg.Connection
) -> None:
    with PgTaskStore(db) as store:
        store.create_task("mail")
        store.reserve_task("mail", "worker-1")
    assert worst(look("tokens")) is Level.OK
    conn.execute("select setval('sokka.token_seq', 1)")
    (found,) = look("tokens")
    assert (found.level, "raise_token_epoch" in found.advice) == ("fail", True)


def test_partitions_that_are_missing_astray_or_left_are_told(
    look: Look, conn: psycopg.Connection
) -> None:
    conn.execute(
        "insert into sokka.past_leases (task_id, ended_at, ended_seq, attempt, topic, event)"
        " values (gen_random_uuid(), '2001-01-01', 1, 1, 'a', 'revoked')"
    )
    names = [
        row[0] for row in conn.execute(
            "select relname from pg_class where relname ~ '^finished_tasks_[0-9]{8}$' order by 1"
        )
    ]  # fmt: skip
    conn.execute(f"drop table sokka.{names[1]}")
    conn.execute(f"alter table sokka.finished_tasks detach partition sokka.{names[3]}")
    conn.execute("select sokka.make_partition('finished_tasks', 'finished_at', '2001-01-01Z')")
    assert "past_leases_default holds 1 rows" in look("default partitions")[0].what
    (missing,) = look("partitions")
    assert (missing.level, names[1] in missing.what) == ("warn", True)
    detached, old = look("old partitions")
    assert names[3] in detached.what
    assert "finished_tasks_20010101" in old.what
    conn.execute(f"drop table sokka.{names[0]}")
    assert look("partitions")[0].level == "fail"


def test_switched_off_notifications_are_told(look: Look, conn: psycopg.Connection) -> None:
    conn.execute("update sokka.settings set notify = false")
    assert worst(look("notifications")) is Level.WARN


@pytest.fixture
def stranger(server: Server, db: str) -> Iterator[str]:
    """The URL of the database for a role that may do nothing in it."""
    name = f"sokka_stranger_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(db, autocommit=True) as admin:
        admin.execute(f"create role {name}")
        yield make_conninfo(db, options=f"-c role={name}")
        admin.execute(f"drop role {name}")


def test_a_role_without_rights_is_told_what_could_not_be_looked_at(stranger: str) -> None:
    answer = call("doctor", "--database-url", stranger, "--json")
    found = {each["check"]: each for each in answer.json["findings"]}
    assert found["leases"]["level"] == "warn"
    assert "could not look: permission denied" in found["leases"]["what"]
    assert found["server version"]["level"] == "ok"


def test_looking_changes_nothing(sokka: Sokka, db: str, conn: psycopg.Connection) -> None:
    with PgTaskStore(db) as store:
        store.create_task("mail")
        store.reserve_task("mail", "worker-1")
    state = (
        "select (select string_agg(t::text, '') from sokka.tasks t),"
        " (select last_value from sokka.token_seq), (select last_value from sokka.incarnation_seq),"
        " (select count(*) from pg_namespace), (select count(*) from pg_class)"
    )
    before = conn.execute(state).fetchone()
    sokka("doctor")
    assert conn.execute(state).fetchone() == before

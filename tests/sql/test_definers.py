"""What a caller may touch beyond the functions: nothing, however it shadows their names."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tests.sql import states
from tests.sql.calling import Queue
from tests.sql.scheduling import fire_due, put
from tests.sql.states import LEASE_VERBS

FUNCTIONS = """
    select p.oid::regprocedure::text as name, p.proname as word, p.prosecdef as definer,
           coalesce(p.proconfig, '{}') as settings, p.provolatile as volatility, p.prosrc as body,
           has_function_privilege('public', p.oid, 'execute') as is_public
      from pg_proc p where p.pronamespace = 'sokka'::regnamespace
"""
# Run with the rights of whoever owns the guarded table.
INVOKERS = {"guard_table", "unguard_table"}
VERBS = {
    *LEASE_VERBS, *INVOKERS, "create_task", "create_tasks", "create_tasks_like", "reserve_task",
    "reserve_tasks", "acquire_lease", "extend_leases", "terminate_tasks", "settle_tasks",
    "settle_and_reserve", "exchange_leases", "exchange_work",
    "advance_fence", "revoke_lease", "cancel_task", "resubmit_task", "pause_topic", "resume_topic",
    "set_topic", "raise_token_epoch", "get_task", "list_tasks", "list_leased_tasks", "list_group",
    "sweep", "look_for_work", "look_around", "mark_idle", "clear_idle", "prepare_partitions",
    "apply_retention",
    "fan_out",
    "get_join", "join_results", "task_tree", "wait_for_task", "list_steps", "open_stream",
    "read_stream", "get_stream", "watch_tasks", "unwatch_tasks", "peek_tasks",
    "try_lock", "renew_lock", "release_lock", "assert_lock", "put_schedule", "get_schedule",
    "list_schedules", "pause_schedule", "resume_schedule", "trigger_schedule", "delete_schedule",
    "next_schedule_at", "due_schedules", "fire_schedules",
}  # fmt: skip


def test_a_function_that_runs_with_its_owners_rights_pins_its_search_path(queue: Queue) -> None:
    found = queue.rows(FUNCTIONS)
    definers = [row for row in found if row.definer]
    assert {row.word for row in definers} >= VERBS - INVOKERS
    for row in found:
        if row.definer or row.word in INVOKERS:
            assert "search_path=pg_catalog, sokka, pg_temp" in row.settings, row.name


def test_nobody_may_call_anything_unless_it_was_granted(queue: Queue) -> None:
    assert [row.name for row in queue.rows(FUNCTIONS) if row.is_public] == []


def test_there_is_one_function_per_name(queue: Queue) -> None:
    words = [row.word for row in queue.rows(FUNCTIONS)]
    assert len(words) == len(set(words))
    assert set(words) >= VERBS


def test_the_verbs_are_volatile(queue: Queue) -> None:
    found = {row.word: row.volatility for row in queue.rows(FUNCTIONS)}
    assert {found[verb] for verb in VERBS} == {"v"}


@pytest.fixture
def attacker(fresh: Queue) -> Iterator[str]:
    """A role that may call every verb, and nothing else; also in ``fresh`` itself."""
    name = f"attacker_{uuid.uuid4().hex[:12]}"
    fresh.execute(f"create role {name}")
    fresh.execute(f"grant usage on schema sokka to {name}")
    for row in fresh.rows(FUNCTIONS):
        if row.word in VERBS:
            fresh.execute(f"grant execute on function {row.name} to {name}")
    yield name
    fresh.execute("reset role")
    fresh.execute(f"drop owned by {name} cascade")
    fresh.execute(f"drop role {name}")


COLUMNS = """
    select c.relname as name, string_agg(format('%I %s', a.attname,
               case when t.typnamespace = 'pg_catalog'::regnamespace
                    then format_type(a.atttypid, a.atttypmod) else 'text' end), ', '
               order by a.attnum) as columns
      from pg_class c join pg_attribute a on a.attrelid = c.oid join pg_type t on t.oid = a.atttypid
     where c.relnamespace = 'sokka'::regnamespace and c.relkind in ('r', 'p', 'v')
       and a.attnum > 0 and not a.attisdropped
     group by c.relname
"""


def test_a_temporary_table_of_the_same_name_forges_nothing(fresh: Queue, attacker: str) -> None:
    task = states.running_of_another(fresh)
    relations = fresh.rows(COLUMNS)
    fresh.execute(f"set role {attacker}")
    for relation in relations:
        fresh.execute(f"create temp table {relation.name} ({relation.columns})")
    for table in ("tasks", "locked_task"):
        fresh.execute(
            f"insert into {table} (task_id, topic, status, pid, token, lease_expires_at)"
            " values (%s, 'mine', 'running', 'w1', 42, now() + interval '1 day')",
            task.task_id,
        )
    fresh.execute("insert into settings (max_data_bytes) values (1)")
    fresh.execute("insert into locks (key, owner, lock_expires_at) values ('k', 'w1', 'infinity')")
    fresh.execute("set search_path = pg_temp, sokka, public")
    for verb, options in LEASE_VERBS.items():
        found = fresh.refused(verb, task_id=task.task_id, pid="w1", token=42, **options)
        assert found.sqlstate == "SK003", verb
    assert fresh.call("get_task", task_id=task.task_id)[0].pid == "w2"
    assert fresh.create("t", data={"larger": "than the forged limit"})
    assert fresh.reserve("t").pid == "w1"
    assert fresh.call("list_tasks")[0].topic != "mine"
    assert fresh.one("try_lock", key="k", owner="w1", ttl="1 minute").token > 42
    assert put(fresh, "s").created
    assert fire_due(fresh)[0].verdict == "ok"
    fresh.execute("reset role")
    assert fresh.value("select count(*) from pg_temp.finished_tasks") == 0
    assert fresh.value("select count(*) from pg_temp.schedules") == 0


def test_operators_and_functions_of_the_callers_shadow_nothing(
    fresh: Queue, attacker: str
) -> None:
    task = states.running_of_another(fresh)
    fresh.execute(f"create schema evil authorization {attacker}")
    fresh.execute(f"set role {attacker}")
    for left in ("uuid", "text", "bigint"):
        fresh.execute(
            f"create function evil.yes({left}, {left}) returns boolean language sql"
            " as 'select true'"
        )
        fresh.execute(
            f"create function evil.no({left}, {left}) returns boolean language sql"
            " as 'select false'"
        )
        for operator, answer in (("=", "yes"), ("<>", "no")):
            fresh.execute(
                f"create operator evil.{operator} (leftarg = {left}, rightarg = {left},"
                f" function = evil.{answer})"
            )
    fresh.execute(
        "create function evil.clock_timestamp() returns timestamptz language sql"
        " as $$ select timestamptz '1970-01-01' $$"
    )
    fresh.execute("set search_path = evil, pg_catalog, sokka, pg_temp")
    for verb, options in LEASE_VERBS.items():
        found = fresh.refused(verb, task_id=task.task_id, pid="w1", token=task.token, **options)
        assert found.sqlstate == "SK003", verb
    lease = fresh.leased("t")
    assert lease.leased_at.year > 1970
    found = fresh.refused("terminate_task", task_id=lease.task_id, pid="w1", token=1)
    assert found.sqlstate == "SK005"


def test_a_caller_of_verbs_reads_and_writes_no_table(fresh: Queue, attacker: str) -> None:
    rights = fresh.rows(
        "select c.relname, p.privilege from pg_class c, unnest(array['SELECT', 'INSERT', 'UPDATE',"
        " 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) p (privilege)"
        " where c.relnamespace = 'sokka'::regnamespace and c.relkind in ('r', 'p', 'v')"
        " and has_table_privilege(%s, c.oid, p.privilege)",
        (attacker,),
    )
    assert rights == []
    fresh.execute(f"set role {attacker}")
    for table in ("tasks", "finished_tasks", "all_tasks", "settings"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            fresh.execute(f"select from sokka.{table}")


def test_no_setting_of_the_caller_stands_for_its_identity(fresh: Queue, attacker: str) -> None:
    """Only hints and the fence's note to guarded tables are settings."""
    names = {
        word
        for row in fresh.rows(FUNCTIONS)
        for word in row.body.split("'")
        if word.startswith(("skpg", "sokka."))
    }
    assert {name for name in names if name.startswith("skpg")} == {
        "skpg_hint.sokka", "skpg_turn.sokka", "skpg_fence.sokka",
    }  # fmt: skip

"""What no caller may do to the tables by hand, the owner included."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.sql import states
from tests.sql.calling import Queue, refusal_of
from tests.sql.states import Claim

KEPT = "pid = 'w', lease_expires_at = now() + interval '1 hour', leased_at = now()"
LEASED = f"token = nextval('sokka.token_seq'), {KEPT}"
UNLEASED = "token = null, pid = null, lease_expires_at = null, leased_at = null"
ILLEGAL: dict[str, tuple[states.State, str]] = {
    "starting to snoozed": (states.starting, "status = 'snoozed'"),
    "snoozed to running": (states.snoozed, "status = 'running', " + LEASED),
    "running to a new token": (states.running, "token = nextval('sokka.token_seq')"),
    "another task's id": (states.starting, "task_id = gen_random_uuid()"),
}
BROKEN: dict[str, tuple[states.State, str]] = {
    "a lease while starting": (states.starting, "token = 5, pid = 'w', lease_expires_at = now()"),
    "running without a lease": (states.starting, "status = 'running'"),
    "a lease without an owner": (states.running, "pid = null"),
    "a lease without an end": (states.running, "lease_expires_at = null"),
    "starting with its lease": (states.running, "status = 'starting'"),
    "failed while live": (states.starting, "status = 'failed'"),
    "terminated while live": (states.running, "status = 'terminated', " + UNLEASED),
    "a status of its own": (states.starting, "status = 'paused'"),
}


def attempt(queue: Queue, statement: str, *params: Any) -> tuple[str, dict[str, Any]]:
    with pytest.raises(psycopg.Error) as caught, queue.connection.transaction():
        queue.execute(statement, *params)
    found = refusal_of(caught.value)
    return found.sqlstate, found.detail


def change(queue: Queue, claim: Claim, assignments: str) -> tuple[str, dict[str, Any]]:
    return attempt(
        queue, f"update sokka.tasks set {assignments} where task_id = %s", claim.task_id
    )


@pytest.mark.parametrize("move", ILLEGAL)
def test_a_move_that_is_not_in_the_contract_is_refused(queue: Queue, move: str) -> None:
    state, assignments = ILLEGAL[move]
    claim = state(queue)
    before, row = queue.image(claim.task_id), queue.row(claim.task_id)
    sqlstate, detail = change(queue, claim, assignments)
    assert sqlstate == "SK006"
    assert (detail["status"], detail["record_ver"]) == (row.status, row.record_ver)
    assert queue.image(claim.task_id) == before


@pytest.mark.parametrize("move", BROKEN)
def test_a_row_that_contradicts_itself_is_refused(queue: Queue, move: str) -> None:
    state, assignments = BROKEN[move]
    claim = state(queue)
    before = queue.image(claim.task_id)
    sqlstate, _ = change(queue, claim, assignments)
    assert sqlstate in ("SK006", "23514")
    assert queue.image(claim.task_id) == before


@pytest.mark.parametrize("status", ["running", "failed", "terminated"])
def test_a_task_begins_as_starting_or_snoozed(queue: Queue, status: str) -> None:
    claim = states.running(queue)
    columns = queue.value(
        "select string_agg(attname, ', ') from pg_attribute"
        " where attrelid = 'sokka.tasks'::regclass and attnum > 0"
        " and attname not in ('task_id', 'token', 'status')"
    )
    sqlstate, _ = attempt(
        queue,
        f"insert into sokka.tasks (task_id, token, status, {columns}) select gen_random_uuid(),"
        f" 7, '{status}', {columns} from sokka.tasks where task_id = %s",
        claim.task_id,
    )
    assert sqlstate in ("SK006", "23514")


COPY = (
    "insert into sokka.tasks (task_id, task_group_id, created_at, updated_at, run_at, queue_pos,"
    " priority, max_attempts, max_losses, topic, sub_topic, kind, {columns})"
    " select gen_random_uuid(), task_group_id, created_at, updated_at, run_at, queue_pos,"
    " priority, max_attempts, max_losses, topic, sub_topic, kind, {values} from sokka.tasks"
    " where task_id = %s"
)
BEGUN: dict[str, tuple[str, str, str]] = {
    "of no status": ("status", "null", "23502"),
    "of a status of its own": ("status", "'paused'", "SK006"),
    "of another case": ("status", "'Starting'", "SK006"),
    "leased while starting": (
        "status, token, pid, lease_expires_at", "'starting', 5, 'w', now()", "23514",
    ),
    "owned while starting": ("status, pid", "'starting', 'w'", "23514"),
}  # fmt: skip


@pytest.mark.parametrize("what", BEGUN)
def test_no_task_begins(queue: Queue, what: str) -> None:
    columns, values, expected = BEGUN[what]
    claim = states.starting(queue)
    sqlstate, _ = attempt(queue, COPY.format(columns=columns, values=values), claim.task_id)
    assert sqlstate == expected


STATUSES = ("starting", "running", "snoozed", "failed", "terminated", "paused", None)
MOVES = {
    ("starting", "running"), ("running", "snoozed"), ("running", "starting"),
    ("snoozed", "starting"),
}  # fmt: skip
@pytest.mark.parametrize("new", STATUSES)
@pytest.mark.parametrize("state", [states.starting, states.running, states.snoozed])
def test_only_the_moves_of_the_contract_can_be_made_by_hand(
    queue: Queue, state: states.State, new: str | None
) -> None:
    claim = state(queue)
    old = queue.row(claim.task_id).status
    rest = UNLEASED if new != "running" else KEPT if old == "running" else LEASED
    statement = f"update sokka.tasks set {rest}, status = %s where task_id = %s"
    if (old, new) in MOVES or old == new:
        queue.execute(statement, new, claim.task_id)
        assert queue.row(claim.task_id).status == new
        return
    sqlstate, _ = attempt(queue, statement, new, claim.task_id)
    assert sqlstate == ("23502" if new is None else "SK006")
    assert queue.row(claim.task_id).status == old


@pytest.mark.parametrize("state", [states.failed, states.terminated])
@pytest.mark.parametrize(
    "statement",
    [
        "update sokka.finished_tasks set status = 'terminated', error = null where task_id = %s",
        "update sokka.finished_tasks set result = '1' where task_id = %s",
        "update sokka.finished_tasks set finished_at = finished_at - interval '1 year'"
        " where task_id = %s",
        "delete from sokka.finished_tasks where task_id = %s",
    ],
)
def test_a_finished_task_is_neither_changed_nor_removed(
    queue: Queue, state: states.State, statement: str
) -> None:
    claim = state(queue)
    before = queue.image(claim.task_id)
    sqlstate, detail = attempt(queue, statement, claim.task_id)
    assert sqlstate == "42501"
    assert detail
    assert queue.image(claim.task_id) == before


@pytest.mark.parametrize(
    "statement",
    [
        "update sokka.past_leases set pid = 'me'", "delete from sokka.past_leases",
        "update sokka.audit_entries set actor = 'me'", "delete from sokka.audit_entries",
    ],
)  # fmt: skip
def test_history_and_audit_log_only_grow(queue: Queue, statement: str) -> None:
    claim = states.released(queue)
    queue.call("cancel_task", task_id=claim.task_id)
    sqlstate, _ = attempt(queue, f"{statement} where task_id = %s", claim.task_id)
    assert sqlstate == "42501"


def test_nothing_that_is_kept_can_be_truncated(fresh: Queue) -> None:
    states.failed(fresh)
    states.released(fresh)
    tables = fresh.rows(
        "select c.oid::regclass::text as name from pg_class c"
        " where relnamespace = 'sokka'::regnamespace and relkind in ('r', 'p')"
        " and relname ~ '^(tasks|finished_tasks|past_leases|audit_entries)'"
    )
    assert len(tables) >= 4 + 2 * 5
    for table in tables:
        sqlstate, _ = attempt(fresh, f"truncate {table.name}")
        assert sqlstate == "42501", table.name
        sqlstate, _ = attempt(fresh, f"truncate {table.name} cascade")
        assert sqlstate == "42501", table.name


def test_a_change_by_hand_raises_the_version_too(queue: Queue) -> None:
    claim = states.starting(queue)
    queue.execute("update sokka.tasks set priority = 1 where task_id = %s", claim.task_id)
    queue.execute("update sokka.tasks set record_ver = 1 where task_id = %s", claim.task_id)
    assert queue.row(claim.task_id).record_ver == 3


def test_the_guards_hold_in_every_partition_also_those_to_come(fresh: Queue) -> None:
    fresh.call("prepare_partitions")
    fresh.execute("alter table sokka.finished_tasks disable trigger user")
    fresh.execute("alter table sokka.finished_tasks enable trigger user")
    claim = states.terminated(fresh)
    partition = fresh.value(
        "select tableoid::regclass::text from sokka.finished_tasks where task_id = %s",
        claim.task_id,
    )
    assert attempt(fresh, f"update {partition} set result = null")[0] == "42501"
    assert attempt(fresh, f"delete from {partition}")[0] == "42501"

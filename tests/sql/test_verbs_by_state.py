"""Every verb on every state: who may, and what each other one is told."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.sql import states
from tests.sql.calling import Queue
from tests.sql.states import LEASE_VERBS, WRONG_STATES, State


def by_name(value: object) -> str | None:
    return value.__name__ if callable(value) else None


@pytest.mark.parametrize("state", WRONG_STATES, ids=by_name)
@pytest.mark.parametrize("verb", LEASE_VERBS)
def test_a_verb_without_a_live_newest_lease_is_refused_and_changes_nothing(
    queue: Queue, verb: str, state: State
) -> None:
    claim = state(queue)
    before = queue.image(claim.task_id)
    found = queue.refused(verb, **claim.arguments(), **LEASE_VERBS[verb])
    assert found.sqlstate == WRONG_STATES[state], found
    assert queue.image(claim.task_id) == before
    assert found.detail["task_id"] == str(claim.task_id)
    wanted = found.detail["expected"]
    assert (wanted["pid"], wanted["token"]) == (claim.pid, claim.token)


@pytest.mark.parametrize("state", [s for s in WRONG_STATES if s is not states.unknown], ids=by_name)
def test_a_refusal_tells_how_the_row_stands(queue: Queue, state: State) -> None:
    claim = state(queue)
    row = queue.row(claim.task_id)
    detail = queue.refused("extend_lease", **claim.arguments()).detail
    for column in ("status", "pid", "token", "record_ver"):
        assert detail[column] == getattr(row, column), column


def test_a_verb_on_a_task_that_is_not_running_names_the_status_it_needs(queue: Queue) -> None:
    claim = states.snoozed(queue)
    detail = queue.refused("terminate_task", **claim.arguments()).detail
    assert detail["expected"]["status"] == ["running"]


@pytest.mark.parametrize("column", ["task_id", "pid", "token"])
@pytest.mark.parametrize("state", [states.running, states.terminated, states.unknown], ids=by_name)
@pytest.mark.parametrize("verb", LEASE_VERBS)
def test_null_in_place_of_a_proof_never_passes(
    queue: Queue, verb: str, state: State, column: str
) -> None:
    claim = state(queue)
    before = queue.image(claim.task_id)
    arguments = claim.arguments() | {column: None}
    found = queue.refused(verb, **arguments, **LEASE_VERBS[verb])
    assert (found.sqlstate, found.detail["argument"]) == ("22023", column)
    assert queue.image(claim.task_id) == before


LEFT_BY_VERB = {
    "extend_lease": "running",
    "renew_lease": "running",
    "release_lease": "starting",
    "terminate_task": "terminated",
    "snooze_task": "snoozed",
    "fail_task": "failed",
    "retry_task": "failed",
    "report_progress": "running",
    "save_checkpoint": "running",
    "record_step": "running",
    "append_stream": "running",
    "assert_lease": "running",
}
# These write beside the task's row, and nothing on it.
LEAVE_THE_ROW = {"assert_lease", "record_step", "append_stream"}


@pytest.mark.parametrize("verb", LEFT_BY_VERB)
def test_the_owner_of_the_newest_live_lease_may(queue: Queue, verb: str) -> None:
    claim = states.running(queue)
    before = queue.row(claim.task_id)
    (answer,) = queue.call(verb, **claim.arguments(), **LEASE_VERBS[verb])
    after = queue.row(claim.task_id)
    assert after.status == LEFT_BY_VERB[verb]
    if verb in LEAVE_THE_ROW:
        assert after == before
    else:
        assert after.record_ver > before.record_ver
    if hasattr(answer, "record_ver"):
        assert answer.record_ver == after.record_ver
    if hasattr(answer, "status"):
        assert (answer.status, answer.run_at) == (after.status, after.run_at)
    if after.status != "running":
        again = queue.refused(verb, **claim.arguments(), **LEASE_VERBS[verb])
        assert again.sqlstate == ("SK002" if after.finished_at else "SK006")


REVOKED: dict[State, str] = {
    states.unknown: "SK001",
    states.failed: "SK002",
    states.terminated: "SK002",
    states.starting: "SK006",
    states.snoozed: "starting",
    states.running: "starting",
    states.running_of_another: "starting",
    states.expired: "starting",
}
CANCELLED: dict[State, str] = {
    states.unknown: "SK001",
    states.failed: "already_done",
    states.terminated: "already_done",
    states.starting: "cancelled",
    states.snoozed: "cancelled",
    states.running: "requested",
    states.expired: "requested",
}
ACQUIRED: dict[State, str] = {
    states.unknown: "SK001",
    states.failed: "SK002",
    states.terminated: "SK002",
    states.starting: "w1",
    states.released: "w1",
    states.snoozed: "SK010",
    states.running: "w1",
    states.running_of_another: "SK009",
    states.expired: "w1",
}
RESUBMITTED: dict[State, str] = {
    states.unknown: "SK001",
    states.failed: "starting",
    states.terminated: "starting",
    states.starting: "SK006",
    states.snoozed: "SK006",
    states.running: "SK006",
    states.expired: "SK006",
}


def accept_or_refuse(
    queue: Queue, function: str, task_id: UUID, answer: str, expected: str, **arguments: Any
) -> None:
    """Expect a SQLSTATE, with nothing changed, or a value in the answer."""
    if not expected.startswith("SK"):
        (row,) = queue.call(function, task_id=task_id, **arguments)
        assert getattr(row, answer) == expected
        return
    before = queue.image(task_id)
    found = queue.refused(function, task_id=task_id, **arguments)
    assert found.sqlstate == expected
    assert found.detail["task_id"] == str(task_id)
    assert queue.image(task_id) == before


@pytest.mark.parametrize("state", REVOKED, ids=by_name)
def test_revoking_takes_a_task_from_whoever_has_it(queue: Queue, state: State) -> None:
    claim = state(queue)
    rows = queue.rows(
        "select record_ver from sokka.all_tasks where task_id = %s", (claim.task_id,)
    )
    version = rows[0].record_ver if rows else 1
    accept_or_refuse(
        queue, "revoke_lease", claim.task_id, "status", REVOKED[state], record_ver=version
    )


@pytest.mark.parametrize("state", [s for s in REVOKED if s is not states.unknown], ids=by_name)
@pytest.mark.parametrize("off_by", [-1, 1])
def test_revoking_needs_the_version_last_read(queue: Queue, state: State, off_by: int) -> None:
    claim = state(queue)
    before, row = queue.image(claim.task_id), queue.row(claim.task_id)
    found = queue.refused(
        "revoke_lease", task_id=claim.task_id, record_ver=row.record_ver + off_by
    )
    assert found.sqlstate == ("SK002" if row.finished_at else "SK007")
    assert found.detail["record_ver"] == row.record_ver
    assert found.detail["expected"]["record_ver"] == row.record_ver + off_by
    assert queue.image(claim.task_id) == before


@pytest.mark.parametrize("state", CANCELLED, ids=by_name)
def test_cancelling_ends_the_waiting_and_asks_the_running(queue: Queue, state: State) -> None:
    claim = state(queue)
    accept_or_refuse(queue, "cancel_task", claim.task_id, "outcome", CANCELLED[state])


@pytest.mark.parametrize("state", [states.failed, states.terminated], ids=by_name)
def test_cancelling_a_finished_task_changes_nothing(queue: Queue, state: State) -> None:
    claim = state(queue)
    before = queue.image(claim.task_id)
    answer = queue.one("cancel_task", task_id=claim.task_id, reason="too late")
    assert (answer.status, answer.outcome) == (state.__name__, "already_done")
    assert queue.image(claim.task_id) == before


@pytest.mark.parametrize("state", ACQUIRED, ids=by_name)
def test_acquiring_takes_what_nobody_else_holds(queue: Queue, state: State) -> None:
    claim = state(queue)
    accept_or_refuse(
        queue, "acquire_lease", claim.task_id, "pid", ACQUIRED[state], pid="w1", lease="1 hour"
    )


@pytest.mark.parametrize("state", RESUBMITTED, ids=by_name)
def test_only_a_finished_task_is_resubmitted(queue: Queue, state: State) -> None:
    claim = state(queue)
    accept_or_refuse(queue, "resubmit_task", claim.task_id, "status", RESUBMITTED[state])


@pytest.mark.parametrize("state", [*WRONG_STATES, states.running], ids=by_name)
def test_reading_a_task_works_in_every_state(queue: Queue, state: State) -> None:
    claim = state(queue)
    found = queue.call("get_task", task_id=claim.task_id)
    assert len(found) == (0 if state is states.unknown else 1)
    assert found == queue.rows(
        "select * from sokka.all_tasks where task_id = %s", (claim.task_id,)
    )

"""An open fence: what it holds up, what passes it, what cannot pass by accident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.races.ordering import Session, accepted, answer, refused
from tests.sql.calling import Clock, Queue, Row
from tests.sql.states import ERROR

Sessions = Callable[..., Session]

ENDS: dict[str, dict[str, Any]] = {
    "release_lease": {},
    "snooze_task": {"snooze": "1 minute"},
    "retry_task": {"error": ERROR, "delay": "1 minute"},
    "fail_task": {"error": ERROR},
    "terminate_task": {},
    "renew_lease": {"lease": "1 minute"},
}
PASSES: dict[str, dict[str, Any]] = {
    "extend_lease": {"lease": "2 hours"},
    "renew_lease": {"lease": "2 hours"},
    "report_progress": {"progress": Jsonb(1)},
    "save_checkpoint": {"checkpoint": Jsonb(1)},
    "assert_lease": {},
}


def fence(session: Session, held: Row) -> None:
    session.verb("assert_lease", held)


@pytest.mark.parametrize("verb", ENDS)
def test_an_end_or_a_shorter_lease_waits_for_an_open_fence(
    queue: Queue, opened: Session, other: Session, verb: str
) -> None:
    lease = queue.leased("t", max_attempts=3)
    fence(opened, lease)
    before = queue.image(lease.task_id)
    call = other.begin_verb(verb, lease, **ENDS[verb])
    other.blocked_by(opened)
    assert queue.image(lease.task_id) == before
    opened.commit()
    assert accepted(call).record_ver > lease.record_ver


@pytest.mark.parametrize("verb", ENDS)
def test_the_wait_for_a_fence_is_bounded(
    queue: Queue, opened: Session, other: Session, verb: str
) -> None:
    lease = queue.leased("t", max_attempts=3)
    fence(opened, lease)
    before = queue.image(lease.task_id)
    assert refused(other.begin_verb(verb, lease, **ENDS[verb])) == "55P03"
    assert queue.image(lease.task_id) == before


@pytest.mark.parametrize("verb", PASSES)
def test_a_heartbeat_passes_an_open_fence(
    queue: Queue, opened: Session, other: Session, verb: str
) -> None:
    lease = queue.leased("t")
    fence(opened, lease)
    accepted(other.begin_verb(verb, lease, **PASSES[verb]))
    opened.commit()


def test_a_cancel_request_passes_an_open_fence(
    queue: Queue, opened: Session, other: Session
) -> None:
    lease = queue.leased("t")
    fence(opened, lease)
    assert accepted(other.begin("cancel_task", task_id=lease.task_id)).outcome == "requested"
    # The owner's own end wins.
    assert opened.verb("terminate_task", lease).status == "terminated"
    opened.commit()
    assert queue.row(lease.task_id).status == "terminated"


def test_a_revoke_does_not_wait_for_a_fence(queue: Queue, opened: Session, other: Session) -> None:
    lease = queue.leased("t")
    fence(opened, lease)
    before = queue.image(lease.task_id)
    call = other.begin("revoke_lease", task_id=lease.task_id, record_ver=lease.record_ver)
    assert refused(call) == "55P03"
    assert queue.image(lease.task_id) == before
    opened.commit()
    accepted(other.begin("revoke_lease", task_id=lease.task_id, record_ver=lease.record_ver))


def test_nobody_gets_a_newer_token_while_a_fence_is_open_on_an_expired_lease(
    queue: Queue, opened: Session, session: Sessions, clock: Clock
) -> None:
    clock.stop()
    lease = queue.leased("t", lease="1 s")
    rest = queue.leased("rest", lease="1 s")
    fence(opened, lease)
    clock.advance("10 s")
    # The sweep takes back the rest of its batch.
    (swept,) = queue.call("sweep")
    assert (swept.taken_back, swept.failed_lost) == (1, 0)
    assert queue.row(rest.task_id).status == "starting"
    clock.advance("1 s")
    assert queue.call("reserve_tasks", topics=["t"], pid="w2", max_tasks=5) == []
    waiting = session()
    acquiring = waiting.begin("acquire_lease", task_id=lease.task_id, pid="w2", lease="1 hour")
    waiting.blocked_by(opened)
    assert queue.row(lease.task_id).token == lease.token
    (shown,) = queue.rows("select * from sokka.open_fences")
    assert (shown.task_id, shown.token, shown.backend_pid) == (
        lease.task_id, lease.token, opened.pid,
    )  # fmt: skip
    opened.execute("create table written ()")
    opened.commit()
    assert accepted(acquiring).token > lease.token
    assert queue.rows("select * from sokka.open_fences") == []


def test_a_fence_is_not_opened_on_an_expired_lease(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    lease = queue.leased("t", lease="1 s")
    fence(opened, lease)
    clock.advance("1 s")
    assert refused(other.begin_verb("assert_lease", lease)) == "SK004"
    # Nor may the one that is open write what it may not.
    assert refused(opened.begin_verb("terminate_task", lease)) == "SK004"


TAKE_OVERS = {
    "to a new owner": "update sokka.tasks set token = nextval('sokka.token_seq'), pid = 'thief'",
    "to nobody": "update sokka.tasks set status = 'starting', token = null, pid = null,"
    " lease_expires_at = null, leased_at = null, reserved_seq = null",
    "away": "delete from sokka.tasks",
}


@pytest.mark.parametrize("how", TAKE_OVERS)
def test_a_take_over_that_forgot_to_lock_waits_for_the_fence_all_the_same(
    queue: Queue, opened: Session, other: Session, how: str
) -> None:
    # Without the guard that knows the legal moves: the lock alone must do.
    queue.execute("alter table sokka.tasks disable trigger tasks_move")
    lease = queue.leased("t")
    fence(opened, lease)
    call = other.begin_act(lambda: other.execute(TAKE_OVERS[how]))
    other.blocked_by(opened)
    assert not call.done()
    opened.rollback()
    answer(call)


def test_a_fence_undone_to_a_savepoint_holds_nobody_up(
    queue: Queue, opened: Session, other: Session
) -> None:
    lease = queue.leased("t")
    opened.execute("savepoint before")
    fence(opened, lease)
    opened.execute("rollback to savepoint before")
    assert accepted(other.begin_verb("release_lease", lease)).status == "starting"
    opened.commit()


def test_heartbeats_go_on_while_an_end_waits_for_the_fence(
    queue: Queue, opened: Session, session: Sessions
) -> None:
    lease = queue.leased("t")
    fence(opened, lease)
    ender, heart = session(), session()
    ending = ender.begin_verb("release_lease", lease)
    ender.blocked_by(opened)
    accepted(heart.begin_verb("extend_lease", lease))
    opened.commit()
    accepted(ending)


def test_heartbeats_go_on_while_a_shorter_lease_waits_for_the_fence(
    queue: Queue, opened: Session, session: Sessions
) -> None:
    lease = queue.leased("t")
    fence(opened, lease)
    shortener, heart = session(), session()
    shortening = shortener.begin_verb("renew_lease", lease, lease="1 minute")
    shortener.blocked_by(opened)
    accepted(heart.begin_verb("extend_lease", lease))
    opened.commit()
    accepted(shortening)


def test_a_fence_that_ends_its_task_does_not_deadlock_with_a_shorter_lease(
    queue: Queue, opened: Session, other: Session
) -> None:
    lease = queue.leased("t")
    fence(opened, lease)
    shortening = other.begin_verb("renew_lease", lease, lease="1 minute")
    other.blocked_by(opened)
    assert accepted(opened.begin_verb("terminate_task", lease)).status == "terminated"
    opened.commit()
    assert refused(shortening) == "SK002"


@pytest.mark.parametrize("verb", ["release_lease", "terminate_task", "snooze_task"])
def test_of_an_end_and_the_fence_that_ends_the_task_one_wins_and_none_deadlocks(
    queue: Queue, opened: Session, other: Session, verb: str
) -> None:
    lease = queue.leased("t")
    fence(opened, lease)
    ending = other.begin_verb(verb, lease, **ENDS[verb])
    other.blocked_by(opened)
    assert accepted(opened.begin_verb("terminate_task", lease)).status == "terminated"
    opened.commit()
    assert refused(ending) == "SK002"


def test_work_and_its_end_in_one_fenced_transaction_happen_together(
    queue: Queue, opened: Session
) -> None:
    queue.execute("create table effects (task_id uuid primary key)")
    lease = queue.leased("t")
    for commit in (False, True):
        fence(opened, lease)
        opened.execute("insert into effects values (%s)", lease.task_id)
        opened.verb("terminate_task", lease)
        opened.commit() if commit else opened.rollback()
        assert queue.value("select count(*) from effects") == int(commit)
        assert queue.row(lease.task_id).status == ("terminated" if commit else "running")


def test_a_prepared_fence_holds_after_its_session_has_gone(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    lease = queue.leased("t", lease="1 s")
    fence(opened, lease)
    opened.execute("prepare transaction 'fence'")
    opened.connection.close()
    clock.advance("1 s")
    assert queue.one("sweep").taken_back == 0
    (shown,) = queue.rows("select * from sokka.open_fences")
    assert (shown.task_id, shown.backend_pid) == (lease.task_id, None)
    queue.execute("rollback prepared 'fence'")
    assert queue.one("sweep").taken_back == 1

"""Leases by hand: who may do what, and what a lost lease refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from sokka_pg.errors import (
    AlreadyDone,
    BadArgument,
    InvalidStatusTransition,
    LeaseExpired,
    LeaseHeld,
    LeaseLost,
    NoTaskFound,
    NotDue,
    StaleToken,
    TaskConcurrentlyUpdated,
    WrongOwner,
)
from sokka_pg.model import Status
from sokka_pg.workload import (
    FencingToken,
    LeaseOwner,
    TaskFailure,
    TaskLease,
    TaskProgress,
    TaskRef,
    TaskSubmission,
)
from tests.faults.waiting import until
from tests.workload.faces import Face

UNKNOWN = "0190a0a0-0000-7000-8000-000000000009"

VERBS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "renew_lease": lambda s, *proof: s.renew_lease(*proof),
    "release_lease": lambda s, *proof: s.release_lease(*proof),
    "report_progress": lambda s, *proof: s.report_progress(*proof, TaskProgress(1)),
    "checkpoint": lambda s, *proof: s.checkpoint(*proof, {"at": "1"}),
    "complete": lambda s, *proof: s.complete(*proof, {"ok": True}),
    "fail": lambda s, *proof: s.fail(*proof, TaskFailure("no", "no")),
    "append_stream": lambda s, *proof: s.append_stream(*proof, [1]),
}
every_verb = pytest.mark.parametrize("verb", VERBS)


def leased(face: Face, duration: float | None = 60, owner: str = "ann", **more: Any) -> TaskLease:
    handle = face(lambda s: s.submit(TaskSubmission(**more)))
    lease: TaskLease = face(lambda s: s.acquire_lease(handle.task_id, owner, duration))
    return lease


def proof(lease: TaskLease) -> tuple[Any, Any, Any]:
    return lease.task_id, lease.owner, lease.token


def use(face: Face, verb: str, lease: TaskLease) -> Any:
    return face(lambda s: VERBS[verb](s, *proof(lease)))


def expired(conn: psycopg.Connection, lease: TaskLease) -> None:
    query = "select lease_expires_at <= clock_timestamp() from sokka.tasks where task_id = %s"
    until(lambda: conn.execute(query, (lease.task_id,)).fetchone()[0])  # type: ignore[index]


def unchanged(face: Face, lease: TaskLease) -> Any:
    found = face(lambda s: s.status(lease.task_id))
    return found.status, found.progress, found.checkpoint, found.token, found.result


# --- a life -----------------------------------------------------------------


def test_a_task_goes_from_hand_to_hand(face: Face) -> None:
    first = leased(face, payload={"n": 1}, metadata={"from": "test"})
    assert (first.payload, first.metadata, first.attempt) == ({"n": 1}, {"from": "test"}, 1)
    assert first.checkpoint is None
    saved = face(lambda s: s.checkpoint(*proof(first), {"page": "7"}))
    assert (saved.seq, saved.metadata, saved.token) == (1, {"page": "7"}, first.token)
    face(lambda s: s.release_lease(*proof(first)))

    second = face(lambda s: s.acquire_lease(first.task_id, LeaseOwner("bob"), 60))
    assert second.token > first.token
    assert second.checkpoint.metadata == {"page": "7"}
    assert second.checkpoint.seq == 1
    face(lambda s: s.complete(*proof(second), [1, 2]))
    found = face(lambda s: s.status(first.task_id))
    assert (found.status, found.result, found.succeeded) == (Status.TERMINATED, [1, 2], True)
    assert found.owner == LeaseOwner("bob")


def test_owner_and_token_may_be_plain(face: Face) -> None:
    lease = leased(face)
    face(lambda s: s.report_progress(str(lease.task_id), "ann", int(lease.token), TaskProgress(5)))
    face(lambda s: s.complete(TaskRef(lease.task_id), "ann", lease.token.value))
    assert face(lambda s: s.status(lease.task_id)).done


def test_a_renewed_lease_keeps_its_token_and_may_become_shorter(face: Face) -> None:
    lease = leased(face, 600)
    renewed = face(lambda s: s.renew_lease(*proof(lease), 60))
    assert (renewed.token, renewed.owner) == (lease.token, lease.owner)
    assert renewed.expires_at < lease.expires_at


def test_an_owner_who_acquires_again_loses_the_old_token(face: Face) -> None:
    lease = leased(face)
    again = face(lambda s: s.acquire_lease(lease.task_id, "ann", 60))
    assert again.token > lease.token
    with pytest.raises(StaleToken):
        use(face, "renew_lease", lease)


def test_a_live_lease_keeps_others_out(face: Face) -> None:
    lease = leased(face)
    with pytest.raises(LeaseHeld):
        face(lambda s: s.acquire_lease(lease.task_id, "bob", 60))


def test_what_is_not_there_or_not_due_cannot_be_acquired(
    face: Face, conn: psycopg.Connection
) -> None:
    with pytest.raises(NoTaskFound):
        face(lambda s: s.acquire_lease(UNKNOWN, "ann"))
    tomorrow = conn.execute("select now() + interval '1 day'").fetchone()
    assert tomorrow is not None
    later = face(lambda s: s.submit(TaskSubmission(run_at=tomorrow[0])))
    with pytest.raises(NotDue):
        face(lambda s: s.acquire_lease(later.task_id, "ann"))
    lease = leased(face)
    face(lambda s: s.complete(*proof(lease)))
    with pytest.raises(AlreadyDone):
        face(lambda s: s.acquire_lease(lease.task_id, "ann"))


def test_a_failure_is_kept_whole(face: Face) -> None:
    lease = leased(face)
    failure = TaskFailure("full", "no room", retryable=True, details={"left": 0})
    face(lambda s: s.fail(*proof(lease), failure))
    found = face(lambda s: s.status(lease.task_id))
    assert (found.status, found.failure) == (Status.FAILED, failure)


# --- stale owners -----------------------------------------------------------


@every_verb
def test_an_expired_lease_is_refused(face: Face, verb: str, conn: psycopg.Connection) -> None:
    lease = leased(face, 0.05)
    expired(conn, lease)
    before = unchanged(face, lease)
    with pytest.raises(LeaseExpired):
        use(face, verb, lease)
    assert unchanged(face, lease) == before


@every_verb
def test_a_stale_token_is_refused(face: Face, verb: str) -> None:
    stale = leased(face)
    face(lambda s: s.acquire_lease(stale.task_id, "ann", 60))
    before = unchanged(face, stale)
    with pytest.raises(StaleToken):
        use(face, verb, stale)
    assert unchanged(face, stale) == before


@every_verb
def test_another_owner_is_refused(face: Face, verb: str) -> None:
    stale = leased(face)
    face(lambda s: s.release_lease(*proof(stale)))
    face(lambda s: s.acquire_lease(stale.task_id, "bob", 60))
    before = unchanged(face, stale)
    with pytest.raises(WrongOwner):
        use(face, verb, stale)
    assert unchanged(face, stale) == before


@every_verb
def test_a_released_lease_is_refused(face: Face, verb: str) -> None:
    stale = leased(face)
    face(lambda s: s.release_lease(*proof(stale)))
    with pytest.raises(InvalidStatusTransition):
        use(face, verb, stale)


@every_verb
def test_a_task_at_its_end_is_left_alone(face: Face, verb: str) -> None:
    stale = leased(face)
    face(lambda s: s.complete(*proof(stale), "done"))
    before = unchanged(face, stale)
    with pytest.raises(AlreadyDone):
        use(face, verb, stale)
    assert unchanged(face, stale) == before


@every_verb
def test_a_ghost_behind_a_take_over_is_refused(
    face: Face, verb: str, connect: Callable[..., psycopg.Connection], conn: psycopg.Connection
) -> None:
    ghost = leased(face, 0.05)
    expired(conn, ghost)
    with connect(autocommit=False) as taking:
        taken = taking.execute(
            "select token from sokka.acquire_lease(%s, 'bob', '1 minute')", (ghost.task_id,)
        ).fetchone()
        assert taken is not None
        found: list[BaseException] = []

        def act() -> None:
            try:
                use(face, verb, ghost)
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=act)
        thread.start()
        waits = "select from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
        until(lambda: conn.execute(waits, (taking.info.backend_pid,)).fetchall())
        taking.commit()
        thread.join(20)
    assert [type(error) for error in found] == [WrongOwner]
    assert face(lambda s: s.status(ghost.task_id)).token == FencingToken(taken[0])


@every_verb
def test_an_unknown_task_is_refused(face: Face, verb: str) -> None:
    with pytest.raises(NoTaskFound):
        face(lambda s: VERBS[verb](s, UNKNOWN, "ann", 1))


# --- results that cannot be stored -------------------------------------------


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


UNSTORABLE: dict[str, Callable[[], Any]] = {
    "object": object, "set": lambda: {1}, "nan": lambda: float("nan"),
    "infinity": lambda: [float("inf")], "huge": lambda: 10**5000, "bytes": lambda: b"x",
    "cyclic": cyclic, "deep": deep, "int key": lambda: {1: "a"}, "nul": lambda: "a\x00b",
    "surrogate": lambda: "\ud800", "large": lambda: "x" * (1024 * 1024),
}


@pytest.mark.parametrize("what", UNSTORABLE)
def test_a_result_that_cannot_be_stored_ends_the_task_failed(face: Face, what: str) -> None:
    lease = leased(face)
    with pytest.raises(BadArgument):
        face(lambda s: s.complete(*proof(lease), UNSTORABLE[what]()))
    found = face(lambda s: s.status(lease.task_id))
    assert (found.status, found.failure.code) == (Status.FAILED, "result_not_storable")


def test_a_ghosts_bad_result_fails_nothing(face: Face) -> None:
    stale = leased(face)
    face(lambda s: s.acquire_lease(stale.task_id, "ann", 60))
    with pytest.raises(LeaseLost):
        face(lambda s: s.complete(*proof(stale), {1}))
    assert face(lambda s: s.status(stale.task_id)).status is Status.RUNNING


# --- streams by hand ----------------------------------------------------------


def test_items_are_appended_after_the_last_number(face: Face) -> None:
    lease = leased(face)
    assert face(lambda s: s.append_stream(*proof(lease), ["a", "b"])).last_seq == 2
    assert face(lambda s: s.append_stream(*proof(lease), ["c"], after=2)).last_seq == 3
    with pytest.raises(TaskConcurrentlyUpdated) as refused:
        face(lambda s: s.append_stream(*proof(lease), ["x"], after=2))
    assert refused.value.detail["last_seq"] == 3


def test_a_child_is_made_under_its_parents_live_lease_only(face: Face) -> None:
    parent = leased(face, owner="ann")
    child = face(lambda s: s.submit(TaskSubmission(parent=parent)))
    assert face(lambda s: s.status(child.task_id)).parent_task_id == parent.task_id

    newer = face(lambda s: s.acquire_lease(parent.task_id, "ann", 60))
    with pytest.raises(StaleToken):
        face(lambda s: s.submit(TaskSubmission(parent=parent)))
    assert face(lambda s: s.submit(TaskSubmission(parent=newer))).created
    assert face(lambda s: s.submit(TaskSubmission(parent=TaskRef(parent.task_id)))).created
    assert len(face(lambda s: s.list_tasks())) == 4


def test_a_stale_parent_runs_and_streams_nothing_here(face: Face) -> None:
    parent = leased(face, owner="ann")
    face(lambda s: s.release_lease(parent.task_id, parent.owner, parent.token))
    child = TaskSubmission(parent=parent)
    for call in (
        lambda s: s.submit_async(child, lambda context: 1),
        lambda s: s.submit_one_way(child, lambda context: 1),
        lambda s: s.stream(child, lambda context: None),
        lambda s: s.open_stream(child),
    ):
        with pytest.raises(InvalidStatusTransition):
            face(call)
    assert len(face(lambda s: s.list_tasks())) == 1

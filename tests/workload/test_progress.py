"""Progress: as often as is of use, the last one always, and never a longer lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from sokka_pg.errors import BadArgument, InvalidStatusTransition
from sokka_pg.workload import Limits, TaskFailure, TaskProgress, TaskSubmission
from tests.faults.waiting import until
from tests.workload.faces import Face
from tests.workload.test_leases import leased, proof

HOUR = 3600.0


def report(face: Face, lease: Any, percent: float) -> None:
    face(lambda s: s.report_progress(*proof(lease), TaskProgress(percent)))


def percent(conn: psycopg.Connection, lease: Any) -> Any:
    query = "select progress ->> 'percent', record_ver from sokka.all_tasks where task_id = %s"
    return conn.execute(query, (lease.task_id,)).fetchone()


def test_what_follows_closely_is_written_once(face: Face, conn: psycopg.Connection) -> None:
    lease = leased(face)
    before = percent(conn, lease)[1]
    for number in range(100):
        report(face, lease, number)
    until(lambda: percent(conn, lease)[0] == "99")
    # the first, the last, and one for each quarter of a second in between
    assert percent(conn, lease)[1] - before < 50
    until(lambda: not lines(face))


def lines(face: Face) -> int:
    core = face.scheduler._core
    return len(core._progress)


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "checkpoint"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_is_held_back_is_written_before_anything_else(
    faces: Callable[..., Face], conn: psycopg.Connection, kind: str, verb: str
) -> None:
    face = faces(kind, progress_every=HOUR)
    lease = leased(face)
    report(face, lease, 1)
    report(face, lease, 2)
    report(face, lease, 3)
    assert percent(conn, lease)[0] == "1"
    use: dict[str, Callable[[Any], Any]] = {
        "complete": lambda s: s.complete(*proof(lease)),
        "fail": lambda s: s.fail(*proof(lease), TaskFailure("no", "no")),
        "release": lambda s: s.release_lease(*proof(lease)),
        "checkpoint": lambda s: s.checkpoint(*proof(lease), {}),
    }
    face(use[verb])
    assert percent(conn, lease)[0] == "3"


def test_closing_writes_what_is_held_back(
    faces: Callable[..., Face], conn: psycopg.Connection
) -> None:
    face = faces(progress_every=HOUR)
    lease = leased(face)
    report(face, lease, 1)
    report(face, lease, 2)
    face.scheduler.close()
    assert percent(conn, lease)[0] == "2"


def test_progress_extends_no_lease(face: Face) -> None:
    lease = leased(face)
    report(face, lease, 50)
    assert face(lambda s: s.status(lease.task_id)).lease_expires_at == lease.expires_at


def test_two_leases_do_not_hold_each_other_back(
    faces: Callable[..., Face], conn: psycopg.Connection
) -> None:
    face = faces(progress_every=HOUR)
    first, second = leased(face), leased(face)
    report(face, first, 1)
    report(face, second, 2)
    assert (percent(conn, first)[0], percent(conn, second)[0]) == ("1", "2")


def test_a_lease_lost_meanwhile_shows_at_the_next_report(
    face: Face, conn: psycopg.Connection
) -> None:
    lease = leased(face)
    report(face, lease, 1)
    conn.execute("select sokka.release_lease(%s, 'ann', %s)", (lease.task_id, lease.token.value))
    with pytest.raises(InvalidStatusTransition):
        while True:
            report(face, lease, 2)
    assert percent(conn, lease)[0] == "1"


def test_a_handle_shows_changes_until_the_end(face: Face) -> None:
    lease = leased(face)
    handle = face.scheduler.attach(lease.task_id)
    face(lambda s: s.report_progress(*proof(lease), TaskProgress(10, "begun", {"page": 1})))
    if face.kind == "sync":
        changes = handle.progress()
        assert next(changes) == TaskProgress(10, "begun", {"page": 1})
    face(lambda s: s.report_progress(*proof(lease), TaskProgress(100, "done")))
    face(lambda s: s.complete(*proof(lease)))
    if face.kind == "sync":
        assert list(changes) == [TaskProgress(100, "done")]
    else:
        assert face.all(lambda s: handle.progress()) == [TaskProgress(100, "done")]


def test_a_task_that_said_nothing_has_no_changes(face: Face) -> None:
    lease = leased(face)
    face(lambda s: s.complete(*proof(lease)))
    assert face.all(lambda s: s.attach(lease.task_id).progress()) == []


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ('{"percent": 5, "message": "m", "details": {"a": 1}}', TaskProgress(5, "m", {"a": 1})),
        ('{"done": 3}', TaskProgress(details={"done": 3})),
        ("7", TaskProgress(details={"value": 7})),
        ('{"percent": "many", "details": 4}', TaskProgress(
            details={"percent": "many", "details": 4})),
        ('{"percent": 400}', TaskProgress(details={"percent": 400})),
    ],
)
def test_whatever_a_handler_stored_can_be_shown(
    faces: Callable[..., Face], conn: psycopg.Connection, stored: str, shown: TaskProgress
) -> None:
    face = faces()
    lease = leased(face)
    conn.execute(
        "select sokka.report_progress(%s, 'ann', %s, %s)",
        (lease.task_id, lease.token.value, stored),
    )
    assert face.scheduler.status(lease.task_id).progress == shown


def test_progress_is_bounded(faces: Callable[..., Face]) -> None:
    face = faces(limits=Limits(progress_bytes=50))
    lease = leased(face)
    with pytest.raises(BadArgument, match="progress: is larger than 50 bytes"):
        face.scheduler.report_progress(*proof(lease), TaskProgress(1, "x" * 100))
    with pytest.raises(BadArgument, match=r"progress: must be a TaskProgress \(given: dict\)"):
        face.scheduler.report_progress(*proof(lease), {"percent": 1})
    assert face.scheduler.status(lease.task_id).progress is None


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"percent": 101}, "progress.percent: must be from 0 to 100"),
        ({"percent": -0.1}, "progress.percent: must be from 0 to 100"),
        ({"percent": float("nan")}, "progress.percent: must be from 0 to 100"),
        ({"percent": "5"}, "progress.percent: must be a number (given: str)"),
        ({"percent": True}, "progress.percent: must be a number (given: bool)"),
        ({"message": 5}, "progress.message: must be a str (given: int)"),
        ({"message": "a\x00"}, "progress.message: must not contain a NUL character"),
        ({"details": [1]}, "progress.details: must be a mapping (given: list)"),
    ],
)
def test_progress_is_checked(fields: dict[str, Any], rule: str) -> None:
    with pytest.raises(BadArgument) as refused:
        TaskProgress(**fields)
    assert refused.value.message == rule


def test_a_submission_is_not_progress(face: Face) -> None:
    with pytest.raises(BadArgument, match="submission: must be a TaskSubmission"):
        face(lambda s: s.submit({"kind": "x"}))
    with pytest.raises(BadArgument, match="submission"):
        face(lambda s: s.submit_async(None, lambda ctx: TaskSubmission()))

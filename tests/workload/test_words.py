"""Words, limits and redaction: what is taken, what is refused, what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sokka_pg import Sokka
from sokka_pg.errors import BadArgument, TaskFailed
from sokka_pg.model import Status
from sokka_pg.workload import (
    AsyncWorkloadScheduler,
    FencingToken,
    LeaseOwner,
    Limits,
    Policy,
    ScatterGatherRequest,
    TaskFailure,
    TaskRef,
    TaskSubmission,
    WorkerInvoker,
    WorkloadScheduler,
)
from tests.workload.faces import Face
from tests.workload.test_leases import leased, proof

NOWHERE = "host=nowhere.invalid dbname=x"


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: TaskSubmission(kind=""), "kind: must not be blank"),
        (lambda: TaskSubmission(kind=3), "kind: must be a str (given: int)"),
        (lambda: TaskSubmission(topic="\x07"), "topic: must not contain control characters"),
        (lambda: TaskSubmission(sub_topic="x" * 201), "sub_topic: must be at most 200 characters"),
        (lambda: TaskSubmission(task_id="no"), "task_id: must be a UUID"),
        (lambda: TaskSubmission(task_group_id=1), "task_group_id: must be a UUID (given: int)"),
        (lambda: TaskSubmission(parent=3), "parent: must be a UUID (given: int)"),
        (lambda: TaskSubmission(priority=10), "priority: must be from 0 to 9"),
        (lambda: TaskSubmission(priority=True), "priority: must be an int (given: bool)"),
        (
            lambda: TaskSubmission(run_at=datetime(2030, 1, 1)),
            "run_at: needs a time zone: a naive datetime names no moment (given: datetime)",
        ),
        (
            lambda: TaskSubmission(deadline="soon"),
            "deadline: must be a datetime with a time zone (given: str)",
        ),
        (lambda: TaskSubmission(timeout=0), "timeout: must be 1 ms to 1 year"),
        (
            lambda: TaskSubmission(retry="often"),
            "retry: a RetryPolicy, a mapping or a number of attempts, not str",
        ),
        (lambda: TaskSubmission(unique_key=""), "unique_key: must be 1 to 500 bytes"),
        (
            lambda: TaskSubmission(metadata={"k": 1}),
            "metadata: must be a mapping of str to str (given: int)",
        ),
        (lambda: TaskSubmission(metadata=[]),
         "metadata: must be a mapping of str to str (given: list)"),
        (lambda: TaskSubmission(max_losses=-1), "max_losses: must be from 0 to 2147483647"),
        (lambda: LeaseOwner(" "), "owner: must not be blank"),
        (lambda: LeaseOwner(None), "owner: must be a str"),
        (lambda: FencingToken(0), "token: must be from 1 to 9223372036854775807"),
        (lambda: FencingToken("1"), "token: must be an int (given: str)"),
        (lambda: TaskRef("x"), "task_id: must be a UUID"),
        (lambda: WorkerInvoker(""), "kind: must not be blank"),
        (lambda: TaskFailure("", "m"), "code: must be a str that is not blank (given: str)"),
        (lambda: Policy.quorum(-1), "needed: must be from 0 to 10000"),
        (
            lambda: ScatterGatherRequest([1], policy=Policy.quorum(2)),
            "needed: must be at most the number of candidates",
        ),
        (lambda: Limits(result_bytes=0), "result_bytes: must be from 1 to 2147483647"),
        (lambda: Limits(local_tasks=1.5), "local_tasks: must be an int (given: float)"),
        (lambda: Limits(progress_bytes=65537), "progress_bytes: must be at most 65536"),
        (lambda: WorkloadScheduler(3), "database_url: must be a str (given: int)"),
        (lambda: WorkloadScheduler(NOWHERE, lease=0.1), "lease: must be from 0.3 s to 365 days"),
        (lambda: WorkloadScheduler(NOWHERE, poll=0), "poll: must be from 0.01 s to 365 days"),
        (lambda: WorkloadScheduler(NOWHERE, local_slots=0), "local_slots: must be from 1 to 10000"),
        (lambda: WorkloadScheduler(NOWHERE, scheduler_id=" "), "scheduler_id: must not be blank"),
        (lambda: WorkloadScheduler(NOWHERE, redact=[3]), "redact: must be a str (given: int)"),
        (lambda: WorkloadScheduler(NOWHERE, redact="k"), "redact: must be a sequence (given: str)"),
        (lambda: WorkloadScheduler(NOWHERE, limits=3), "limits: must be Limits (given: int)"),
    ],
)
def test_bad_input_is_named_with_its_rule_and_kind(make: Callable[[], Any], rule: str) -> None:
    with pytest.raises(BadArgument) as refused:
        make()
    assert refused.value.message == rule


def test_tokens_are_compared_by_their_number() -> None:
    assert FencingToken(2) > FencingToken(1)
    assert max(FencingToken(3), FencingToken(5)) == FencingToken(5)
    assert int(FencingToken(7)) == 7
    assert str(LeaseOwner("ann")) == "ann"


@pytest.mark.parametrize(
    ("use", "rule"),
    [
        (lambda s: s.acquire_lease("x", "ann"), "task_id: must be a UUID"),
        (lambda s: s.acquire_lease(TaskRef("0" * 32), ""), "owner: must not be blank"),
        (lambda s: s.acquire_lease("0" * 32, "ann", 0), "lease: must be 1 ms to 1 year"),
        (lambda s: s.release_lease("0" * 32, "ann", "1"), "token: must be an int (given: str)"),
        (lambda s: s.complete("0" * 32, 5, 1), "owner: must be a str (given: int)"),
        (
            lambda s: s.fail("0" * 32, "ann", 1, "no"),
            "failure: must be a TaskFailure (given: str)",
        ),
        (lambda s: s.list_tasks(limit=0), "limit: must be from 1 to 10000"),
        (lambda s: s.list_tasks(topic=3), "filters.topic: must be a str (given: int)"),
        (lambda s: s.append_stream("0" * 32, "ann", 1, []), "items: must not be empty"),
        (lambda s: s.attach(None), "task_id: must be a UUID"),
        (lambda s: s.cancel(4), "task_id: must be a UUID (given: int)"),
    ],
)
def test_calls_check_their_arguments(face: Face, use: Callable[[Any], Any], rule: str) -> None:
    with pytest.raises(BadArgument) as refused:
        face(use)
    assert refused.value.message == rule


# --- limits -------------------------------------------------------------------


def test_checkpoints_are_bounded_in_bytes_and_entries(faces: Callable[..., Face]) -> None:
    face = faces(limits=Limits(checkpoint_bytes=40, checkpoint_entries=2))
    lease = leased(face)
    scheduler = face.scheduler
    scheduler.checkpoint(*proof(lease), {"a": "1", "b": "2"})
    with pytest.raises(BadArgument, match="metadata: must have at most 2 entries"):
        scheduler.checkpoint(*proof(lease), {"a": "1", "b": "2", "c": "3"})
    with pytest.raises(BadArgument, match="metadata: is larger than 40 bytes"):
        scheduler.checkpoint(*proof(lease), {"a": "x" * 50})
    with pytest.raises(BadArgument, match=r"metadata: must be a mapping of str to str"):
        scheduler.checkpoint(*proof(lease), {"a": 1})
    assert scheduler.status(lease.task_id).checkpoint.metadata == {"a": "1", "b": "2"}


def test_payloads_are_bounded(faces: Callable[..., Face]) -> None:
    scheduler = faces(limits=Limits(payload_bytes=10)).scheduler
    with pytest.raises(BadArgument, match="data: is larger than 10 bytes"):
        scheduler.submit(TaskSubmission(payload="x" * 20))


# --- redaction ----------------------------------------------------------------


def shout(metadata: Mapping[str, str]) -> Mapping[str, str]:
    return {key.upper(): value for key, value in metadata.items() if key != "password"}


@pytest.mark.parametrize(
    ("redact", "shown"),
    [
        (["password"], {"user": "ann", "password": "***"}),
        (shout, {"USER": "ann"}),
        (lambda metadata: 1 / 0, {"user": "***", "password": "***"}),
        (lambda metadata: {"user": 3}, {"user": "***", "password": "***"}),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_snapshots_are_redacted_and_the_next_owner_is_handed_everything(
    faces: Callable[..., Face], kind: str, redact: Any, shown: dict[str, str]
) -> None:
    face = faces(kind, redact=redact)
    secret = {"user": "ann", "password": "x"}
    lease = leased(face, metadata=secret)
    saved = face(lambda s: s.checkpoint(*proof(lease), secret))
    assert saved.metadata == secret
    status = face(lambda s: s.status(lease.task_id))
    assert status.metadata == shown
    assert status.checkpoint.metadata == shown
    assert "'x'" not in repr(status)
    face(lambda s: s.release_lease(*proof(lease)))
    heir = face(lambda s: s.acquire_lease(lease.task_id, "bob"))
    assert heir.metadata == secret
    assert heir.checkpoint.metadata == secret


def test_a_checkpoint_of_any_shape_can_be_shown(faces: Callable[..., Face]) -> None:
    scheduler = faces().scheduler
    scheduler.submit_async(TaskSubmission(), lambda ctx: ctx.checkpoint([1, 2]) and None).result(20)
    done = scheduler.list_tasks(status="terminated")[0]
    assert scheduler.status(done.task_id).checkpoint.metadata == {"value": "[1, 2]"}


# --- listing ------------------------------------------------------------------


def test_tasks_are_listed_by_what_they_are(face: Face) -> None:
    first = face(lambda s: s.submit(TaskSubmission(kind="a", topic="x")))
    second = face(lambda s: s.submit(TaskSubmission(kind="b", topic="y")))
    lease = face(lambda s: s.acquire_lease(second.task_id, "ann"))
    face(lambda s: s.fail(*proof(lease), TaskFailure("no", "no")))
    assert [t.task_id for t in face(lambda s: s.list_tasks())] == [second.task_id, first.task_id]
    assert [t.task_id for t in face(lambda s: s.list_tasks(topic="x"))] == [first.task_id]
    assert [t.task_id for t in face(lambda s: s.list_tasks(kind="b"))] == [second.task_id]
    (failed,) = face(lambda s: s.list_tasks(status=Status.FAILED))
    assert failed.failure == TaskFailure("no", "no")
    assert face(lambda s: s.list_tasks(status=["starting", "failed"])).cursor is None
    page = face(lambda s: s.list_tasks(limit=1))
    assert [t.task_id for t in page] == [second.task_id]
    rest = face(lambda s: s.list_tasks(limit=1, cursor=page.cursor))
    assert [t.task_id for t in rest] == [first.task_id]


def test_a_deadline_fails_what_still_waits(face: Face) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    handle = face(lambda s: s.submit(TaskSubmission(deadline=past)))
    # a worker sweeps, be it for local runs
    face(lambda s: s.submit_one_way(TaskSubmission(), face.local(lambda ctx: 1)))
    with pytest.raises(TaskFailed) as failed:
        face(lambda s: handle.result(20))
    assert failed.value.code == "expired"


# --- from an app --------------------------------------------------------------


async def test_an_app_makes_schedulers_on_its_queue(app: Sokka) -> None:
    with app.workload(scheduler_id="here") as scheduler:
        assert isinstance(scheduler, WorkloadScheduler)
        assert scheduler.scheduler_id == "here"
        task = scheduler.submit(TaskSubmission())
        assert app.store.task(task.task_id) is not None
    async with app.workload_async(poll=0.5) as other:
        assert isinstance(other, AsyncWorkloadScheduler)
        assert (await other.status(task.task_id)).status is Status.STARTING


def test_each_scheduler_has_an_id_of_its_own() -> None:
    ids = {WorkloadScheduler(NOWHERE).scheduler_id for _ in range(10)}
    assert len(ids) == 10

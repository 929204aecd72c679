"""Fan-outs and scatter-gathers: one behaviour, sync and async, local and by workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from sokka_pg import SyncTaskContext
from sokka_pg.errors import BadArgument, NoTaskFound, TaskCancelled, TaskFailed
from sokka_pg.model import Status
from sokka_pg.store import PgTaskStore
from sokka_pg.workload import (
    FanOutRequest,
    Policy,
    ScatterGatherRequest,
    TaskSubmission,
    WorkerInvoker,
    WorkloadScheduler,
)
from tests.faults.waiting import until
from tests.workload.faces import TOPIC, Candidates, Face, Ground


def answers(*values: Any) -> list[dict[str, Any]]:
    return [{"answer": value} for value in values]


def test_answers_come_in_the_order_of_the_request(ground: Ground) -> None:
    handle = ground.face(
        lambda s: s.start_fan_out(
            FanOutRequest([{"answer": 1, "hold": "last"}, *answers(2, 3)]), ground.invoker
        )
    )
    until(lambda: sum(r.succeeded for r in ground.face(lambda s: handle.results())) == 2)
    assert [r.failure and r.failure.code for r in ground.face(lambda s: handle.results())] == [
        "pending", None, None
    ]
    ground.candidates.gate("last").set()
    found = ground.face(lambda s: handle.result(20))
    assert found.values() == [1, 2, 3]
    assert [each.index for each in found.results] == [0, 1, 2]
    assert (found.succeeded, found.failed, found.deadline_passed) == (3, 0, False)


def test_a_candidates_failure_is_data(ground: Ground) -> None:
    found = ground.fan_out(FanOutRequest([{"answer": 1}, {"raise": "no"}, {"answer": 3}]))
    assert [each.succeeded for each in found.results] == [True, False, True]
    failure = found.results[1].failure
    assert (failure.code, failure.message) == ("error", "no")
    assert found.results[1].status is Status.FAILED
    with pytest.raises(TaskFailed, match="no"):
        found.values()


def test_no_more_candidates_run_at_once_than_allowed(ground: Ground) -> None:
    request = FanOutRequest(
        [{"answer": i, "hold": "all"} for i in range(6)], max_running=2
    )
    handle = ground.face(lambda s: s.start_fan_out(request, ground.invoker))
    until(lambda: ground.candidates.running == 2)
    state = ground.face(lambda s: handle.state())
    assert (state.in_flight, state.total, state.state) == (2, 6, "open")
    ground.candidates.gate("all").set()
    assert ground.face(lambda s: handle.result(20)).values() == list(range(6))
    assert ground.candidates.most <= 2


def test_a_deadline_ends_a_fan_out_with_what_is_there(ground: Ground) -> None:
    request = FanOutRequest([{"answer": 1}, {"answer": 2, "hold": "late"}], deadline=1.0)
    found = ground.fan_out(request)
    assert found.deadline_passed
    assert found.results[0].result == 1
    assert found.results[1].failure.code == "deadline"


def test_a_deadline_leaves_a_policy_unsatisfied(ground: Ground) -> None:
    request = ScatterGatherRequest([{"answer": 1}, {"answer": 2, "hold": "late"}], deadline=1.0)
    found = ground.scatter_gather(request)
    assert not found.satisfied
    assert found.failure.code == "deadline"
    assert [each.succeeded for each in found.results] == [True, False]


@pytest.mark.parametrize(
    ("policy", "satisfied"),
    [
        (Policy.settled(), True), (Policy.all(), True), (Policy.quorum(0), True),
        (Policy.any(), False), (Policy.first_success(), False),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_without_candidates_it_is_decided_at_once(
    ground: Ground, policy: Policy, satisfied: bool
) -> None:
    found = ground.scatter_gather(ScatterGatherRequest([], policy=policy))
    assert (found.satisfied, found.results) == (satisfied, ())
    assert found.value == ([] if satisfied else None)
    assert (found.failure is None) == satisfied


def test_a_fan_out_without_candidates_has_no_answers(ground: Ground) -> None:
    found = ground.fan_out(FanOutRequest([]))
    assert (found.results, found.values()) == ((), [])


def test_all_is_decided_by_the_first_failure(ground: Ground) -> None:
    request = ScatterGatherRequest(
        [{"answer": 1, "hold": "never"}, {"raise": "no"}], policy=Policy.all()
    )
    found = ground.scatter_gather(request)
    assert (found.satisfied, found.failure.code) == (False, "policy_unmet")
    assert found.results[1].failure.message == "no"
    assert found.results[0].failure.code == "cancelled"


def test_all_is_satisfied_by_all(ground: Ground) -> None:
    found = ground.scatter_gather(ScatterGatherRequest(answers(1, 2), policy=Policy.all()))
    assert (found.satisfied, found.value, found.failure) == (True, [1, 2], None)


@pytest.mark.parametrize("good", [True, False])
def test_any_is_decided_by_the_first_answer(ground: Ground, good: bool) -> None:
    first = {"answer": 7} if good else {"raise": "no"}
    request = ScatterGatherRequest([{"answer": 1, "hold": "never"}, first], policy=Policy.any())
    found = ground.scatter_gather(request)
    assert found.satisfied is good
    assert found.value == ([7] if good else None)


def test_first_success_passes_over_failures(ground: Ground) -> None:
    request = ScatterGatherRequest(
        [{"raise": "no"}, {"answer": 2}, {"answer": 3, "hold": "never"}],
        policy=Policy.first_success(), reducer=lambda results: [r.index for r in results],
    )
    found = ground.scatter_gather(request)
    assert (found.satisfied, found.value) == (True, [0, 1, 2])
    assert found.results[1].result == 2
    assert found.results[2].failure.code == "cancelled"


def test_first_success_fails_when_all_have_failed(ground: Ground) -> None:
    request = ScatterGatherRequest(
        [{"raise": "no"}, {"raise": "nor"}], policy=Policy.first_success(),
        reducer=lambda results: pytest.fail("there is nothing to reduce"),
    )
    found = ground.scatter_gather(request)
    assert (found.satisfied, found.value) == (False, None)
    assert [each.failure.message for each in found.results] == ["no", "nor"]


def test_a_quorum_needs_no_more_than_it_says(ground: Ground) -> None:
    candidates = [*answers(1, 2), {"answer": 3, "hold": "never"}]
    found = ground.scatter_gather(ScatterGatherRequest(candidates, policy=Policy.quorum(2)))
    assert (found.satisfied, found.value) == (True, [1, 2])


def test_a_quorum_out_of_reach_is_given_up(ground: Ground) -> None:
    candidates = [{"raise": "a"}, {"raise": "b"}, {"answer": 3, "hold": "never"}]
    found = ground.scatter_gather(ScatterGatherRequest(candidates, policy=Policy.quorum(2)))
    assert (found.satisfied, found.failure.code) == (False, "policy_unmet")


def test_settled_takes_every_end(ground: Ground) -> None:
    candidates = [{"raise": "a"}, {"answer": 3}]
    found = ground.scatter_gather(
        ScatterGatherRequest(
            candidates, policy=Policy.settled(),
            reducer=lambda results: sum(r.result for r in results if r.succeeded),
        )
    )
    assert (found.satisfied, found.value, found.failure) == (True, 3, None)


def test_what_a_reducer_raises_passes(ground: Ground) -> None:
    request = ScatterGatherRequest(answers(1), reducer=lambda results: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ground.scatter_gather(request)


def test_late_answers_are_counted_and_count_for_nothing(ground: Ground) -> None:
    request = ScatterGatherRequest(
        [{"answer": 1, "hold": "late"}, {"answer": 2, "hold": "first"}],
        policy=Policy.first_success(),
    )
    handle = ground.face(lambda s: s.start_scatter_gather(request, slow(ground)))
    until(lambda: ground.candidates.running == 2)
    ground.candidates.gate("first").set()
    found = ground.face(lambda s: handle.result(20))
    assert (found.value, found.late) == ([2], 0)
    ground.candidates.gate("late").set()
    until(lambda: ground.face(lambda s: handle.state()).late == 1)
    again = ground.face(lambda s: handle.result(20))
    assert (again.value, again.late) == ([2], 1)
    assert again.results[0].failure.code == "cancelled"


def slow(ground: Ground) -> Any:
    """An invoker that answers although it was told to stop: on a thread."""
    return ground.invoker if ground.by == "workers" else ground.candidates


def test_a_cancelled_candidate_is_a_failure_among_the_answers(ground: Ground) -> None:
    request = FanOutRequest([{"answer": 1, "hold": "x"}, {"answer": 2}], max_running=1)
    handle = ground.face(lambda s: s.start_fan_out(request, ground.invoker))
    until(lambda: ground.candidates.running == 1)
    second = ground.face(lambda s: handle.results())[1].task_id
    assert ground.face(lambda s: s.cancel(second, "enough")) == "cancelled"
    ground.candidates.gate("x").set()
    found = ground.face(lambda s: handle.result(20))
    assert found.results[0].result == 1
    assert found.results[1].failure.code == "cancelled"
    assert 2 not in ground.candidates.begun


def test_cancelling_the_whole_cancels_what_waits(ground: Ground) -> None:
    request = FanOutRequest(
        [{"answer": 1, "hold": "x"}, {"answer": 2, "hold": "x"}], max_running=1
    )
    handle = ground.face(lambda s: s.start_fan_out(request, ground.invoker))
    until(lambda: ground.candidates.running == 1)
    assert ground.face(lambda s: handle.cancel()) == "cancelled"
    with pytest.raises(TaskCancelled):
        ground.face(lambda s: handle.result(20))
    second = ground.face(lambda s: handle.results())[1]
    until(lambda: ground.face(lambda s: s.status(second.task_id)).cancelled)
    assert 2 not in ground.candidates.begun


def test_another_scheduler_attaches_to_a_fan_out(
    ground: Ground, faces: Callable[..., Face]
) -> None:
    request = FanOutRequest([*answers(1), {"answer": 2, "hold": "x"}])
    handle = ground.face(lambda s: s.start_fan_out(request, ground.invoker))
    other = faces()
    elsewhere = other.scheduler.attach_fan_out(handle.task_id)
    with pytest.raises(TimeoutError):
        elsewhere.result(0.05)
    ground.candidates.gate("x").set()
    assert elsewhere.result(20).values() == [1, 2]
    assert ground.face(lambda s: handle.result(20)).values() == [1, 2]


def test_another_scheduler_attaches_to_a_scatter_gather(
    ground: Ground, faces: Callable[..., Face]
) -> None:
    handle = ground.face(
        lambda s: s.start_scatter_gather(ScatterGatherRequest(answers(1, 2)), ground.invoker)
    )
    elsewhere = faces().scheduler.attach_scatter_gather(
        handle.task_id, reducer=lambda results: len(results)
    )
    assert elsewhere.result(20).value == 2


def test_a_repeated_request_meets_the_same_fan_out(ground: Ground) -> None:
    task_id = "0190a0a0-0000-7000-8000-000000000001"
    request = FanOutRequest(answers(1, 2), task_id=task_id)
    first = ground.fan_out(request)
    again = ground.fan_out(request)
    assert first == again
    assert len(ground.candidates.begun) == 2


@pytest.mark.parametrize("by", ["local", "workers"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_durable_reducer_is_a_task_of_its_own(
    db: str, candidates: Candidates, kind: str, by: str
) -> None:
    def total(ctx: SyncTaskContext) -> int:
        return sum(each.result for each in ctx.join_results() if each.succeeded)

    ground = Ground(Face(kind, db), by, db, candidates)
    ground.crew_handlers["total"] = total
    ground.with_crew()
    try:
        request = ScatterGatherRequest(answers(1, 2, 3), then="total")
        found = ground.scatter_gather(request)
        assert (found.satisfied, found.value, found.failure) == (True, 6, None)
    finally:
        ground.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_local_invoker_may_take_the_context(faces: Callable[..., Face], kind: str) -> None:
    face = faces(kind)

    def with_context(candidate: int, context: Any) -> list[int]:
        return [candidate, context.token]

    found = face(lambda s: s.fan_out(FanOutRequest([5]), face.local(with_context)))
    assert found.values()[0][0] == 5
    assert found.values()[0][1] > 0


def test_an_expired_candidate_is_a_failure_among_the_answers(
    db: str, faces: Callable[..., Face], conn: psycopg.Connection
) -> None:
    # nobody serves the topic: it expires while it waits
    soon = conn.execute("select now() + interval '200 milliseconds'").fetchone()
    assert soon is not None
    with PgTaskStore(db) as store:
        made = store.fan_out([{"topic": "nobody's", "kind": "k", "expires_at": soon[0]}])
    found = faces().scheduler.attach_fan_out(made.task_id).result(20)
    assert found.results[0].failure.code == "expired"


def test_workers_that_never_come_do_not_outlast_the_deadline(faces: Callable[..., Face]) -> None:
    found = faces().scheduler.fan_out(
        FanOutRequest([1], deadline=0.2), WorkerInvoker("nobody", "nobody's")
    )
    assert found.deadline_passed
    assert found.results[0].failure.code == "deadline"


def test_only_fan_outs_have_results(face: Face) -> None:
    handle = face(lambda s: s.submit(TaskSubmission()))
    with pytest.raises(BadArgument, match="task_id: must be that of a fan-out"):
        face(lambda s: s.attach_fan_out(handle.task_id).result(5))
    with pytest.raises(NoTaskFound):
        face(lambda s: s.attach_fan_out("0190a0a0-0000-7000-8000-000000000009").result(5))


@pytest.mark.parametrize(
    ("invoker", "rule"),
    [
        (3, "invoker: must be callable (given: int)"),
        (lambda: 1, "invoker: must take a candidate, or a candidate and a context"),
        (lambda a, b, c: 1, "invoker: must take a candidate, or a candidate and a context"),
    ],
)
def test_an_invoker_that_cannot_be_called_is_refused(face: Face, invoker: Any, rule: str) -> None:
    with pytest.raises(BadArgument) as refused:
        face(lambda s: s.fan_out(FanOutRequest([1]), invoker))
    assert refused.value.message == rule


def test_requests_are_not_mixed_up(face: Face) -> None:
    with pytest.raises(BadArgument, match="request: must be a FanOutRequest"):
        face(lambda s: s.fan_out(ScatterGatherRequest([1]), WorkerInvoker("k", TOPIC)))
    with pytest.raises(BadArgument, match="request: must be a ScatterGatherRequest"):
        face(lambda s: s.scatter_gather([1], WorkerInvoker("k", TOPIC)))


def test_a_closed_scheduler_fans_nothing_out(faces: Callable[..., Face]) -> None:
    scheduler: WorkloadScheduler = faces().scheduler
    scheduler.close()
    with pytest.raises(ValueError, match="this scheduler is closed"):
        scheduler.fan_out(FanOutRequest([1]), lambda candidate: candidate)

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from sokka_pg import gather
from sokka_pg.errors import BadArgument, TaskCancelled, TaskFailed
from sokka_pg.gather import (
    FanOutRequest,
    FanOutResult,
    Policy,
    ScatterGatherRequest,
    TaskFailure,
)
from sokka_pg.model import Join, JoinResult, RetryPolicy, Status, Task

THEN = datetime(2026, 1, 1, tzinfo=UTC)
ID = UUID(int=7)


def join(outcome: str | None = "satisfied", **changes: Any) -> Join:
    fields: dict[str, Any] = {
        "task_id": ID, "parent_task_id": None, "policy": "settled", "needed": None, "total": 2,
        "max_running": None, "in_flight": 0, "done": 2, "succeeded": 2, "failed": 0, "late": 0,
        "state": "closed", "outcome": outcome, "deadline_at": None, "created_at": THEN,
        "decided_at": None if outcome is None else THEN,
    }
    return Join(**{**fields, **changes})


def row(candidate: int, result: Any = None, error: Any = None, after_s: float = -1) -> JoinResult:
    status = Status.FAILED if error else Status.TERMINATED
    return JoinResult(
        candidate, UUID(int=candidate), status, result, error, 1,
        THEN + timedelta(seconds=after_s),
    )


def ended(status: Status = Status.TERMINATED, result: Any = None, error: Any = None) -> Task:
    return cast(Task, SimpleNamespace(status=status, result=result, error=error, task_id=ID))


# --- requests ---------------------------------------------------------------


@pytest.mark.parametrize("wrong", [
    {"kind": " "}, {"topic": ""}, {"sub_topic": 5}, {"max_running": 0}, {"max_running": True},
    {"deadline": 0}, {"deadline": float("nan")}, {"timeout": -1}, {"retry": "often"},
    {"priority": 10}, {"metadata": {"a": 1}}, {"metadata": "a"}, {"max_losses": -1},
    {"task_id": "x"}, {"candidates": "text"}, {"candidates": {}}, {"candidates": 5},
    {"candidates": range(10_001)},
])
def test_a_request_that_cannot_work_is_refused_when_it_is_made(wrong: dict[str, Any]) -> None:
    for kind in (FanOutRequest, ScatterGatherRequest):
        with pytest.raises(BadArgument):
            kind(**{"candidates": [1], **wrong})


@pytest.mark.parametrize("wrong", [
    {"policy": "all"}, {"policy": Policy.quorum(2)}, {"reducer": 5}, {"then": ""},
    {"then": "sum", "reducer": len},
])
def test_a_way_to_gather_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        ScatterGatherRequest([1], **wrong)


@pytest.mark.parametrize("name, needed", [
    ("most", None), ("all", 1), ("quorum", None), ("quorum", -1), ("quorum", True),
])
def test_a_policy_has_a_known_name_and_a_quorum_a_number(name: str, needed: Any) -> None:
    with pytest.raises(BadArgument):
        Policy(name, needed)


def test_policies_have_names() -> None:
    assert [p.name for p in (
        Policy.settled(), Policy.all(), Policy.any(), Policy.first_success(), Policy.quorum(0),
    )] == list(gather.POLICIES)


def test_requests_and_results_are_values() -> None:
    request = ScatterGatherRequest(iter([1, 2]), kind="k", task_id=str(ID))  # type: ignore[arg-type]
    assert request == ScatterGatherRequest([1, 2], kind="k", task_id=ID)
    assert pickle.loads(pickle.dumps(request)) == request


def test_specs_carry_what_the_candidates_are_to_have() -> None:
    request = FanOutRequest(
        [1, None], kind="k", topic="t", timeout=3, retry=RetryPolicy(2), priority=1,
        metadata={"a": "b"}, max_losses=2, sub_topic="s", deadline=9, max_running=1,
    )
    common = {
        "topic": "t", "kind": "k", "sub_topic": "s", "timeout": 3, "retry": RetryPolicy(2),
        "priority": 1, "headers": {"a": "b"}, "max_losses": 2,
    }
    assert gather.specs(request) == [{**common, "data": 1}, {**common, "data": None}]
    assert gather.join_options(request) == {
        "policy": "settled", "max_running": 1, "deadline": 9, "topic": "t", "sub_topic": "s",
        "priority": 1, "headers": {"a": "b"},
    }


def test_what_a_request_leaves_open_comes_from_where_it_is_made_or_is_missed() -> None:
    request = FanOutRequest([1])
    assert gather.specs(request, "k", "t") == [{"topic": "t", "kind": "k", "data": 1}]
    for kind, topic in ((None, "t"), ("k", None)):
        with pytest.raises(BadArgument):
            gather.specs(request, kind, topic)


def test_a_durable_reducer_has_the_candidates_retry_and_timeout() -> None:
    request = ScatterGatherRequest(
        [1], kind="k", policy=Policy.quorum(1), then="sum", retry=3, timeout=5
    )
    assert gather.join_options(request, "t") == {
        "policy": "quorum", "needed": 1, "topic": "t", "kind": "sum", "retry": 3, "timeout": 5,
    }


# --- results ----------------------------------------------------------------


def test_answers_keep_the_order_of_the_request_and_failures_are_data() -> None:
    error = {"code": "x", "message": "no", "retryable": True, "details": {"n": 1}}
    found = gather.fan_out_result(join(), [row(1, "a"), row(2, error=error)])
    assert [each.index for each in found.results] == [0, 1]
    assert (found.succeeded, found.failed, found.deadline_passed) == (1, 1, False)
    assert found.results[1].failure == TaskFailure("x", "no", True, {"n": 1})
    with pytest.raises(TaskFailed) as raised:
        found.values()
    assert (raised.value.code, raised.value.failure["details"]) == ("x", {"n": 1})


def test_the_values_of_a_success_are_its_results() -> None:
    assert gather.fan_out_result(join(), [row(1, "a"), row(2, None)]).values() == ["a", None]
    assert FanOutResult(ID, ()).values() == []


def test_what_came_after_the_decision_is_no_answer() -> None:
    rows = [row(1, "a"), row(2, "late", after_s=1)]
    found = gather.scatter_gather_result(ended(), join(policy="any", late=1), rows)
    assert [each.result for each in found.results] == ["a", None]
    assert found.results[1].failure is not None
    assert (found.results[1].failure.code, found.value, found.late) == ("cancelled", ["a"], 1)


def test_candidates_without_an_answer_say_why() -> None:
    live = JoinResult(1, ID, Status.RUNNING, None, None, 1, None)
    codes = [
        each.failure and each.failure.code
        for outcome in ("satisfied", "deadline", None)
        for each in gather.candidate_results(join(outcome), [live])
    ]
    assert codes == ["cancelled", "deadline", "pending"]


def test_a_fan_out_that_was_cancelled_has_no_results() -> None:
    with pytest.raises(TaskCancelled):
        gather.fan_out_result(join("cancelled"), [])


def test_the_value_is_the_reducers_or_the_durable_ones_or_what_succeeded() -> None:
    rows = [row(1, 1), row(2, 2)]
    made = gather.scatter_gather_result
    assert made(ended(), join(), rows, lambda found: len(found)).value == 2
    assert made(ended(result="sum"), join(), rows, then="add").value == "sum"
    assert made(ended(), join(), rows).value == [1, 2]


@pytest.mark.parametrize("outcome, policy, satisfied", [
    ("satisfied", "all", True), ("unmet", "all", False), ("deadline", "all", False),
    ("deadline", "settled", True), ("cancelled", "settled", False),
])
def test_a_deadline_satisfies_only_who_takes_every_end(
    outcome: str, policy: str, satisfied: bool
) -> None:
    task = ended(Status.TERMINATED if satisfied else Status.FAILED, error={"code": outcome})
    found = gather.scatter_gather_result(task, join(outcome, policy=policy), [])
    assert found.satisfied == satisfied
    assert (found.failure is None) == satisfied


def test_a_durable_reducer_that_failed_leaves_a_failure_of_a_satisfied_policy() -> None:
    task = ended(Status.FAILED, error={"code": "error", "message": "broke"})
    found = gather.scatter_gather_result(task, join(), [row(1, 1)], then="add")
    assert (found.satisfied, found.value) == (True, None)
    assert found.failure == TaskFailure("error", "broke")


def test_a_failure_reads_any_error_and_writes_it_back() -> None:
    assert TaskFailure.of_error(None) == TaskFailure("error", "")
    failure = TaskFailure("x", "no", True, {"n": 1})
    assert TaskFailure.of_error(failure.to_error()) == failure
    assert TaskFailure("x", "no").to_error() == {"code": "x", "message": "no"}
    assert isinstance(TaskFailure("cancelled", "").as_exception(ID), TaskCancelled)
    for wrong in ({"code": ""}, {"message": 1}, {"retryable": 1}, {"details": []}):
        with pytest.raises(BadArgument):
            TaskFailure(**{"code": "x", "message": "", **wrong})  # type: ignore[arg-type]

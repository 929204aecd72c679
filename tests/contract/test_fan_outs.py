"""Fan-outs, for every kind of caller: what decides them, what is left, who waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from sokka_pg.errors import InvalidStatusTransition
from sokka_pg.model import Settlement
from sokka_pg.store import PgTaskStore
from tests.contract.callers import Caller, leased, new_task, refusal

Row = Callable[[UUID], dict[str, Any]]
FAR = "9998-12-31T00:00:00+00:00"


def specs(count: int) -> list[dict[str, Any]]:
    return [{"topic": "parts", "data": number} for number in range(1, count + 1)]


def parts(caller: Caller, join_id: UUID) -> list[UUID]:
    """The ids of the candidates, in order."""
    return [result.task_id for result in caller("join_results", join_id)]


def end(caller: Caller, task_id: UUID, well: bool) -> None:
    task = caller("acquire_lease", task_id, "w1", 60)
    if well:
        caller("terminate", task_id, "w1", task.token, result="fine")
    else:
        caller("fail", task_id, "w1", task.token, error={"code": "boom", "message": "m"})


def test_a_fan_out_is_a_task_that_waits_for_its_numbered_candidates(
    caller: Caller, row: Row
) -> None:
    made = caller("fan_out", specs(3), sub_topic="of three", headers={"a": "b"})
    assert (made.status, made.total, made.created) == ("snoozed", 3, True)
    join = row(made.task_id)
    assert (join["topic"], join["sub_topic"], join["depth"]) == ("parts", "of three", 0)
    assert join["run_at"].isoformat() == FAR
    for number, result in enumerate(caller("join_results", made.task_id), start=1):
        assert (result.candidate, result.status, result.result) == (number, "starting", None)
        part = row(result.task_id)
        assert (part["data"], part["candidate"], part["depth"]) == (number, number, 1)
        assert part["parent_task_id"] == part["task_group_id"] == made.task_id
        lease = caller("acquire_lease", result.task_id, "w1", 60)
        assert (lease.parent_task_id, lease.candidate) == (made.task_id, number)
    found = caller("join", made.task_id)
    assert (found.policy, found.total, found.in_flight, found.done) == ("settled", 3, 3, 0)
    assert (found.state, found.outcome, found.decided_at) == ("open", None, None)


def test_results_come_in_order_and_in_pages(caller: Caller) -> None:
    made = caller("fan_out", specs(5))
    ids = parts(caller, made.task_id)
    end(caller, ids[3], True)
    end(caller, ids[1], False)
    page = caller("join_results", made.task_id, 1, 3)
    assert [result.candidate for result in page] == [2, 3, 4]
    assert [result.task_id for result in page] == ids[1:4]
    assert [result.status for result in page] == ["failed", "starting", "terminated"]
    assert (page[0].error["code"], page[2].result, page[2].attempt) == ("boom", "fine", 1)
    assert page[1].finished_at is None
    assert caller("join_results", made.task_id, 5, 3) == []


def test_what_is_no_fan_out_has_no_results(caller: Caller) -> None:
    task_id = new_task(caller, "t")
    assert caller("join", task_id) is None
    assert refusal(caller, "join_results", task_id) == "SK001"
    assert refusal(caller, "join_results", uuid4()) == "SK001"


@pytest.mark.parametrize(
    ("policy", "needed", "ends", "status", "code", "succeeded", "failed"),
    [
        ("settled", None, [True, False, False], "terminated", None, 1, 2),
        ("settled", None, [False, False, False], "terminated", None, 0, 3),
        ("all", None, [True, True, True], "terminated", None, 3, 0),
        ("all", None, [True, False], "failed", "policy_unmet", 1, 1),
        ("any", None, [True], "terminated", None, 1, 0),
        ("any", None, [False], "failed", "policy_unmet", 0, 1),
        ("first_success", None, [False, True], "terminated", None, 1, 1),
        ("first_success", None, [False, False, False], "failed", "policy_unmet", 0, 3),
        ("quorum", 2, [True, False, True], "terminated", None, 2, 1),
        ("quorum", 2, [False, False], "failed", "policy_unmet", 0, 2),
        ("quorum", 0, [], "terminated", None, 0, 0),
    ],
)
def test_each_policy_is_decided_by_its_last_answer_and_not_before(
    caller: Caller,
    row: Row,
    policy: str,
    needed: int | None,
    ends: list[bool],
    status: str,
    code: str | None,
    succeeded: int,
    failed: int,
) -> None:
    made = caller("fan_out", specs(3), policy=policy, needed=needed)
    ids = parts(caller, made.task_id) if ends else []
    for task_id, well in zip(ids, ends, strict=False):
        assert row(made.task_id)["status"] == "snoozed"
        end(caller, task_id, well)
    join = row(made.task_id)
    assert join["status"] == status
    assert (join["error"] or {}).get("code") == code
    summary = join["result"] if code is None else join["error"]["join"]
    assert summary == {
        "policy": policy, "needed": summary["needed"], "total": 3, "succeeded": succeeded,
        "failed": failed, "pending": 3 - len(ends), "deadline_passed": False,
    }  # fmt: skip
    rest = caller("join_results", made.task_id, len(ends))
    assert [result.error["code"] for result in rest] == ["cancelled"] * (3 - len(ends))


@pytest.mark.parametrize(
    ("policy", "needed", "status"),
    [
        ("settled", None, "terminated"),
        ("all", None, "terminated"),
        ("any", None, "failed"),
        ("first_success", None, "failed"),
        ("quorum", 0, "terminated"),
    ],
)
def test_a_fan_out_to_nobody_is_decided_at_once(
    caller: Caller, policy: str, needed: int | None, status: str
) -> None:
    made = caller("fan_out", [], policy=policy, needed=needed)
    assert (made.status, made.total, made.created) == (status, 0, True)
    assert caller("join", made.task_id).state == "closed"
    assert caller("join_results", made.task_id) == []


def test_a_policy_out_of_reach_is_refused(caller: Caller) -> None:
    for policy, needed in (
        ("most", None), ("quorum", None), ("quorum", 3), ("quorum", -1), ("all", 1),
    ):  # fmt: skip
        state = refusal(caller, "fan_out", specs(2), policy=policy, needed=needed)
        assert state == "22023", (policy, needed)


def test_who_still_answers_after_the_decision_is_counted_as_late(
    caller: Caller, row: Row
) -> None:
    made = caller("fan_out", specs(3), policy="any")
    first, second, third = parts(caller, made.task_id)
    at_work = caller("acquire_lease", second, "w2", 60)
    end(caller, first, True)
    assert caller("join", made.task_id).state == "decided"
    assert row(third)["error"]["code"] == "cancelled"
    assert row(second)["status"] == "running"
    assert caller("extend_lease", second, "w2", at_work.token).cancel_requested is True
    caller("terminate", second, "w2", at_work.token, result="fine")
    caller("sweep", 100)
    found = caller("join", made.task_id)
    assert (found.state, found.outcome, found.done) == ("closed", "satisfied", 3)
    assert (found.succeeded, found.failed, found.late) == (1, 0, 1)


def test_no_more_candidates_than_asked_for_are_there_to_take(caller: Caller, row: Row) -> None:
    made = caller("fan_out", specs(4), max_running=2)
    ids = parts(caller, made.task_id)

    def statuses() -> list[str]:
        return [row(task_id)["status"] for task_id in ids]

    assert statuses() == ["starting", "starting", "snoozed", "snoozed"]
    assert row(ids[3])["run_at"].isoformat() == FAR
    end(caller, ids[1], False)
    assert statuses() == ["starting", "failed", "starting", "snoozed"]
    for task_id in (ids[0], ids[2], ids[3]):
        end(caller, task_id, True)
    assert row(made.task_id)["status"] == "terminated"


@pytest.mark.parametrize(
    ("policy", "status", "code"), [("settled", "terminated", None), ("all", "failed", "deadline")]
)
def test_at_its_deadline_a_fan_out_is_decided_by_what_is_there(
    caller: Caller, row: Row, until: Callable[..., None], policy: str, status: str, code: str | None
) -> None:
    made = caller("fan_out", specs(2), policy=policy, deadline=0.001)
    until(
        "select deadline_at < clock_timestamp() from sokka.fan_outs where task_id = %s",
        made.task_id,
    )
    caller("sweep", 100)
    join = row(made.task_id)
    assert (join["status"], (join["error"] or {}).get("code")) == (status, code)
    summary = join["result"] if code is None else join["error"]["join"]
    assert (summary["pending"], summary["deadline_passed"]) == (2, True)
    rest = caller("join_results", made.task_id)
    assert [result.error["code"] for result in rest] == ["cancelled", "cancelled"]


def test_with_a_kind_it_is_worked_off_once_it_is_decided(caller: Caller, row: Row) -> None:
    made = caller("fan_out", specs(2), topic="sums", kind="add up", data={"by": 2}, timeout=5)
    for task_id in parts(caller, made.task_id):
        assert caller("reserve_task", "sums", "w1", 60) is None
        end(caller, task_id, True)
    task = caller("reserve_task", "sums", "w1", 60)
    assert (task.task_id, task.kind, task.data) == (made.task_id, "add up", {"by": 2})
    assert (task.timeout, task.attempt) == (timedelta(seconds=5), 1)
    caller("terminate", task.task_id, "w1", task.token, result=4)
    assert (row(made.task_id)["status"], row(made.task_id)["result"]) == ("terminated", 4)


def test_with_an_id_of_its_own_the_call_can_be_repeated(caller: Caller) -> None:
    parent = leased(caller, "t")
    proof = (parent.task_id, "w1", parent.token)
    task_id = uuid4()
    first = caller("fan_out", specs(2), task_id=task_id, parent=proof)
    again = caller("fan_out", specs(2), task_id=task_id, parent=proof)
    assert (first.task_id, first.created) == (task_id, True)
    assert (again.task_id, again.status, again.total, again.created) == (
        task_id, "snoozed", 2, False,
    )  # fmt: skip
    for part in parts(caller, task_id):
        end(caller, part, True)
    again = caller("fan_out", specs(2), task_id=task_id, parent=proof)
    assert (again.status, again.created) == ("terminated", False)
    assert refusal(caller, "fan_out", specs(2), task_id=task_id) == "SK008", "another parent"
    other = new_task(caller, "t")
    assert refusal(caller, "fan_out", specs(2), task_id=other) == "SK008", "no fan-out"


def test_a_fan_out_below_a_task_is_cancelled_with_it(caller: Caller, row: Row) -> None:
    parent = leased(caller, "t")
    made = caller("fan_out", specs(2), parent=(parent.task_id, "w1", parent.token))
    join = row(made.task_id)
    assert (join["parent_task_id"], join["candidate"], join["depth"]) == (parent.task_id, None, 1)
    caller("cancel", parent.task_id, "enough")
    caller("release_lease", parent.task_id, "w1", parent.token)
    caller("sweep", 100)
    for task_id in (parent.task_id, made.task_id, *parts(caller, made.task_id)):
        assert row(task_id)["error"]["code"] == "cancelled"
    assert caller("join", made.task_id).outcome == "cancelled"


def test_a_parent_that_ends_otherwise_leaves_its_plain_children_alone(
    caller: Caller, row: Row
) -> None:
    parent = leased(caller, "t")
    child = new_task(caller, "u", parent_task_id=parent.task_id)
    caller("terminate", parent.task_id, "w1", parent.token)
    caller("sweep", 100)
    assert row(child)["status"] == "starting"


def test_a_child_needs_a_live_parent_and_tasks_stand_only_so_deep(
    caller: Caller, row: Row, conn: psycopg.Connection
) -> None:
    assert refusal(caller, "create_task", "t", {}, parent_task_id=uuid4()) == "SK001"
    done = leased(caller, "t")
    caller("terminate", done.task_id, "w1", done.token)
    assert refusal(caller, "create_task", "t", {}, parent_task_id=done.task_id) == "SK002"
    conn.execute("update sokka.settings set max_depth = 2")
    above = new_task(caller, "t")
    for depth in (1, 2):
        above = new_task(caller, "t", parent_task_id=above)
        assert row(above)["depth"] == depth
    assert refusal(caller, "create_task", "t", {}, parent_task_id=above) == "22023"


def test_who_waits_for_a_child_sleeps_until_it_is_final(caller: Caller, row: Row) -> None:
    parent = leased(caller, "t")
    made = caller("fan_out", specs(1), parent=(parent.task_id, "w1", parent.token))
    outcome = caller(
        "wait_for_task", parent.task_id, "w1", parent.token, waits_for=made.task_id
    )
    assert outcome.status == "snoozed"
    assert caller("reserve_task", "t", "w1", 60) is None
    (part,) = parts(caller, made.task_id)
    end(caller, part, True)
    task = caller("reserve_task", "t", "w1", 60)
    assert (task.task_id, task.attempt, task.losses) == (parent.task_id, 1, 0)
    outcome = caller("wait_for_task", task.task_id, "w1", task.token, waits_for=made.task_id)
    assert outcome.status == "starting", "it was final already"


def test_only_a_task_of_ones_own_can_be_waited_for(caller: Caller, row: Row) -> None:
    parent = leased(caller, "t")
    for stranger, expected in (
        (new_task(caller, "u"), "22023"),
        (parent.task_id, "22023"),
        (None, "22023"),
        (uuid4(), "SK001"),
    ):
        state = refusal(
            caller, "wait_for_task", parent.task_id, "w1", parent.token, waits_for=stranger
        )
        assert state == expected, stranger
    assert row(parent.task_id)["status"] == "running"


def test_waiting_is_a_verb_of_settle_tasks_too(store: PgTaskStore, row: Row) -> None:
    created = [store.create_task("t") for _ in range(2)]
    first, second = store.reserve_tasks(["t"], "w1", 2, 60)
    child = store.create_task("u", parent_task_id=first.task_id).task_id
    verdicts = store.settle_tasks(
        "w1",
        [
            Settlement(first.task_id, first.token, "wait", child),
            Settlement(second.task_id, second.token, "wait", str(child)),
        ],
    )
    assert {verdict.task_id for verdict in verdicts} == {each.task_id for each in created}
    assert [verdict.verdict for verdict in verdicts] == ["ok", "22023"]
    assert (row(first.task_id)["status"], row(second.task_id)["status"]) == ("snoozed", "running")
    with pytest.raises(InvalidStatusTransition):
        store.wait_for_task(first, waits_for=child)


def test_a_tree_shows_who_stands_below_whom(caller: Caller) -> None:
    parent = leased(caller, "t")
    made = caller("fan_out", specs(3), policy="all", parent=(parent.task_id, "w1", parent.token))
    child = new_task(caller, "u", parent_task_id=parent.task_id)
    second = parts(caller, made.task_id)[1]
    below = new_task(caller, "v", parent_task_id=second)
    end(caller, parts(caller, made.task_id)[0], False)
    tree = {node.task_id: node for node in caller("task_tree", parent.task_id)}
    assert set(tree) == {parent.task_id, made.task_id, child, below, *parts(caller, made.task_id)}
    root, join = tree[parent.task_id], tree[made.task_id]
    assert (root.level, root.parent_task_id, root.children) == (0, None, 2)
    assert (join.level, join.policy, join.children) == (1, "all", 3)
    assert (join.status, join.error_code) == ("failed", "policy_unmet")
    assert (tree[below].level, tree[below].parent_task_id, tree[below].topic) == (3, second, "v")
    order = list(tree)
    assert order[0] == parent.task_id
    assert order.index(below) == order.index(second) + 1, "depth first"
    few = caller("task_tree", made.task_id, 100, 2)
    assert [(node.candidate, node.level) for node in few if node.level < 2] == [
        (None, 0), (1, 1), (2, 1),
    ]  # fmt: skip
    assert len(caller("task_tree", parent.task_id, 2)) == 2
    assert refusal(caller, "task_tree", uuid4()) == "SK001"

"""join_results: every candidate of a join, in order, with what became of it so far."""

from __future__ import annotations

from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue
from tests.sql.joining import children, fail, fan_out, lease, proof, succeed
from tests.sql.states import ERROR


def test_candidates_come_in_their_order_however_they_ended(fresh: Queue) -> None:
    join_id = fan_out(fresh, 5, max_running=4)
    one, two, three, four, five = children(fresh, join_id)
    lease(fresh, four)
    fail(fresh, three)
    succeed(fresh, one)
    fresh.one("cancel_task", task_id=five, reason="why")
    rows = fresh.call("join_results", task_id=join_id)
    assert [row.candidate for row in rows] == [1, 2, 3, 4, 5]
    assert [row.task_id for row in rows] == [one, two, three, four, five]
    assert [row.status for row in rows] == [
        "terminated", "starting", "failed", "running", "failed",
    ]  # fmt: skip
    assert [row.result for row in rows] == ["good", None, None, None, None]
    assert [row.attempt for row in rows] == [1, 0, 1, 1, 0]
    assert [row.finished_at is not None for row in rows] == [True, False, True, False, True]
    assert rows[2].error == ERROR
    assert rows[4].error["code"] == "cancelled"
    for row in rows:
        whole = fresh.row(row.task_id)
        assert (row.result, row.error, row.finished_at) == (
            whole.result, whole.error, whole.finished_at,
        )  # fmt: skip


def test_the_error_of_an_attempt_that_is_tried_again_is_told(fresh: Queue) -> None:
    join_id = fan_out(fresh, 1)
    (child,) = children(fresh, join_id)
    fresh.execute("update sokka.tasks set max_attempts = 2")
    fresh.verb("retry_task", lease(fresh, child), error=ERROR, delay="1 hour")
    row = fresh.one("join_results", task_id=join_id)
    assert (row.status, row.error, row.finished_at) == ("snoozed", ERROR, None)


@pytest.mark.parametrize("limit", [1, 3, 10, 10_000])
def test_pages_follow_one_another_without_gap_or_repeat(fresh: Queue, limit: int) -> None:
    join_id = fan_out(fresh, 10)
    kids = children(fresh, join_id)
    succeed(fresh, *kids[::2])
    seen, after = [], 0
    while page := fresh.call("join_results", task_id=join_id, after=after, limit=limit):
        assert len(page) <= limit
        seen += [row.task_id for row in page]
        after = page[-1].candidate
    assert seen == kids


def test_there_are_a_thousand_to_a_page_where_nobody_says_otherwise(fresh: Queue) -> None:
    join_id = fan_out(fresh, 1001)
    assert len(fresh.call("join_results", task_id=join_id)) == 1000
    assert fresh.one("join_results", task_id=join_id, after=1000).candidate == 1001
    assert len(fresh.call("join_results", task_id=join_id, after=-5, limit=2)) == 2


def test_a_join_without_candidates_has_no_results(fresh: Queue) -> None:
    assert fresh.call("join_results", task_id=fan_out(fresh, 0)) == []


def test_other_children_of_a_join_are_no_candidates(fresh: Queue) -> None:
    join_id = fan_out(fresh, 1, kind="sum")
    succeed(fresh, *children(fresh, join_id))
    reducer = lease(fresh, join_id)
    fresh.create("t", parent_task_id=join_id)
    fan_out(fresh, 2, **proof(reducer))
    assert [row.candidate for row in fresh.call("join_results", task_id=join_id)] == [1]


def test_results_are_there_after_the_join_has_ended(fresh: Queue) -> None:
    join_id = fan_out(fresh, 2, policy="all")
    one, two = children(fresh, join_id)
    for child, value in ((one, 1), (two, {"b": [2]})):
        fresh.verb("terminate_task", lease(fresh, child), result=Jsonb(value))
    assert fresh.row(join_id).status == "terminated"
    found = fresh.call("join_results", task_id=join_id)
    assert [row.result for row in found] == [1, {"b": [2]}]


def test_a_join_is_remembered_as_long_as_its_task(fresh: Queue, clock: Clock) -> None:
    gone, kept = fan_out(fresh, 1), fan_out(fresh, 1)
    succeed(fresh, *children(fresh, gone))
    clock.advance("60 days")
    fresh.one("sweep")
    while fresh.call("apply_retention"):
        pass
    assert fresh.call("get_join", task_id=gone) == []
    assert fresh.refused("join_results", task_id=gone).sqlstate == "SK001"
    assert fresh.one("get_join", task_id=kept).state == "open"
    succeed(fresh, *children(fresh, kept))
    assert fresh.row(kept).status == "terminated"


@pytest.mark.parametrize("state", [states.starting, states.running, states.terminated])
def test_of_a_task_that_is_no_join_there_are_none(queue: Queue, state: states.State) -> None:
    claim = state(queue)
    found = queue.refused("join_results", task_id=claim.task_id)
    assert (found.sqlstate, found.detail["task_id"]) == ("SK001", str(claim.task_id))
    unknown = uuid4()
    assert queue.refused("join_results", task_id=unknown).sqlstate == "SK001"
    assert queue.call("get_join", task_id=claim.task_id) == []


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_reading_works_under_an_old_snapshot(fresh: Queue, isolation: str) -> None:
    join_id = fan_out(fresh, 2)
    with fresh.connection.transaction():
        fresh.execute(f"set transaction isolation level {isolation}")
        assert len(fresh.call("join_results", task_id=join_id)) == 2
        assert fresh.one("get_join", task_id=join_id).total == 2
        assert len(fresh.call("task_tree", task_id=join_id)) == 3

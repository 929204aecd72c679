"""task_tree: a task and what is below it, parents before their children."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from tests.sql.calling import Clock, Queue, Row
from tests.sql.joining import children, fail, fan_out, lease, proof, succeed


def tree(queue: Queue, task_id: UUID, **bounds: int) -> list[Row]:
    return queue.call("task_tree", task_id=task_id, **bounds)


def test_a_task_alone_is_its_whole_tree(fresh: Queue) -> None:
    task_id = fresh.create("t", kind="k")
    (row,) = tree(fresh, task_id)
    assert (row.level, row.task_id, row.parent_task_id, row.candidate) == (0, task_id, None, None)
    assert (row.topic, row.kind, row.status, row.attempt) == ("t", "k", "starting", 0)
    assert (row.policy, row.error_code, row.finished_at, row.children) == (None, None, None, 0)


def test_a_tree_is_walked_depth_first_and_candidates_in_their_order(fresh: Queue) -> None:
    top = fresh.leased("top")
    first = fan_out(fresh, 2, policy="all", **proof(top))
    one, two = children(fresh, first)
    held = lease(fresh, one)
    below = fan_out(fresh, 1, policy="any", **proof(held))
    (deep,) = children(fresh, below)
    plain = fresh.create("plain", parent_task_id=top.task_id)
    fail(fresh, two)
    found = tree(fresh, top.task_id)
    assert [(row.level, row.task_id) for row in found] == [
        (0, top.task_id), (1, first), (2, one), (3, below), (4, deep), (2, two), (1, plain),
    ]  # fmt: skip
    assert [row.children for row in found] == [2, 2, 1, 1, 0, 0, 0]
    assert [row.policy for row in found] == [None, "all", None, "any", None, None, None]
    assert [row.candidate for row in found] == [None, None, 1, None, 1, 2, None]
    by_id = {row.task_id: row for row in found}
    assert (by_id[two].status, by_id[two].error_code) == ("failed", "boom")
    assert by_id[two].finished_at == fresh.row(two).finished_at
    assert (by_id[first].status, by_id[first].error_code) == ("failed", "policy_unmet")
    assert [row.parent_task_id for row in tree(fresh, one)] == [first, one, below]


def test_finished_and_live_stand_side_by_side(fresh: Queue) -> None:
    join_id = fan_out(fresh, 3)
    one, _, three = children(fresh, join_id)
    succeed(fresh, three, one)
    assert [(row.candidate, row.status) for row in tree(fresh, join_id)[1:]] == [
        (1, "terminated"), (2, "starting"), (3, "terminated"),
    ]  # fmt: skip


@pytest.mark.parametrize(("rows", "width", "levels"), [
    (1, 100, [0]), (4, 100, [0, 1, 1, 1]), (1000, 2, [0, 1, 1]), (3, 2, [0, 1, 1]),
])  # fmt: skip
def test_a_tree_is_bounded_in_all_and_for_each_parent(
    fresh: Queue, rows: int, width: int, levels: list[int]
) -> None:
    join_id = fan_out(fresh, 10)
    found = tree(fresh, join_id, max_rows=rows, max_children=width)
    assert [row.level for row in found] == levels
    assert [row.candidate for row in found[1:]] == list(range(1, len(levels)))
    assert found[0].children == 10


def test_levels_near_the_root_come_first_when_there_are_too_many(fresh: Queue) -> None:
    top = fresh.leased("top")
    joins = [fan_out(fresh, 5, **proof(top)) for _ in range(3)]
    found = tree(fresh, top.task_id, max_rows=4)
    assert [row.task_id for row in found] == [top.task_id, *joins]
    found = tree(fresh, top.task_id, max_rows=6)
    assert {row.task_id for row in found} >= {top.task_id, *joins}
    assert [row.level for row in found].count(2) == 2


def test_how_many_children_there_are_is_told_where_retention_took_some(
    fresh: Queue, clock: Clock
) -> None:
    join_id = fan_out(fresh, 3)
    parent = fresh.create("p")
    for task_id in (children(fresh, join_id)[0], fresh.create("c", parent_task_id=parent)):
        succeed(fresh, task_id)
    clock.advance("60 days")
    fresh.one("sweep")
    while fresh.call("apply_retention"):
        pass
    found = tree(fresh, join_id)
    assert [row.candidate for row in found] == [None, 2, 3]
    assert found[0].children == 3
    assert [row.children for row in tree(fresh, parent)] == [0]


def test_an_unknown_task_has_no_tree(queue: Queue) -> None:
    unknown = uuid4()
    found = queue.refused("task_tree", task_id=unknown)
    assert (found.sqlstate, found.detail["task_id"]) == ("SK001", str(unknown))


def test_a_finished_task_has_one(queue: Queue, topic: str) -> None:
    held = queue.leased(topic)
    queue.verb("terminate_task", held)
    assert [row.status for row in tree(queue, held.task_id)] == ["terminated"]

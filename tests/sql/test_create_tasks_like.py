"""create_tasks_like: what create_tasks makes of as many specs, and what it refuses."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Queue, Row
from tests.sql.test_create_tasks import BAD, label

LARGE = "".join(str(n * 7919) for n in range(2_000))
OF_A_SPEC = [
    (bad, argument) for bad, argument in BAD
    if isinstance(bad, dict) and not bad.keys() & {"data", "task_id", "unique_key"}
]  # fmt: skip


def create(queue: Queue, spec: dict[str, Any], data: list[Any]) -> list[Row]:
    return queue.call("create_tasks_like", spec=Jsonb(spec), data=Jsonb(data))


@pytest.mark.parametrize(("bad", "argument"), OF_A_SPEC, ids=label)
def test_a_bad_spec_is_refused_in_the_words_of_create_tasks(
    queue: Queue, bad: dict[str, Any], argument: str
) -> None:
    before = queue.value("select count(*) from sokka.all_tasks")
    found = queue.refused("create_tasks_like", spec=Jsonb(bad), data=Jsonb([1, 2]))
    there = queue.refused("create_tasks", specs=Jsonb([bad | {"data": 1}, bad | {"data": 2}]))
    assert found == there
    assert (found.sqlstate, found.detail["argument"]) == ("22023", argument)
    assert queue.value("select count(*) from sokka.all_tasks") == before


def test_a_payload_that_is_too_large_refuses_the_call_and_is_named(
    queue: Queue, topic: str
) -> None:
    data = [1, "x" * 1048574, "x" * 1048575, "x" * 1048576]
    found = queue.refused("create_tasks_like", spec=Jsonb({"topic": topic}), data=Jsonb(data))
    assert (found.sqlstate, found.detail["argument"], found.detail["position"]) == (
        "22023", "data", 3,
    )  # fmt: skip
    assert queue.value("select count(*) from sokka.all_tasks where topic = %s", topic) == 0
    assert len(create(queue, {"topic": topic}, data[:2])) == 2


def test_each_payload_is_kept_as_it_was_wherever_it_stands(queue: Queue, topic: str) -> None:
    payloads: list[Any] = [1, LARGE, None, "x", [LARGE, None], {"n": None}, False, [[]]]
    made = create(queue, {"topic": topic}, payloads)
    assert [queue.row(row.task_id).data for row in made] == payloads
    leases = queue.call("reserve_tasks", topics=[topic], pid="w", max_tasks=10)
    assert [lease.data for lease in leases] == payloads
    assert queue.value(
        "select data is null from sokka.all_tasks where task_id = %s", made[2].task_id
    )


def test_thousands_are_made_in_one_call_in_their_order(queue: Queue, topic: str) -> None:
    made = create(queue, {"topic": topic}, list(range(10_000)))
    ids = [row.task_id for row in made]
    assert [row.ord for row in made] == list(range(1, 10_001))
    assert all(row.created for row in made)
    assert ids == sorted(set(ids))
    assert {(task_id.version, task_id.variant) for task_id in ids} == {(7, uuid.RFC_4122)}
    got = queue.call("reserve_tasks", topics=[topic], pid="w1", max_tasks=3)
    assert [(lease.task_id, lease.data) for lease in got] == list(
        zip(ids[:3], range(3), strict=True)
    )


def test_no_payload_makes_no_task(queue: Queue) -> None:
    assert create(queue, {"topic": "t"}, []) == []


def test_a_task_that_waits_for_its_time_is_asleep_like_any_other(
    queue: Queue, topic: str
) -> None:
    made = create(queue, {"topic": topic, "run_at": "2100-01-01T00:00:00Z"}, [1, 2])
    assert {queue.row(row.task_id).status for row in made} == {"snoozed"}
    group = str(uuid.uuid4())
    made = create(queue, {"topic": topic, "task_group_id": group}, [1, 2])
    assert {str(queue.row(row.task_id).task_group_id) for row in made} == {group}

"""list_tasks, list_leased_tasks, list_group: filters, and paging by cursor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue, Row
from tests.sql.states import ERROR


def pages(queue: Queue, function: str, size: int, **options: Any) -> list[Row]:
    """All rows, page by page."""
    rows: list[Row] = []
    while page := queue.call(
        function, cursor=rows[-1].cursor if rows else None, limit=size, **options
    ):
        assert len(page) <= size
        rows += page
    return rows


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize("instants", ["one instant", "many"])
def test_paging_meets_each_task_once_and_in_order(
    fresh: Queue, clock: Clock, size: int, descending: bool, instants: str
) -> None:
    clock.stop()
    for number in range(12):
        lease = fresh.leased("t")
        if number % 2:
            fresh.verb("terminate_task", lease)
        if instants == "many":
            clock.advance("1 microsecond")
    rows = pages(fresh, "list_tasks", size, descending=descending)
    keys = [(row.updated_at, row.task_id) for row in rows]
    assert keys == sorted(keys, reverse=descending)
    assert len({row.task_id for row in rows}) == len(rows) == 12


def test_a_task_that_changes_while_being_paged_is_met_again(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    ids = []
    for _ in range(6):
        ids.append(fresh.create("t"))
        clock.advance("1 s")
    first = fresh.call("list_tasks", limit=3)
    assert [row.task_id for row in first] == ids[:3]
    taken = fresh.reserve("t")
    new = fresh.create("t")
    rest = pages_after(fresh, first[-1].cursor)
    assert [row.task_id for row in rest if row.task_id not in (taken.task_id, new)] == ids[3:]
    assert {row.task_id for row in rest} >= {*ids[3:], taken.task_id, new}
    # Going down, what changed moves up and out of sight; nothing else is missed.
    down = fresh.call("list_tasks", limit=3, descending=True)
    fresh.one("cancel_task", task_id=ids[1])
    rest = fresh.call("list_tasks", limit=10, descending=True, cursor=down[-1].cursor)
    assert {row.task_id for row in down + rest} >= {*ids, new} - {ids[1]}


def pages_after(queue: Queue, cursor: str) -> list[Row]:
    return queue.call("list_tasks", cursor=cursor, limit=100)


def test_a_task_that_finishes_while_being_paged_is_neither_lost_nor_torn(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop()
    leases = []
    for _ in range(4):
        leases.append(fresh.leased("t"))
        clock.advance("1 s")
    seen = fresh.call("list_tasks", limit=2)
    fresh.verb("terminate_task", leases[3])
    seen += fresh.call("list_tasks", limit=10, cursor=seen[-1].cursor)
    assert [row.task_id for row in seen] == [lease.task_id for lease in leases]
    assert seen[-1].status == "terminated"


def matching(queue: Queue, **filters: Any) -> set[UUID]:
    return {row.task_id for row in queue.call("list_tasks", filters=filters)}


def test_each_filter_narrows_the_list(fresh: Queue, clock: Clock) -> None:
    start = clock.stop()
    group = uuid4()
    one = fresh.create("a", kind="mail", sub_topic="x", task_group_id=group)
    clock.advance("1 s")
    two = fresh.create("a", kind="sms")
    clock.advance("1 s")
    three = fresh.leased("b").task_id
    clock.advance("1 s")
    four = states.failed(fresh).task_id
    every = {one, two, three, four}
    assert matching(fresh) == every
    assert matching(fresh, topic="a") == {one, two}
    assert matching(fresh, kind="mail") == {one}
    assert matching(fresh, sub_topic="default") == every - {one}
    assert matching(fresh, status="starting") == {one, two}
    assert matching(fresh, status=["running", "failed"]) == {three, four}
    assert matching(fresh, status=[]) == set()
    assert matching(fresh, task_group_id=str(group)) == {one}
    assert matching(fresh, topic="a", kind="sms", status="starting") == {two}
    assert matching(fresh, topic=None, status=None) == every

    def at(seconds: int) -> str:
        return str((start + timedelta(seconds=seconds)).isoformat())

    # Both bounds belong to it.
    assert matching(fresh, **{"from": at(1), "to": at(2)}) == {two, three}
    assert matching(fresh, **{"from": at(1)}) == every - {one}
    assert matching(fresh, to=at(0)) == {one}


@pytest.mark.parametrize(
    ("filters", "argument"),
    [
        ({"colour": "red"}, "filters"), ({"Topic": "a"}, "filters"),
        ({"status": "paused"}, "filters.status"), ({"status": ["running", "x"]}, "filters.status"),
        ({"status": 1}, "filters.status"), ({"status": {}}, "filters.status"),
        ({"task_group_id": "x"}, "filters.task_group_id"),
        ({"from": "2030-01-01T00:00:00"}, "filters.from"), ({"from": "2030-01-01"}, "filters.from"),
        ({"to": "soon"}, "filters.to"), ({"to": 5}, "filters.to"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_filter_is_refused_by_name(
    queue: Queue, filters: dict[str, Any], argument: str
) -> None:
    found = queue.refused("list_tasks", filters=filters)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", argument)


@pytest.mark.parametrize("filters", ["[]", "7", '"topic"', "null"])
def test_filters_must_be_an_object(queue: Queue, filters: str) -> None:
    found = queue.refused("list_tasks", filters=filters)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "filters")


def test_a_name_with_wildcards_matches_itself_alone(fresh: Queue) -> None:
    wanted = fresh.create("100%_'\"\\")
    fresh.create("100 percent")
    assert matching(fresh, topic="100%_'\"\\") == {wanted}


def test_a_line_of_the_list_says_how_the_task_stands(queue: Queue, topic: str) -> None:
    lease = queue.leased(topic)
    for _ in range(2):
        (line,) = queue.call("list_tasks", filters={"topic": topic})
        row = queue.row(lease.task_id)
        for column in set(vars(line)) - {"cursor"}:
            assert getattr(line, column) == getattr(row, column), column
        if row.status == "running":
            queue.verb("fail_task", lease, error=ERROR)
    assert not {"data", "result", "checkpoint", "progress", "headers"} & set(vars(line))


def test_leased_tasks_are_the_running_and_the_snoozed(queue: Queue, topic: str) -> None:
    queue.create(topic + " too")
    wanted = {queue.leased(topic, pid).task_id for pid in ("w1", "w2", "w3")}
    snoozed = queue.leased(topic)
    queue.verb("snooze_task", snoozed, snooze="1 hour")
    wanted.add(snoozed.task_id)
    queue.create(topic)
    queue.leased(topic + " too")
    for size in (1, 3, 100):
        rows = pages(queue, "list_leased_tasks", size, topic=topic)
        assert [row.task_id for row in rows] == sorted(wanted)
    assert {row.status for row in rows} == {"running", "snoozed"}


def test_a_group_is_listed_whole_oldest_first_and_finished_ones_too(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop()
    parent = fresh.create("t")
    ids = [parent]
    for _ in range(5):
        clock.advance("1 s")
        ids.append(fresh.create("u", task_group_id=parent))
    fresh.verb("terminate_task", fresh.reserve("u"))
    fresh.create("t")
    rows = fresh.call("list_group", task_group_id=parent)
    assert [row.task_id for row in rows] == ids
    assert [row.status for row in rows].count("terminated") == 1
    assert fresh.call("list_group", task_group_id=uuid4()) == []


def test_a_group_has_no_cap(queue: Queue, topic: str) -> None:
    group = uuid4()
    specs = [{"topic": topic, "task_group_id": str(group)}] * 10_000
    queue.call("create_tasks", specs=Jsonb(specs))
    queue.create(topic, task_group_id=group)
    assert queue.value(
        "select count(*) from sokka.list_group(%s)", group
    ) == 10_001

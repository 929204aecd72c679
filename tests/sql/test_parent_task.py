"""parent_task_id: a task may stand below another that is live, down to a bounded depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Queue, Refusal
from tests.sql.joining import fan_out

Another = Callable[..., Queue]


def create(queue: Queue, function: str, parent: Any, **more: Any) -> UUID | Refusal:
    """A task below another, by either function."""
    if function == "create_task":
        arguments = {"topic": "c", "parent_task_id": parent} | more
    else:
        spec = {"topic": "c", "parent_task_id": parent if parent is None else str(parent)} | more
        arguments = {"specs": Jsonb([{"topic": "c"}, spec])}
    refusal = queue.refusal(function, **arguments)
    if refusal is not None:
        return refusal
    found: UUID = queue.value("select task_id from sokka.tasks order by queue_pos desc limit 1")
    return found


pytestmark = pytest.mark.parametrize("function", ["create_task", "create_tasks"])


@pytest.mark.parametrize("state", [states.starting, states.snoozed, states.running, states.expired])
def test_a_task_stands_below_any_live_one(
    fresh: Queue, function: str, state: states.State
) -> None:
    parent = state(fresh).task_id
    before = fresh.row(parent)
    child = create(fresh, function, parent)
    row = fresh.row(child)
    assert (row.parent_task_id, row.candidate, row.depth) == (parent, None, 1)
    # No more than the word of its creator: neither its group nor its end.
    assert row.task_group_id == child
    assert fresh.row(parent) == before
    (created,) = fresh.history(child)
    assert created.detail["parent_task_id"] == str(parent)


def test_without_a_parent_a_task_stands_at_the_top(fresh: Queue, function: str) -> None:
    row = fresh.row(create(fresh, function, None))
    assert (row.parent_task_id, row.candidate, row.depth) == (None, None, 0)


@pytest.mark.parametrize(("state", "sqlstate"), [
    (states.unknown, "SK001"), (states.failed, "SK002"), (states.terminated, "SK002"),
])  # fmt: skip
def test_a_parent_must_be_live(
    fresh: Queue, function: str, state: states.State, sqlstate: str
) -> None:
    parent = state(fresh).task_id
    before = fresh.value("select count(*) from sokka.tasks")
    found = create(fresh, function, parent, task_id=str(uuid4()))
    assert (found.sqlstate, found.detail["task_id"]) == (sqlstate, str(parent))
    assert fresh.value("select count(*) from sokka.tasks") == before
    assert fresh.value("select count(*) from sokka.given_ids") == 0


@pytest.mark.parametrize("most", [1, 3, 16])
def test_the_settings_say_how_deep_a_task_may_stand(
    fresh: Queue, function: str, most: int
) -> None:
    fresh.execute("update sokka.settings set max_depth = %s", most)
    parent = fresh.create("t")
    for depth in range(1, most + 1):
        parent = create(fresh, function, parent)
        assert fresh.row(parent).depth == depth
    found = create(fresh, function, parent)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "parent_task_id")
    assert str(most - 1) in found.message


def test_a_join_may_have_other_children_than_its_candidates(fresh: Queue, function: str) -> None:
    join_id = fan_out(fresh, 1)
    child = create(fresh, function, join_id)
    assert fresh.row(child).candidate is None
    assert fresh.one("get_join", task_id=join_id).total == 1


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_parent_is_named_under_an_old_snapshot_too(
    fresh: Queue, another: Another, function: str, isolation: str
) -> None:
    parent = fresh.create("t")
    caller = another(autocommit=False)
    caller.execute(f"set transaction isolation level {isolation}")
    child = create(caller, function, parent)
    caller.connection.commit()
    assert fresh.row(child).parent_task_id == parent


def test_creating_below_a_task_holds_up_no_heartbeat_of_it(
    fresh: Queue, another: Another, function: str
) -> None:
    held = fresh.leased("t")
    creator = another(autocommit=False)
    create(creator, function, held.task_id)
    fresh.execute("set statement_timeout = '10 s'")
    assert fresh.verb("extend_lease", held).record_ver > held.record_ver
    fresh.verb("terminate_task", held)
    creator.connection.rollback()


def test_a_task_found_by_its_unique_key_keeps_its_parent(fresh: Queue, function: str) -> None:
    one, two = fresh.create("t"), fresh.create("t")
    first = create(fresh, function, one, unique_key="k")
    create(fresh, function, two, unique_key="k")
    rows = fresh.rows("select task_id, parent_task_id from sokka.tasks where unique_key = 'k'")
    assert [(row.task_id, row.parent_task_id) for row in rows] == [(first, one)]

"""Recorded steps and streams, for every kind of caller."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from sokka_pg.errors import SokkaError
from tests.contract.callers import Caller, leased, refusal


def proof(task: Any) -> tuple[Any, str, int]:
    return task.task_id, task.pid, task.token


def detail(call: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    """What a refusal tells."""
    try:
        call(*arguments, **options)
    except SokkaError as error:
        return error.detail
    except psycopg.Error as error:
        found: dict[str, Any] = json.loads(error.diag.message_detail or "")
        return found
    raise AssertionError("it was not refused")


def test_the_first_value_of_a_step_stays_for_all_owners_to_come(caller: Caller) -> None:
    task = leased(caller, "t")
    first = caller("record_step", *proof(task), name="pay", value={"id": 1})
    again = caller("record_step", *proof(task), name="pay", value={"id": 2})
    assert (first.value, first.recorded) == ({"id": 1}, True)
    assert (again.value, again.recorded) == ({"id": 1}, False)
    assert (again.seq, again.recorded_at) == (first.seq, first.recorded_at)
    caller("release_lease", *proof(task))
    other = caller("reserve_task", "t", "w2", 60)
    third = caller("record_step", *proof(other), name="pay", value={"id": 3})
    assert (third.value, third.recorded) == ({"id": 1}, False)
    last = caller("record_step", *proof(other), name="ship", value=[])
    steps = caller("steps", task.task_id)
    assert [(step.name, step.value, step.token) for step in steps] == [
        ("pay", {"id": 1}, task.token), ("ship", [], other.token),
    ]  # fmt: skip
    assert first.seq < last.seq
    assert steps[1].recorded_at == last.recorded_at
    caller("terminate", *proof(other))
    assert [step.name for step in caller("steps", task.task_id)] == ["pay", "ship"]


def test_a_task_without_steps_has_none(caller: Caller) -> None:
    assert caller("steps", leased(caller, "t").task_id) == []
    assert caller("steps", uuid4()) == []


@pytest.mark.parametrize("name", ["", " ", "a\nb", "n" * 201, None])
def test_a_step_needs_a_name(caller: Caller, name: Any) -> None:
    task = leased(caller, "t")
    assert refusal(caller, "record_step", *proof(task), name=name, value=1) == "22023"


def test_a_stream_gives_its_items_in_order_and_each_until_it_is_acknowledged(
    caller: Caller,
) -> None:
    task = leased(caller, "t")
    appended = caller("append_stream", *proof(task), items=["a", {"b": [1]}])
    assert (appended.accepted, appended.last_seq) == (2, 2)
    appended = caller("append_stream", *proof(task), items=[None], after=2)
    assert (appended.accepted, appended.last_seq) == (1, 3)
    items = caller("read_stream", task.task_id)
    assert [(item.seq, item.item) for item in items] == [(1, "a"), (2, {"b": [1]}), (3, None)]
    assert items[0].written_at <= items[2].written_at
    assert [item.seq for item in caller("read_stream", task.task_id, 0, 2)] == [1, 2]
    assert [item.seq for item in caller("read_stream", task.task_id, 2)] == [3]
    state = caller("stream", task.task_id)
    assert (state.status, state.last_seq, state.consumed_seq) == ("running", 3, 2)
    assert (state.pending_items, state.error) == (1, None)
    caller("read_stream", task.task_id, 0)
    assert caller("stream", task.task_id).consumed_seq == 2, "reading again takes nothing back"


def test_a_full_stream_takes_what_fits_and_more_once_it_was_read(caller: Caller) -> None:
    task = leased(caller, "t")
    state = caller("open_stream", task.task_id, 3, 2_000)
    assert (state.max_items, state.max_bytes, state.last_seq) == (3, 2_000, 0)
    assert caller("open_stream", task.task_id, 9, 9_000).max_items == 3, "open already"
    appended = caller("append_stream", *proof(task), items=[1, 2, 3, 4, 5])
    assert (appended.accepted, appended.last_seq, appended.free_items) == (3, 3, 0)
    appended = caller("append_stream", *proof(task), items=[4, 5], after=3)
    assert (appended.accepted, appended.last_seq) == (0, 3)
    caller("read_stream", task.task_id, 2)
    appended = caller("append_stream", *proof(task), items=[4, 5], after=3)
    assert (appended.accepted, appended.free_items) == (2, 0)
    assert [item.item for item in caller("read_stream", task.task_id, 2)] == [3, 4, 5]


def test_a_stream_holds_so_many_bytes_and_no_larger_item(caller: Caller) -> None:
    task = leased(caller, "t")
    caller("open_stream", task.task_id, 100, 1_024)
    appended = caller("append_stream", *proof(task), items=["x" * 600, "y" * 600])
    assert appended.accepted == 1
    assert appended.free_bytes < 600
    assert refusal(caller, "append_stream", *proof(task), items=["x" * 1_024]) == "22023"
    assert len(caller("read_stream", task.task_id, 0, 100, 1)) == 1, "one in any case"
    caller("read_stream", task.task_id, 1)
    assert caller("append_stream", *proof(task), items=["y" * 600]).accepted == 1


def test_who_is_mistaken_about_the_last_number_is_told_it(caller: Caller) -> None:
    task = leased(caller, "t")
    caller("append_stream", *proof(task), items=[1, 2])
    for after in (0, 1, 3):
        assert refusal(caller, "append_stream", *proof(task), items=[3], after=after) == "SK007"
    assert detail(caller, "append_stream", *proof(task), items=[3], after=1)["last_seq"] == 2
    assert caller("stream", task.task_id).last_seq == 2


def test_a_stream_goes_on_with_the_next_owner_and_outlives_its_task(caller: Caller) -> None:
    task = leased(caller, "t")
    caller("append_stream", *proof(task), items=["a"])
    caller("release_lease", *proof(task))
    other = caller("reserve_task", "t", "w2", 60)
    caller("append_stream", *proof(other), items=["b"], after=1)
    caller("fail", *proof(other), error={"code": "boom", "message": "m"})
    state = caller("stream", task.task_id)
    assert (state.status, state.error["code"], state.pending_items) == ("failed", "boom", 2)
    assert [item.item for item in caller("read_stream", task.task_id)] == ["a", "b"]
    assert [item.item for item in caller("read_stream", task.task_id, 1)] == ["b"]
    assert caller("stream", task.task_id).consumed_seq == 1


def test_a_stream_is_opened_for_a_live_task_only(caller: Caller) -> None:
    assert refusal(caller, "open_stream", uuid4()) == "SK001"
    task = leased(caller, "t")
    assert caller("stream", task.task_id) is None
    assert refusal(caller, "read_stream", task.task_id) == "SK001"
    caller("terminate", *proof(task))
    assert refusal(caller, "open_stream", task.task_id) == "SK002"


@pytest.mark.parametrize("items", [[], [1] * 1_001, {"a": 1}])
def test_what_is_no_array_of_items_is_refused(caller: Caller, items: Any) -> None:
    task = leased(caller, "t")
    assert refusal(caller, "append_stream", *proof(task), items=items) == "22023"
    assert caller("stream", task.task_id) is None

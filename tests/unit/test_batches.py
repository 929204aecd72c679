"""Tasks in batches: which go together, what is sent, and what is said of a failure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from sokka_pg import calls
from sokka_pg.calls.batches import BATCH_BYTES
from sokka_pg.errors import BadArgument, DatabaseUnavailable, UniqueKeyTaken
from sokka_pg.model import BatchesCreated, CreatedId, RetryPolicy
from sokka_pg.payload import encode, encode_members

ALIKE: dict[str, Any] = {"topic": "t", "kind": "k"}


@dataclass
class Order:
    number: int


def sent(batches: calls.Batches) -> Iterator[calls.Call[Any]]:
    """Each call in turn, answered as if everything was new."""
    list(batches.prepare())
    while (call := batches.next_call()) is not None:
        yield call
        list(batches.prepare())
        count = len(payloads(call))
        ids = len(call.statement.columns) == 2 and call.statement.suffix
        batches.answered(
            [CreatedId(uuid4(), True) for _ in range(count)] if ids else (count, count)
        )


def payloads(call: calls.Call[Any]) -> list[Any]:
    if call.statement.source == "create_tasks_like":
        return list(json.loads(call.params["data"] or ""))
    return [spec.get("data") for spec in json.loads(call.params["specs"] or "")]


def specs(count: int, **options: Any) -> Iterator[dict[str, Any]]:
    return ({**ALIKE, **options, "data": n} for n in range(count))


def test_tasks_that_differ_in_their_data_alone_send_the_rest_once() -> None:
    retry = RetryPolicy(3)
    found = list(sent(calls.Batches(specs(2_500, retry=retry, priority=2), 1_000)))
    assert {call.statement.source for call in found} == {"create_tasks_like"}
    assert [n for call in found for n in payloads(call)] == list(range(2_500))
    assert [len(payloads(call)) for call in found] == [1_000, 1_000, 500]
    alone = json.loads(calls.create_task("t", retry=retry).params["retry"] or "")
    for call in found:
        shared = json.loads(call.params["spec"] or "")
        assert shared == {**ALIKE, "priority": "2", "retry": alone}


@pytest.mark.parametrize(
    "other",
    [
        {"topic": "u", "data": 0}, {"topic": "t", "kind": "other", "data": 0}, {"topic": "t"},
        {"topic": "t", "priority": 1, "data": 0}, {"topic": "t", "kind": None, "data": 0},
        {"topic": "t", "kind": "k", "data": 0, "unique_key": "u"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 9, 10, 700])
def test_a_batch_with_one_that_is_unlike_the_others_has_them_all(
    other: dict[str, Any], place: int
) -> None:
    given = list(specs(1_000))
    given.insert(place, other)
    (call,) = sent(calls.Batches(given, 2_000))
    assert call.statement.source == "create_tasks"
    alone = calls.create_tasks(given).params
    assert json.loads(call.params["specs"] or "") == json.loads(alone["specs"] or "")
    wanted = [{k: v for k, v in spec.items() if v is not None} for spec in given]
    found = json.loads(call.params["specs"] or "")
    assert [spec | {"priority": 1} if "priority" in spec else spec for spec in found] == wanted


@pytest.mark.parametrize("name", ["task_id", "parent_task_id"])
def test_what_makes_a_task_one_of_a_kind_is_not_shared(name: str) -> None:
    (call,) = sent(calls.Batches(specs(20, **{name: uuid4()})))
    assert call.statement.source == "create_tasks"


def test_equal_is_not_the_same_where_one_of_them_is_refused() -> None:
    given = [{**ALIKE, "priority": 1, "data": 1}] * 30 + [{**ALIKE, "priority": True, "data": 1}]
    for make in (calls.create_tasks, lambda every: list(sent(calls.Batches(every)))):
        with pytest.raises(BadArgument) as refused:
            make(given)
        assert refused.value.detail["position"] == 31
        assert refused.value.detail["argument"] == "priority"


BAD_DATA: list[Any] = [
    math.nan, "\x00", "\ud800", object(), {1: 2}, [[math.inf]], "x" * 1_100_000, 10**1_001,
]


@pytest.mark.parametrize("bad", BAD_DATA, ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize("position", [1, 2, 137, 1_237])
def test_a_payload_that_cannot_be_stored_is_named_by_its_place_among_all(
    bad: Any, position: int
) -> None:
    given = list(specs(1_400))
    given[position - 1]["data"] = bad
    with pytest.raises(BadArgument) as refused:
        calls.create_tasks(given)
    assert refused.value.detail["position"] == position
    said = refused.value.message
    batches = calls.Batches(iter(given), 1_000)
    with pytest.raises(BadArgument) as refused:
        list(sent(batches))
    assert refused.value.message == said
    assert said.startswith(f"specs[{position}].data")
    stored = position // 1_000 * 1_000
    assert refused.value.detail["stored"] == batches.total.created == stored


def test_payloads_that_need_a_closer_look_are_sent_as_by_create_task() -> None:
    data = [Order(1), (1, 2), encode({"a": 1}), "é\\u0000", 2**70, None, {"b": [None]}, 1e300]
    given = [{**ALIKE, "data": each} for each in data * 20]
    alone = [calls.create_task("t", each).params.get("data") or "null" for each in data]
    for call in (calls.create_tasks(given), *sent(calls.Batches(given))):
        assert payloads(call) == [json.loads(text) for text in alone] * 20


def test_several_values_are_encoded_as_each_alone() -> None:
    values = [1, "é", {"a": [True, None, 1.5]}, "\u2028", -(2**63)]
    assert encode_members(values) == ", ".join(encode(value) for value in values)
    wrapped = json.loads(f"[{encode_members(values, around={'topic': 't'})}]")
    assert wrapped == [{"topic": "t", "data": value} for value in values]
    assert encode_members(values, 20) is None
    for bad in BAD_DATA[:-1]:
        assert encode_members([1, bad]) is None


def test_options_of_all_kinds_travel_as_those_of_one_task() -> None:
    options: dict[str, Any] = {
        "sub_topic": "s", "task_group_id": uuid4(), "run_at": datetime(2100, 1, 1, tzinfo=UTC),
        "max_attempts": 3, "retry": {"initial": 2, "max": 5}, "timeout": timedelta(seconds=3),
        "headers": {"a": "\"b\\"}, "max_losses": 2,
    }  # fmt: skip
    alone = calls.create_task("t", [1], kind="k", **options).params
    wanted = {
        name: json.loads(text or "") if name in ("retry", "headers") else text
        for name, text in alone.items() if name != "data"
    }  # fmt: skip
    (call,) = sent(calls.Batches(specs(5, **options)))
    assert json.loads(call.params["spec"] or "") == wanted
    together = json.loads(calls.create_tasks(list(specs(5, **options))).params["specs"] or "")
    assert together == [{**wanted, "data": n} for n in range(5)]


def test_a_batch_ends_by_its_bytes_and_no_more_is_taken_than_the_next_needs() -> None:
    taken = 0

    def large() -> Iterator[dict[str, Any]]:
        nonlocal taken
        for _ in range(1_000):
            taken += 1
            yield {**ALIKE, "data": "x" * 100_000}

    batches = calls.Batches(large(), 1_000)
    for number, call in enumerate(sent(batches)):
        assert len(call.params["data"] or "") < BATCH_BYTES + 2_000_000
        assert taken * 100_000 < (number + 1) * (BATCH_BYTES + 2_000_000)
    assert batches.total == BatchesCreated(1_000, 0)


def test_specs_given_before_an_error_are_stored_and_then_it_is_raised() -> None:
    def given() -> Iterator[dict[str, Any]]:
        yield from specs(1_234)
        raise OSError("gone")

    batches = calls.Batches(given(), 1_000)
    found: list[int] = []
    with pytest.raises(OSError, match="gone") as raised:
        for call in sent(batches):
            found += payloads(call)
    assert found == list(range(1_234))
    assert raised.value.__notes__ == ["the first 1234 specs are stored"]


def test_ids_are_told_once_and_in_order_and_not_after_an_error_of_the_listener() -> None:
    told: list[int] = []

    def each(ids: list[CreatedId]) -> None:
        told.append(len(ids))
        if len(told) == 2:
            raise KeyError("full")

    batches = calls.Batches(specs(5_500), 1_000, each)
    with pytest.raises(KeyError) as raised:
        list(sent(batches))
    assert told == [1_000, 1_000]
    # The third was under way when the second was told of.
    assert batches.total.created == 3_000
    assert raised.value.__notes__ == ["the first 3000 specs are stored"]
    told.clear()
    list(sent(calls.Batches(specs(1_500), 1_000, lambda ids: told.append(len(ids)))))
    assert told == [1_000, 500]


def test_an_error_of_a_batch_is_told_by_the_places_among_all() -> None:
    batches = calls.Batches(specs(2_500), 1_000)
    calls_sent = sent(batches)
    next(calls_sent), next(calls_sent)
    refused = UniqueKeyTaken("unique key 'k' is held", {"position": 7, "task_id": "x"})
    found = batches.failed(refused)
    assert type(found) is UniqueKeyTaken
    assert found.detail == {"position": 1_007, "task_id": "x", "stored": 1_000}
    bad = batches.failed(BadArgument("specs[7]: data too large", {"position": 7}))
    assert bad.message == "specs[1007]: data too large"
    lost = batches.failed(DatabaseUnavailable("gone", {"sent": True}))
    assert (lost.detail["stored"], lost.detail["unknown"]) == (1_000, [1_001, 2_000])
    assert "is not known" in lost.__notes__[0]
    never = batches.failed(DatabaseUnavailable("gone", {"sent": False}))
    assert "unknown" not in never.detail


@pytest.mark.parametrize("given", [None, "abc", b"x", {"topic": "t"}, 5])
def test_what_is_no_batch_is_refused_before_anything_is_taken(given: Any) -> None:
    with pytest.raises(BadArgument, match="specs"):
        calls.Batches(given)


@pytest.mark.parametrize("size", [0, 10_001, True, 1.5, None])
def test_a_batch_has_a_bounded_size(size: Any) -> None:
    with pytest.raises(BadArgument, match="batch_size"):
        calls.Batches([], size)


def test_no_specs_are_no_call() -> None:
    batches = calls.Batches([])
    assert list(sent(batches)) == []
    assert batches.total == BatchesCreated(0, 0)

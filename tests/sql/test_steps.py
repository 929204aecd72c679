"""record_step: what a step gave, once; whoever takes the task over gets it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue, Row
from tests.sql.joining import lease, succeed
from tests.sql.states import WRONG_STATES

Another = Callable[..., Queue]


def record(queue: Queue, held: Row, name: str, value: Any) -> Row:
    value = None if value is None else Jsonb(value)
    return queue.verb("record_step", held, name=name, value=value)


def steps(queue: Queue, held: Row) -> list[Row]:
    return queue.call("list_steps", task_id=held.task_id)


def test_the_first_value_under_a_name_stays(queue: Queue, topic: str) -> None:
    held = queue.leased(topic)
    first = record(queue, held, "load", {"rows": 7})
    assert (first.seq, first.value, first.recorded) == (1, {"rows": 7}, True)
    again = record(queue, held, "load", {"rows": 8})
    assert (again.seq, again.value, again.recorded) == (1, {"rows": 7}, False)
    assert again.recorded_at == first.recorded_at
    (kept,) = steps(queue, held)
    assert (kept.seq, kept.name, kept.value, kept.token) == (1, "load", {"rows": 7}, held.token)


@pytest.mark.parametrize("value", [None, 0, "", False, [], {}, "é", [1, {"a": None}]], ids=repr)
def test_any_value_is_kept_as_it_is(queue: Queue, topic: str, value: Any) -> None:
    held = queue.leased(topic)
    assert record(queue, held, "s", value).value == value
    again = record(queue, held, "s", "other")
    assert (again.value, again.recorded) == (value, False)


def test_a_json_null_and_none_are_both_values(queue: Queue, topic: str) -> None:
    held = queue.leased(topic)
    for name, value in (("none", None), ("null", Jsonb(None))):
        queue.verb("record_step", held, name=name, value=value)
        assert queue.verb("record_step", held, name=name, value=Jsonb(1)).recorded is False
    assert [row.value for row in steps(queue, held)] == [None, None]


def test_steps_are_numbered_in_their_order(queue: Queue, topic: str) -> None:
    held = queue.leased(topic)
    names = ["z", "a", "m", "B", "é" * 200]
    assert [record(queue, held, name, name).seq for name in names] == [1, 2, 3, 4, 5]
    assert [row.name for row in steps(queue, held)] == names
    other = queue.leased(topic)
    assert record(queue, other, "z", 1).seq == 1
    assert [row.value for row in steps(queue, other)] == [1]


def test_a_new_owner_finds_what_the_old_one_recorded(fresh: Queue, clock: Clock) -> None:
    held = fresh.leased("t", lease="1 s")
    record(fresh, held, "one", "by the first")
    clock.advance("1 s")
    fresh.one("sweep")
    ghost = {**states.of(held).arguments(), "name": "two", "value": Jsonb("by the ghost")}
    assert fresh.refused("record_step", **ghost).sqlstate == "SK006"
    again = fresh.reserve("t", "w2")
    assert fresh.refused("record_step", **ghost).sqlstate == "SK003"
    assert record(fresh, again, "one", "by the second").value == "by the first"
    assert record(fresh, again, "two", "by the second").recorded
    assert [(row.value, row.token) for row in steps(fresh, again)] == [
        ("by the first", held.token), ("by the second", again.token),
    ]  # fmt: skip


def test_recording_leaves_the_task_as_it_was(queue: Queue, topic: str) -> None:
    held = queue.leased(topic)
    before = queue.row(held.task_id)
    record(queue, held, "s", 1)
    assert queue.row(held.task_id) == before


@pytest.mark.parametrize("state", WRONG_STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("name", ["known", "new"])
def test_without_the_lease_nothing_is_recorded_nor_given_back(
    queue: Queue, state: states.State, name: str
) -> None:
    claim = state(queue)
    before = queue.image(claim.task_id)
    found = queue.refused("record_step", **claim.arguments(), name=name, value=Jsonb(1))
    assert found.sqlstate == WRONG_STATES[state]
    assert queue.image(claim.task_id) == before
    assert queue.call("list_steps", task_id=claim.task_id) == []


def test_what_rolls_back_was_not_recorded(fresh: Queue) -> None:
    held = fresh.leased("t")
    with fresh.connection.transaction(force_rollback=True):
        record(fresh, held, "s", 1)
    assert record(fresh, held, "s", 2).value == 2


def test_a_step_is_recorded_with_the_work_of_the_same_transaction(fresh: Queue) -> None:
    fresh.execute("create table public.work (n int)")
    held = fresh.leased("t")
    with fresh.connection.transaction():
        fresh.execute("insert into public.work values (1)")
        record(fresh, held, "s", 1)
    assert fresh.value("select count(*) from public.work") == 1
    assert record(fresh, held, "s", 2).recorded is False


def test_ten_thousand_steps_are_recorded_and_one_more_is_refused(fresh: Queue) -> None:
    held = fresh.leased("t")
    record(fresh, held, "first", 1)
    fresh.execute(
        "insert into sokka.task_steps (task_id, created_at, recorded_at, seq, token, bytes_so_far,"
        " name) select task_id, created_at, created_at, n, token, 1, n::text"
        " from sokka.tasks, generate_series(2, 9999) n"
    )
    assert record(fresh, held, "the last", 2).seq == 10_000
    arguments = states.of(held).arguments()
    found = fresh.refused("record_step", **arguments, name="one more", value=None)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "name")
    assert record(fresh, held, "first", 3).value == 1
    assert len(steps(fresh, held)) == 10_000


def test_all_steps_of_a_task_have_a_bound_in_bytes(fresh: Queue) -> None:
    held, million = fresh.leased("t"), "x" * 999_998
    for number in range(67):
        record(fresh, held, str(number), million)
    arguments = states.of(held).arguments()
    found = fresh.refused("record_step", **arguments, name="more", value=Jsonb(million))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "value")
    # 67,108,864 bytes in all; this is the last that fits.
    rest = 67_108_864 - 67 * 1_000_000 - 2
    found = fresh.refused("record_step", **arguments, name="more", value=Jsonb("x" * (rest + 1)))
    assert found.sqlstate == "22023"
    assert record(fresh, held, "more", "x" * rest).recorded
    assert record(fresh, held, "nothing", None).recorded


def test_steps_outlive_their_task_as_long_as_it_is_kept(fresh: Queue, clock: Clock) -> None:
    held = fresh.leased("t", lease="1 year")
    record(fresh, held, "s", 1)
    fresh.verb("terminate_task", held)
    waiting = fresh.leased("t", lease="1 year")
    record(fresh, waiting, "s", 2)
    assert len(steps(fresh, held)) == 1
    clock.advance("60 days")
    fresh.one("sweep")
    while fresh.call("apply_retention"):
        pass
    # The live one keeps the week's partition; then that goes too.
    assert [row.value for row in steps(fresh, waiting)] == [2]
    fresh.verb("terminate_task", waiting)
    clock.advance("60 days")
    fresh.one("sweep")
    while fresh.call("apply_retention"):
        pass
    assert (steps(fresh, held), steps(fresh, waiting)) == ([], [])
    assert fresh.value("select count(*) from sokka.task_steps") == 0


def test_a_resubmitted_task_has_no_steps_yet(fresh: Queue) -> None:
    held = fresh.leased("t")
    record(fresh, held, "s", 1)
    fresh.verb("terminate_task", held)
    again = lease(fresh, fresh.one("resubmit_task", task_id=held.task_id).task_id)
    assert record(fresh, again, "s", 2).value == 2
    succeed(fresh, fresh.create("t"))


def test_an_unknown_task_has_no_steps(queue: Queue) -> None:
    assert queue.call("list_steps", task_id=uuid4()) == []


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_nothing_is_recorded_under_an_old_snapshot(
    fresh: Queue, another: Another, isolation: str
) -> None:
    held = fresh.leased("t")
    caller = another(autocommit=False)
    caller.execute(f"set transaction isolation level {isolation}")
    found = caller.refused("record_step", **states.of(held).arguments(), name="s", value=None)
    assert found.sqlstate == "25001"
    assert caller.call("list_steps", task_id=held.task_id) == []

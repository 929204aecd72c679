"""create_tasks: all or none, the bad one by its position."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Queue, Row

GOOD: dict[str, Any] = {"topic": "fine"}
# A spec, and the argument that its refusal names.
BAD: list[tuple[Any, str]] = [
    (None, "spec"), (7, "spec"), ("x", "spec"), ([], "spec"), ({}, "spec"),
    ({"topic": None}, "spec"), ({"topic": 7}, "spec"), ({"topic": "t", "colour": 1}, "spec"),
    ({"topic": "t", "p_data": 1}, "spec"), ({"topic": "t", "kind": 7}, "spec"),
    ({"topic": "t", "unique_key": 7}, "spec"), ({"topic": "t", "task_id": "no"}, "spec"),
    ({"topic": "t", "task_group_id": 7}, "spec"), ({"topic": "t", "priority": "high"}, "spec"),
    ({"topic": "t", "priority": 1.5}, "spec"), ({"topic": "t", "max_attempts": 1e10}, "spec"),
    ({"topic": ""}, "topic"), ({"topic": "x" * 201}, "topic"), ({"topic": "a\nb"}, "topic"),
    ({"topic": "t", "kind": " "}, "kind"), ({"topic": "t", "sub_topic": "\t"}, "sub_topic"),
    ({"topic": "t", "priority": 10}, "priority"), ({"topic": "t", "priority": -1}, "priority"),
    ({"topic": "t", "max_attempts": -1}, "max_attempts"),
    ({"topic": "t", "max_losses": -1}, "max_losses"),
    ({"topic": "t", "run_at": "2030-01-01T00:00:00"}, "run_at"),
    ({"topic": "t", "run_at": "2030-01-01"}, "run_at"), ({"topic": "t", "run_at": ""}, "run_at"),
    ({"topic": "t", "run_at": "tomorrow"}, "run_at"), ({"topic": "t", "run_at": "now"}, "run_at"),
    ({"topic": "t", "run_at": "infinity"}, "run_at"), ({"topic": "t", "run_at": 1}, "run_at"),
    ({"topic": "t", "run_at": "2030-01-01 00:00 Europe/Berlin"}, "run_at"),
    ({"topic": "t", "run_at": "2030-13-01T00:00:00Z"}, "run_at"),
    ({"topic": "t", "run_at": "9999-01-01T00:00:00Z"}, "run_at"),
    ({"topic": "t", "run_at": "1969-12-31T23:59:59Z"}, "run_at"),
    ({"topic": "t", "expires_at": "2030-01-01T00:00:00"}, "expires_at"),
    ({"topic": "t", "expires_at": "9999-01-01T00:00:00+00:00"}, "expires_at"),
    ({"topic": "t", "timeout": 0}, "timeout"), ({"topic": "t", "timeout": -1}, "timeout"),
    ({"topic": "t", "timeout": "soon"}, "timeout"), ({"topic": "t", "timeout": True}, "timeout"),
    ({"topic": "t", "timeout": 1e300}, "timeout"), ({"topic": "t", "timeout": [1]}, "timeout"),
    ({"topic": "t", "unique_key": ""}, "unique_key"),
    ({"topic": "t", "unique_key": "k" * 501}, "unique_key"),
    ({"topic": "t", "on_conflict": "no"}, "on_conflict"),
    ({"topic": "t", "headers": []}, "headers"), ({"topic": "t", "headers": {"a": 1}}, "headers"),
    ({"topic": "t", "retry": 3}, "retry"), ({"topic": "t", "retry": {"tries": 3}}, "retry"),
    ({"topic": "t", "retry": {"initial": -1}}, "retry.initial"),
    ({"topic": "t", "retry": {"multiplier": 0.5}}, "retry.multiplier"),
    ({"topic": "t", "data": "x" * 1048575}, "data"),
]  # fmt: skip


def label(value: object) -> str:
    return str(value)[:40]


def create(queue: Queue, specs: list[Any]) -> list[Row]:
    return queue.call("create_tasks", specs=Jsonb(specs))


@pytest.mark.parametrize("position", [1, 3])
@pytest.mark.parametrize(("bad", "argument"), BAD, ids=label)
def test_one_bad_spec_refuses_the_whole_call_and_is_named_by_its_position(
    queue: Queue, topic: str, bad: Any, argument: str, position: int
) -> None:
    specs: list[Any] = [{"topic": topic}, {"topic": topic}]
    specs.insert(position - 1, bad)
    found = queue.refused("create_tasks", specs=Jsonb(specs))
    assert found.sqlstate == "22023", found
    assert (found.detail["argument"], found.detail["position"]) == (argument, position), found
    assert queue.value("select count(*) from sokka.all_tasks where topic = %s", topic) == 0


@pytest.mark.parametrize("specs", [None, Jsonb(None), Jsonb({}), Jsonb("x"), Jsonb(1)], ids=str)
def test_specs_must_be_an_array(queue: Queue, specs: Any) -> None:
    found = queue.refused("create_tasks", specs=specs)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "specs")


def test_ten_thousand_and_one_are_too_many(queue: Queue) -> None:
    found = queue.refused("create_tasks", specs=Jsonb([GOOD] * 10001))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "specs")


def test_no_specs_make_no_tasks(queue: Queue) -> None:
    assert create(queue, []) == []


def test_thousands_are_made_in_one_call_in_their_order(queue: Queue, topic: str) -> None:
    made = create(queue, [{"topic": topic, "data": n} for n in range(10_000)])
    assert [row.ord for row in made] == list(range(1, 10_001))
    assert all(row.created for row in made)
    assert len({row.task_id for row in made}) == 10_000
    assert all(row.task_id.version == 7 for row in made)
    got = queue.call("reserve_tasks", topics=[topic], pid="w1", max_tasks=3)
    assert [lease.data for lease in got] == [0, 1, 2]


def test_a_spec_of_a_bulk_call_makes_what_create_task_makes(queue: Queue, topic: str) -> None:
    at = datetime(2100, 1, 2, 3, 4, 5, tzinfo=UTC)
    options: dict[str, Any] = {
        "topic": topic, "data": {"a": 1}, "kind": "k", "sub_topic": "s",
        "task_group_id": uuid4(), "priority": 2, "max_attempts": 3, "run_at": at,
        "expires_at": at + timedelta(days=1), "timeout": timedelta(seconds=90),
        "retry": {"initial": 3, "max": 9, "multiplier": 3, "jitter": 0.5},
        "unique_key": "one", "headers": {"h": "v"}, "max_losses": 4, "on_conflict": "error",
    }  # fmt: skip
    single = queue.one("create_task", **options)
    spec = options | {
        "task_group_id": str(options["task_group_id"]), "run_at": at.isoformat(),
        "expires_at": "2100-01-03T03:04:05Z", "timeout": "PT1M30S", "unique_key": "other",
    }  # fmt: skip
    (made,) = create(queue, [spec])
    own = {"task_id", "created_at", "updated_at", "unique_key", "created"}
    assert {k: v for k, v in vars(queue.row(made.task_id)).items() if k not in own} == {
        k: v for k, v in vars(single).items() if k not in own
    }


def test_json_null_is_as_good_as_no_key(queue: Queue, topic: str) -> None:
    names = ("data", "kind", "sub_topic", "task_id", "task_group_id", "priority", "run_at",
             "max_attempts", "retry", "timeout", "expires_at", "unique_key", "headers",
             "max_losses", "on_conflict")  # fmt: skip
    made = create(queue, [{"topic": topic} | dict.fromkeys(names), {"topic": topic}])
    own = {"task_id", "task_group_id"}
    given, plain = (vars(queue.row(row.task_id)) for row in made)
    assert {k: v for k, v in given.items() if k not in own} == {
        k: v for k, v in plain.items() if k not in own
    }


def test_a_retry_policy_may_carry_the_number_of_attempts(queue: Queue, topic: str) -> None:
    specs = [{"topic": topic, "retry": {"max_attempts": 4}},
             {"topic": topic, "retry": {"max_attempts": 4}, "max_attempts": 2}]  # fmt: skip
    assert [queue.row(row.task_id).max_attempts for row in create(queue, specs)] == [4, 2]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
def test_an_instant_means_the_same_in_every_session(
    queue: Queue, topic: str, zone: str
) -> None:
    with queue.connection.transaction():
        queue.execute(f"set local timezone = '{zone}'")
        (made,) = create(queue, [{"topic": topic, "run_at": "2100-03-08T02:30:00-05:00"}])
    assert queue.row(made.task_id).run_at == datetime(2100, 3, 8, 7, 30, tzinfo=UTC)


def test_each_is_told_whether_it_was_new_or_found(queue: Queue, topic: str) -> None:
    old = queue.create(topic, unique_key="b")
    made = create(
        queue,
        [{"topic": topic, "unique_key": key} for key in ("a", "b", "c", "a")] + [{"topic": topic}],
    )
    assert [row.ord for row in made] == [1, 2, 3, 4, 5]
    assert [row.created for row in made] == [True, False, True, False, True]
    assert made[1].task_id == old
    assert made[3].task_id == made[0].task_id


def test_a_taken_key_refuses_the_call_where_a_spec_asks_for_that(queue: Queue, topic: str) -> None:
    old = queue.create(topic, unique_key="b")
    specs = [{"topic": topic},
             {"topic": topic, "unique_key": "b", "on_conflict": "error"}]  # fmt: skip
    found = queue.refused("create_tasks", specs=Jsonb(specs))
    assert (found.sqlstate, found.detail["position"]) == ("SK012", 2)
    assert found.detail["task_id"] == str(old)
    assert queue.value("select count(*) from sokka.tasks where topic = %s", topic) == 1


@pytest.mark.parametrize("holder", ["live", "finished", "made here", "in the batch"])
def test_an_id_in_use_refuses_the_call_and_is_named_by_its_position(
    queue: Queue, topic: str, holder: str
) -> None:
    task_id: UUID = uuid4()
    if holder == "live":
        queue.create("elsewhere", task_id=task_id)
    elif holder == "finished":
        task_id = states.terminated(queue).task_id
    elif holder == "made here":
        task_id = queue.create("elsewhere")
    spec = {"topic": topic, "task_id": str(task_id)}
    first = spec if holder == "in the batch" else {"topic": topic, "task_id": str(uuid4())}
    found = queue.refused("create_tasks", specs=Jsonb([first, spec]))
    assert (found.sqlstate, found.detail["position"]) == ("SK008", 2)
    assert found.detail["task_id"] == str(task_id)
    assert queue.value("select count(*) from sokka.all_tasks where topic = %s", topic) == 0
    # Nothing of the refused call stays: its other id is free.
    if first is not spec:
        assert create(queue, [first])[0].created


def test_given_ids_are_kept(queue: Queue, topic: str) -> None:
    ids = sorted((uuid4() for _ in range(50)), key=hash)
    made = create(queue, [{"topic": topic, "task_id": str(task_id)} for task_id in ids])
    assert [row.task_id for row in made] == ids

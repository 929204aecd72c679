"""One suite for every kind of caller: who may do what with a task, and what
each other one is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.contract.callers import Caller, leased, new_task, refusal
from tests.servers import Server

ON_A_LEASE: dict[str, dict[str, Any]] = {
    "extend_lease": {},
    "renew_lease": {"duration": 60},
    "release_lease": {},
    "terminate": {"result": {"ok": True}},
    "snooze": {"delay": 60},
    "fail": {"error": {"code": "boom", "message": "it broke"}},
    "retry": {"error": {"code": "boom", "message": "it broke"}, "delay": 0},
    "report_progress": {"progress": {"percent": 50}},
    "save_checkpoint": {"checkpoint": {"page": 3}},
    "assert_lease": {},
    "wait_for_task": {},
    "record_step": {"name": "a step", "value": [1]},
    "append_stream": {"items": ["a", {"b": 1}]},
    "fan_out": {"topic": "joined"},
}
LEAVES = {
    "extend_lease": "running",
    "renew_lease": "running",
    "release_lease": "starting",
    "terminate": "terminated",
    "snooze": "snoozed",
    "fail": "failed",
    "retry": "failed",
    "report_progress": "running",
    "save_checkpoint": "running",
    "assert_lease": "running",
    "wait_for_task": "snoozed",
    "record_step": "running",
    "append_stream": "running",
    "fan_out": "running",
}
BESIDE_THE_TASK = {"assert_lease", "record_step", "append_stream", "fan_out"}
Row = Callable[[UUID], dict[str, Any]]


@pytest.fixture(scope="module")
def db(server: Server) -> Iterator[str]:
    """One database for the module: each test keeps to topics of its own."""
    name = server.create(server.template())
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def topic() -> str:
    return f"topic {uuid4()}"


def options_of(caller: Caller, verb: str, task_id: UUID) -> dict[str, Any]:
    if verb == "wait_for_task":
        return {"waits_for": new_task(caller, "children", parent_task_id=task_id)}
    return ON_A_LEASE[verb]


def on_a_lease(caller: Caller, verb: str, *proof: Any, **options: Any) -> Any:
    if verb == "fan_out":
        return caller(verb, [{"topic": "children"}], parent=proof, **options)
    return caller(verb, *proof, **options)


@pytest.mark.parametrize("verb", ON_A_LEASE)
def test_only_the_owner_with_the_newest_live_token_may_use_a_verb(
    caller: Caller, topic: str, row: Row, expired: Callable[[UUID], None], verb: str
) -> None:
    def call(*proof: Any, **options: Any) -> Any:
        return on_a_lease(caller, verb, *proof, **options)

    waiting = new_task(caller, f"{topic} waiting")
    options = options_of(caller, verb, waiting)
    assert refusal(call, waiting, "w1", 1, **options) == "SK006", "not running"

    task = leased(caller, topic)
    options = options_of(caller, verb, task.task_id)
    before = row(task.task_id)
    for who, proof, expected in (
        ("an unknown id", (uuid4(), "w1", task.token), "SK001"),
        ("another pid", (task.task_id, "w2", task.token), "SK003"),
        ("another pid with an old token", (task.task_id, "w2", task.token - 1), "SK003"),
        ("an old token", (task.task_id, "w1", task.token - 1), "SK005"),
        ("a token from the future", (task.task_id, "w1", task.token + 1), "SK005"),
        ("a token below zero", (task.task_id, "w1", -1), "SK005"),
        ("no pid", (task.task_id, None, task.token), "22023"),
        ("no token", (task.task_id, "w1", None), "22023"),
        ("no id", (None, "w1", task.token), "22023"),
    ):
        assert refusal(call, *proof, **options) == expected, who
        assert row(task.task_id) == before, f"{who} changed the task"

    call(task.task_id, "w1", task.token, **options)
    assert row(task.task_id)["status"] == LEAVES[verb]
    if verb not in BESIDE_THE_TASK:
        assert row(task.task_id)["record_ver"] > before["record_ver"]

    done = leased(caller, f"{topic} done")
    options = options_of(caller, verb, done.task_id)
    caller("terminate", done.task_id, "w1", done.token)
    assert refusal(call, done.task_id, "w1", done.token, **options) == "SK002"

    short = leased(caller, f"{topic} short", lease=0.001)
    options = options_of(caller, verb, short.task_id)
    expired(short.task_id)
    before = row(short.task_id)
    assert refusal(call, short.task_id, "w1", short.token, **options) == "SK004"
    assert row(short.task_id) == before, "an expired lease changed the task"


def test_a_refusal_tells_what_was_found_and_what_was_expected(
    caller: Caller, topic: str, row: Row
) -> None:
    task = leased(caller, topic)
    try:
        caller("extend_lease", task.task_id, "w2", task.token)
    except psycopg.Error as error:
        import json

        detail = json.loads(error.diag.message_detail or "")
    except Exception as error:
        detail = error.detail  # type: ignore[attr-defined]
    found = row(task.task_id)
    assert detail["pid"] == "w1"
    assert detail["token"] == task.token
    assert detail["status"] == "running"
    assert detail["record_ver"] == found["record_ver"]
    assert detail["expected"] == {"pid": "w2", "token": task.token}


def test_a_task_is_created_once_per_id_even_after_it_finished(caller: Caller, topic: str) -> None:
    task_id = uuid4()
    new_task(caller, topic, task_id=task_id)
    assert refusal(caller, "create_task", topic, {}, task_id=task_id) == "SK008"
    task = caller("reserve_task", topic, "w1", 60)
    caller("terminate", task_id, "w1", task.token)
    assert refusal(caller, "create_task", topic, {}, task_id=task_id) == "SK008"


def test_a_taken_unique_key_gives_its_task_or_is_an_error(caller: Caller, topic: str) -> None:
    first = caller("create_task", topic, {"n": 1}, unique_key="k")
    again = caller("create_task", topic, {"n": 2}, unique_key="k")
    assert (first.created, again.created) == (True, False)
    assert again.task_id == first.task_id
    state = refusal(caller, "create_task", topic, {}, unique_key="k", on_conflict="error")
    assert state == "SK012"
    assert caller("create_task", f"{topic} other", {}, unique_key="k").created


def test_reserving_gives_each_task_to_one_owner_in_order_of_priority(
    caller: Caller, topic: str
) -> None:
    late = new_task(caller, topic, priority=7)
    first = new_task(caller, topic, priority=0)
    middle = new_task(caller, topic)
    order = [caller("reserve_task", topic, f"w{i}", 60).task_id for i in range(3)]
    assert order == [first, middle, late]
    assert caller("reserve_task", topic, "w9", 60) is None
    assert caller("reserve_tasks", [topic, f"{topic} u"], "w9", 5, 60) == []


def test_tokens_rise_with_every_grant_and_the_attempt_is_given_back_by_release(
    caller: Caller,
    topic: str,
) -> None:
    new_task(caller, topic)
    tokens = []
    for _ in range(3):
        task = caller("reserve_task", topic, "w1", 60)
        assert task.attempt == 1
        tokens.append(task.token)
        caller("release_lease", task.task_id, "w1", task.token)
    assert tokens == sorted(set(tokens))


def test_acquiring_by_id_respects_other_owners_and_due_times(
    caller: Caller, topic: str, row: Row
) -> None:
    task_id = new_task(caller, topic)
    first = caller("acquire_lease", task_id, "w1", 60)
    assert refusal(caller, "acquire_lease", task_id, "w2", 60) == "SK009"
    second = caller("acquire_lease", task_id, "w1", 60)
    assert second.token > first.token
    assert refusal(caller, "extend_lease", task_id, "w1", first.token) == "SK005"
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert (
        refusal(caller, "acquire_lease", new_task(caller, topic, run_at=tomorrow), "w1", 60)
        == "SK010"
    )
    assert refusal(caller, "acquire_lease", uuid4(), "w1", 60) == "SK001"
    caller("terminate", task_id, "w1", second.token)
    assert refusal(caller, "acquire_lease", task_id, "w1", 60) == "SK002"


def test_extend_never_shortens_and_renew_may(caller: Caller, topic: str, row: Row) -> None:
    task = leased(caller, topic)
    end = row(task.task_id)["lease_expires_at"]
    caller("extend_lease", task.task_id, "w1", task.token, duration=1)
    assert row(task.task_id)["lease_expires_at"] >= end
    caller("renew_lease", task.task_id, "w1", task.token, duration=1)
    assert row(task.task_id)["lease_expires_at"] < end


def test_revoking_needs_the_version_last_read(caller: Caller, topic: str, row: Row) -> None:
    task = leased(caller, topic)
    version = row(task.task_id)["record_ver"]
    caller("extend_lease", task.task_id, "w1", task.token)
    assert refusal(caller, "revoke_lease", task.task_id, version) == "SK007"
    caller("revoke_lease", task.task_id, row(task.task_id)["record_ver"])
    after = row(task.task_id)
    assert (after["status"], after["pid"], after["losses"]) == ("starting", None, 0)
    assert refusal(caller, "terminate", task.task_id, "w1", task.token) == "SK006"
    assert refusal(caller, "revoke_lease", task.task_id, after["record_ver"]) == "SK006"
    assert refusal(caller, "revoke_lease", uuid4(), 1) == "SK001"


def test_cancelling_is_at_once_for_the_waiting_and_a_request_for_the_running(
    caller: Caller, topic: str, row: Row
) -> None:
    waiting = new_task(caller, f"{topic} waiting")
    assert caller("cancel", waiting, "why").outcome == "cancelled"
    assert row(waiting)["error"]["code"] == "cancelled"
    assert caller("cancel", waiting, "why").outcome == "already_done"
    task = leased(caller, topic)
    assert caller("cancel", task.task_id, "why").outcome == "requested"
    assert caller("cancel", task.task_id, "why").outcome == "already_requested"
    assert caller("extend_lease", task.task_id, "w1", task.token).cancel_requested is True
    caller("release_lease", task.task_id, "w1", task.token)
    assert (row(task.task_id)["status"], row(task.task_id)["error"]["code"]) == (
        "failed",
        "cancelled",
    )
    assert refusal(caller, "cancel", uuid4(), None) == "SK001"


def test_a_finished_task_can_be_resubmitted_as_a_new_one(
    caller: Caller, topic: str, row: Row
) -> None:
    task = leased(caller, topic)
    assert refusal(caller, "resubmit", task.task_id, None) == "SK006"
    caller("fail", task.task_id, "w1", task.token, error={"code": "x", "message": "y"})
    again = caller("resubmit", task.task_id, "fixed").task_id
    assert again != task.task_id
    assert row(again)["resubmit_of"] == task.task_id
    assert row(again)["data"] == {"n": 1}


def test_a_paused_topic_gives_nothing_until_it_is_resumed(caller: Caller, topic: str) -> None:
    task_id = new_task(caller, topic)
    assert caller("pause_topic", topic, "maintenance").paused_at is not None
    assert caller("reserve_task", topic, "w1", 60) is None
    assert caller("resume_topic", topic).paused_at is None
    assert caller("reserve_task", topic, "w1", 60).task_id == task_id


def test_a_fence_only_lets_tokens_rise(caller: Caller, topic: str) -> None:
    caller("advance_fence", f"{topic}/file", 10)
    caller("advance_fence", f"{topic}/file", 10)
    assert refusal(caller, "advance_fence", f"{topic}/file", 9) == "SK011"
    caller("advance_fence", f"{topic}/other", 1)


def test_a_checkpoint_is_handed_to_the_next_owner(caller: Caller, topic: str) -> None:
    task = leased(caller, topic)
    first = caller("save_checkpoint", task.task_id, "w1", task.token, checkpoint={"page": 1})
    second = caller("save_checkpoint", task.task_id, "w1", task.token, checkpoint={"page": 2})
    assert second.seq > first.seq
    caller("release_lease", task.task_id, "w1", task.token)
    assert caller("reserve_task", topic, "w2", 60).checkpoint == {"page": 2}


def test_snoozing_for_no_time_makes_a_task_reservable_at_once(caller: Caller, topic: str) -> None:
    task = leased(caller, topic)
    caller("snooze", task.task_id, "w1", task.token, delay=0)
    assert caller("reserve_task", topic, "w2", 60).task_id == task.task_id


def test_one_sweep_wakes_what_is_due_and_takes_back_what_expired(
    caller: Caller, topic: str, row: Row, expired: Callable[[UUID], None]
) -> None:
    task = leased(caller, topic, lease=0.001)
    expired(task.task_id)
    report = caller("sweep", 100)
    assert report.taken_back >= 1
    assert row(task.task_id)["status"] == "starting"


def test_reading_unknown_tasks_gives_nothing(caller: Caller) -> None:
    assert caller("task", uuid4()) is None
    assert caller("tasks", uuid4()) == []


def test_a_group_is_listed_whole_and_oldest_first(caller: Caller, topic: str) -> None:
    group = uuid4()
    made = [new_task(caller, topic, task_group_id=group) for _ in range(5)]
    assert [task.task_id for task in caller("tasks", group)] == made


def test_null_where_something_is_needed_is_refused(caller: Caller, topic: str) -> None:
    for verb, arguments in (
        ("create_task", (None, {})),
        ("reserve_task", (None, "w1", 60)),
        ("reserve_task", (topic, None, 60)),
        ("acquire_lease", (None, "w1", 60)),
        ("advance_fence", (None, 1)),
        ("advance_fence", (topic, None)),
        ("revoke_lease", (uuid4(), None)),
    ):
        assert refusal(caller, verb, *arguments) == "22023", (verb, arguments)


@pytest.mark.parametrize("lease", [0, -1, 366 * 86_400, 0.0001])
def test_a_lease_out_of_bounds_is_refused(caller: Caller, topic: str, lease: float) -> None:
    new_task(caller, topic)
    assert refusal(caller, "reserve_task", topic, "w1", lease) == "22023"
    task = caller("reserve_task", topic, "w1", None)
    assert refusal(caller, "extend_lease", task.task_id, "w1", task.token, duration=lease) == (
        "22023"
    )


def test_a_revoke_meets_an_open_fence_without_waiting(
    caller: Caller, topic: str, row: Row, connect: Callable[..., psycopg.Connection]
) -> None:
    task = leased(caller, topic)
    with connect(autocommit=False) as fence:
        fence.execute("select sokka.assert_lease(%s, %s, %s)", (task.task_id, "w1", task.token))
        version = row(task.task_id)["record_ver"]
        assert refusal(caller, "revoke_lease", task.task_id, version) == "55P03"
        caller("extend_lease", task.task_id, "w1", task.token)
    caller("revoke_lease", task.task_id, row(task.task_id)["record_ver"])

"""create_task: defaults, what it refuses, ids, unique keys, times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue

BAD_NAMES = ["", " ", "x" * 201, "a\nb", "a\x1bb", "\x7f"]
FAR = ["1969-12-31 23:59:59+00", "9999-01-01 00:00+00", "infinity", "-infinity"]
WRONG: dict[str, list[Any]] = {
    "topic": [None, *BAD_NAMES],
    "kind": BAD_NAMES,
    "sub_topic": BAD_NAMES,
    "priority": [-1, 10, 2147483647],
    "max_attempts": [-1],
    "max_losses": [-1],
    "run_at": FAR,
    "expires_at": FAR,
    "timeout": ["0", "-1 s", "999 microseconds", "1 year 1 s", "-1 month"],
    "unique_key": ["", "k" * 501, "é" * 251],
    "on_conflict": ["", "replace", "EXISTING"],
    "data": [Jsonb("x" * 1048575), Jsonb({"a": ["x" * 600000, "y" * 600000]})],
    "headers": [
        Jsonb([]), Jsonb("x"), Jsonb(None), {"a": 1}, {"a": None}, {"a": {"b": "c"}},
        {"a": "x" * 65536},
    ],
    "retry": [
        Jsonb([]), Jsonb("2"), Jsonb(None), {"attempts": 3}, {"initial": -1}, {"initial": "soon"},
        {"initial": "11 years"}, {"initial": True}, {"max": -1}, {"initial": 5, "max": 4},
        {"initial": 40, "max": 30}, {"multiplier": 0}, {"multiplier": 0.5}, {"multiplier": -1},
        {"multiplier": 1001}, {"multiplier": "2"}, {"jitter": -0.1}, {"jitter": 1.1},
        {"jitter": "no"}, {"max_attempts": "3"}, {"max_attempts": -1}, {"max_attempts": 2.5},
        {"max_attempts": 1e10},
    ],
}  # fmt: skip
POLICY = ("initial", "max", "multiplier", "jitter", "max_attempts")


@pytest.mark.parametrize("argument", WRONG)
def test_a_task_against_the_rules_is_refused_by_name_and_not_made(
    queue: Queue, topic: str, argument: str
) -> None:
    for value in WRONG[argument]:
        found = queue.refused("create_task", **({"topic": topic} | {argument: value}))
        assert found.sqlstate == "22023", (str(value)[:60], found)
        named = found.detail["argument"].removeprefix("retry.")
        # A field of a policy is told of by its own name.
        assert named == argument or named in POLICY, (str(value)[:60], found)
        assert argument == "retry" or named == argument
        assert found.detail["rule"]
    assert queue.value("select count(*) from sokka.all_tasks where topic = %s", topic) == 0


def test_only_the_topic_is_needed(queue: Queue, topic: str) -> None:
    made = queue.one("create_task", topic=topic)
    assert made.task_id.version == 7
    assert made.task_group_id == made.task_id
    assert (made.kind, made.sub_topic, made.priority) == ("default", "default", 5)
    assert (made.max_attempts, made.max_losses) == (1, 5)
    assert (made.attempt, made.failures, made.losses, made.record_ver) == (0, 0, 0, 1)
    assert (made.status, made.created) == ("starting", True)
    assert made.created_at == made.updated_at == made.run_at
    assert made.checkpoint_seq == 0
    left = ("data", "headers", "expires_at", "timeout", "retry", "unique_key", "pid", "token",
            "leased_at", "lease_expires_at", "cancel_requested_at", "cancel_reason", "progress",
            "checkpoint", "checkpoint_at", "result", "error", "resubmit_of",
            "finished_at")  # fmt: skip
    assert {name: getattr(made, name) for name in left} == dict.fromkeys(left)


def test_null_for_an_optional_argument_means_its_default(queue: Queue, topic: str) -> None:
    names = ("data", "kind", "sub_topic", "task_id", "task_group_id", "priority", "run_at",
             "max_attempts", "retry", "timeout", "expires_at", "unique_key", "headers",
             "max_losses", "on_conflict")  # fmt: skip
    given = vars(queue.one("create_task", topic=topic, **dict.fromkeys(names)))
    plain = vars(queue.one("create_task", topic=topic))
    own = {"task_id", "task_group_id", "created_at", "updated_at", "run_at"}
    assert {k: v for k, v in given.items() if k not in own} == {
        k: v for k, v in plain.items() if k not in own
    }


def test_what_is_given_is_kept_and_handed_to_the_worker(queue: Queue, topic: str) -> None:
    task_id, group = uuid4(), uuid4()
    expires = datetime(2100, 5, 1, 12, tzinfo=UTC)
    options = {
        "data": {"text": "\\u0000 and \\\\u0000", "n": [1, None, 1.5]}, "kind": "mail",
        "sub_topic": "night", "task_id": task_id, "task_group_id": group, "priority": 0,
        "max_attempts": 7, "timeout": timedelta(minutes=3), "expires_at": expires,
        "unique_key": "k", "headers": {"trace": "abc"}, "max_losses": 2,
    }  # fmt: skip
    made = queue.one("create_task", topic=topic, **options)
    assert {name: getattr(made, name) for name in options} == options
    lease = queue.reserve(topic)
    handed = ("data", "kind", "sub_topic", "task_id", "task_group_id", "priority",
              "max_attempts", "timeout", "headers", "expires_at")  # fmt: skip
    assert {name: getattr(lease, name) for name in handed} == {n: options[n] for n in handed}


@pytest.mark.parametrize("data", [None, False, 0, "", [], {}, "null"])
def test_json_values_that_look_like_nothing_are_payloads(
    queue: Queue, topic: str, data: Any
) -> None:
    made = queue.one("create_task", topic=topic, data=Jsonb(data))
    assert queue.value("select data from sokka.all_tasks where task_id = %s", made.task_id) == data
    assert queue.value(
        "select data is not null from sokka.all_tasks where task_id = %s", made.task_id
    )


def test_a_payload_of_the_largest_size_is_handed_over_whole(queue: Queue, topic: str) -> None:
    largest = "x" * (1048576 - 2)
    lease = queue.leased(topic, data=Jsonb(largest))
    assert lease.data == largest
    queue.verb("terminate_task", lease)
    assert queue.row(lease.task_id).data == largest


def test_payloads_of_every_size_survive_their_task(queue: Queue, topic: str) -> None:
    for size in (1, 1500, 1580, 1600, 1620, 3000, 20000):
        # Digits of pi-like variety, so that compression does not make it small.
        data = [str(uuid4()) for _ in range(size // 39 + 1)]
        lease = queue.leased(topic, data=Jsonb(data))
        assert lease.data == data
        queue.verb("release_lease", lease)
        queue.verb("terminate_task", queue.reserve(topic))
        assert queue.row(lease.task_id).data == data


def test_a_short_number_with_a_long_text_counts_by_its_text(queue: Queue, topic: str) -> None:
    # Nothing is selected: were it accepted, Python could not read it back.
    data = "[" + "1e131000," * 8 + "1e131000]"
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="data must have at most"):
        queue.execute("select from sokka.create_task(p_topic => %s, p_data => %s)", topic, data)


def test_durations_of_a_policy_are_seconds_or_iso_8601(queue: Queue, topic: str) -> None:
    made = queue.one(
        "create_task", topic=topic,
        retry={"max_attempts": 4, "initial": "PT2S", "max": "1 day", "jitter": 0},
    )  # fmt: skip
    assert made.max_attempts == 4
    assert made.retry == {"initial": 2, "max": 86400, "multiplier": 2, "jitter": 0}
    explicit = queue.one("create_task", topic=topic, retry={"max_attempts": 4}, max_attempts=2)
    assert explicit.max_attempts == 2


def test_a_timeout_in_months_is_taken_in_seconds(queue: Queue, topic: str) -> None:
    made = queue.one("create_task", topic=topic, timeout="1 month 1 day")
    assert made.timeout == timedelta(days=31)


def test_ids_made_here_sort_by_time(queue: Queue, topic: str) -> None:
    ids = [queue.create(topic) for _ in range(20)]
    assert all(task_id.version == 7 and task_id.variant == UUID(int=1 << 63).variant
               for task_id in ids)  # fmt: skip
    assert ids == sorted(ids)


@pytest.mark.parametrize("state", ["starting", "snoozed", "running", "expired"])
@pytest.mark.parametrize("given", [True, False], ids=["given", "made here"])
def test_an_id_in_use_is_refused(queue: Queue, topic: str, state: str, given: bool) -> None:
    """Also an id that was made here, and guessed or read by the caller."""
    task_id = queue.create(topic, **({"task_id": uuid4()} if given else {}))
    if state != "starting":
        lease = queue.reserve(topic, lease="1 ms" if state == "expired" else "1 hour")
    if state == "snoozed":
        queue.verb("snooze_task", lease, snooze="1 hour")
    before = queue.image(task_id)
    found = queue.refused("create_task", topic="elsewhere", task_id=task_id)
    row = queue.row(task_id)
    assert found.sqlstate == "SK008"
    assert found.detail["task_id"] == str(task_id)
    assert (found.detail["status"], found.detail["pid"]) == (row.status, row.pid)
    assert (found.detail["token"], found.detail["record_ver"]) == (row.token, row.record_ver)
    assert queue.image(task_id) == before


@pytest.mark.parametrize("end", [states.failed, states.terminated], ids=["failed", "terminated"])
def test_the_id_of_a_finished_task_is_refused(queue: Queue, end: states.State) -> None:
    task_id = end(queue).task_id
    before = queue.image(task_id)
    found = queue.refused("create_task", topic="elsewhere", task_id=task_id)
    assert (found.sqlstate, found.detail["status"]) == ("SK008", end.__name__)
    assert queue.image(task_id) == before


def test_a_refused_id_may_be_used_when_its_creation_rolled_back(queue: Queue, topic: str) -> None:
    task_id = uuid4()
    with queue.connection.transaction(force_rollback=True):
        queue.create(topic, task_id=task_id)
    assert queue.create(topic, task_id=task_id) == task_id


def test_a_taken_unique_key_gives_the_task_that_holds_it(queue: Queue, topic: str) -> None:
    holder = queue.one("create_task", topic=topic, unique_key="k", data={"n": 1})
    again = queue.one("create_task", topic=topic, unique_key="k", data={"n": 2})
    assert vars(again) == vars(holder) | {"created": False}
    elsewhere = queue.one("create_task", topic=topic + " too", unique_key="k")
    assert elsewhere.created


def test_a_given_id_is_free_again_where_the_unique_keys_holder_came_back(
    queue: Queue, topic: str
) -> None:
    queue.create(topic, unique_key="k")
    task_id = uuid4()
    assert queue.one("create_task", topic=topic, unique_key="k", task_id=task_id).created is False
    assert queue.create(topic, task_id=task_id) == task_id


def test_a_taken_unique_key_is_an_error_where_asked_for(queue: Queue, topic: str) -> None:
    lease = queue.leased(topic, unique_key="k")
    before = queue.image(lease.task_id)
    found = queue.refused("create_task", topic=topic, unique_key="k", on_conflict="error")
    assert found.sqlstate == "SK012"
    assert found.detail["task_id"] == str(lease.task_id)
    assert (found.detail["pid"], found.detail["token"]) == (lease.pid, lease.token)
    assert (found.detail["unique_key"], found.detail["topic"]) == ("k", topic)
    assert queue.image(lease.task_id) == before


def test_a_unique_key_is_free_when_its_task_has_finished(queue: Queue, topic: str) -> None:
    lease = queue.leased(topic, unique_key="k")
    queue.verb("terminate_task", lease)
    assert queue.one("create_task", topic=topic, unique_key="k", on_conflict="error").created


def test_a_task_never_clashes_with_its_own_unique_key(queue: Queue, topic: str) -> None:
    lease = queue.leased(topic, unique_key="k", max_attempts=10)
    for _ in range(5):
        queue.verb("retry_task", lease, error=states.ERROR, delay="0")
        lease = queue.reserve(topic)
    queue.verb("release_lease", lease)
    assert queue.row(lease.task_id).unique_key == "k"


@pytest.mark.parametrize(("one", "other"), [("A", "a"), ("e\u0301", "\u00e9"), ("k", "k ")])
def test_unique_keys_are_compared_byte_by_byte(
    queue: Queue, topic: str, one: str, other: str
) -> None:
    assert queue.one("create_task", topic=topic, unique_key=one).created
    assert queue.one("create_task", topic=topic, unique_key=other).created


def test_without_a_key_nothing_is_unique(queue: Queue, topic: str) -> None:
    assert queue.create(topic, data={"a": 1}) != queue.create(topic, data={"a": 1})


def test_the_longest_key_of_the_longest_topic_is_accepted(queue: Queue) -> None:
    key = "k" * 500
    assert queue.one("create_task", topic="é" * 200, unique_key=key).unique_key == key


def test_a_task_for_later_sleeps_until_then(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    at = now + timedelta(seconds=10)
    made = fresh.one("create_task", topic="t", run_at=at)
    assert (made.status, made.run_at) == ("snoozed", at)
    assert fresh.one("create_task", topic="past", run_at=now).status == "starting"
    clock.advance("9.999999 s")
    assert fresh.call("reserve_task", topic="t", pid="w1") == []
    # Exactly at that instant it is due; a lone caller wakes it.
    clock.advance("0.000001 s")
    clock.advance("0")
    fresh.call("sweep")
    assert fresh.reserve("t").task_id == made.task_id


def test_a_creation_counts_only_when_its_transaction_commits(
    queue: Queue, topic: str
) -> None:
    with queue.connection.transaction(force_rollback=True):
        task_id = queue.create(topic)
        assert queue.row(task_id).status == "starting"
    assert queue.call("get_task", task_id=task_id) == []
    assert queue.call("reserve_task", topic=topic, pid="w1") == []


def test_a_creation_undone_to_a_savepoint_leaves_the_rest(queue: Queue, topic: str) -> None:
    with queue.connection.transaction():
        kept = queue.create(topic)
        with queue.connection.transaction(force_rollback=True):
            queue.create(topic)
    assert queue.reserve(topic).task_id == kept
    assert queue.call("reserve_task", topic=topic, pid="w1") == []


@pytest.mark.parametrize("isolation", ["read uncommitted", "repeatable read", "serializable"])
def test_tasks_are_created_in_any_isolation_level(
    queue: Queue, topic: str, isolation: str
) -> None:
    with queue.connection.transaction():
        queue.execute(f"set transaction isolation level {isolation}")
        first = queue.one("create_task", topic=topic, unique_key="k")
        again = queue.one("create_task", topic=topic, unique_key="k")
        queue.call("create_tasks", specs=Jsonb([{"topic": topic}]))
    assert (again.task_id, again.created) == (first.task_id, False)
    assert queue.row(first.task_id).status == "starting"

"""Every wrong argument is refused by name, with its rule, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Queue
from tests.sql.states import ERROR

LONGEST = "é" * 200
BAD_NAMES = [None, "", " ", "   ", "x" * 201, "a\nb", "a\tb", "\x1b[0m", "a\x7f", "\x01"]
BAD_LEASES = [
    "0", "-1 s", "999 microseconds", "1 year 1 microsecond", "13 months", "-1 month",
    "367 days", "1 month -40 days", "1000 years",
]  # fmt: skip
BAD_DELAYS = ["-1 microsecond", "-1 month", "10 years 1 s", "121 months", "1 day -25 hours"]
BAD_KEYS = [None, "", "x" * 501, "é" * 251]
BAD_COUNTS = [None, 0, -1, 10001]
ID = uuid4()

Arguments = dict[str, Any]
WRONG: dict[str, dict[str, list[Any]]] = {
    "create_tasks_like": {
        "spec": [
            None, Jsonb(None), Jsonb([]), Jsonb("t"), *(
                Jsonb({"topic": "t", name: None})
                for name in ("data", "task_id", "unique_key", "parent_task_id")
            ),
        ],
        "data": [None, Jsonb(None), Jsonb({}), Jsonb("x"), Jsonb([1] * 10_001)],
    },
    "reserve_task": {"topic": BAD_NAMES, "pid": BAD_NAMES, "lease": BAD_LEASES},
    "reserve_tasks": {
        "topics": [None, [], [None], ["a", None], ["x" * 201], ["a\nb"], ["t"] * 1001, [["a"]]],
        "pid": BAD_NAMES,
        "max_tasks": BAD_COUNTS,
        "lease": BAD_LEASES,
        "limits": [[], [1, 1], [-1]],
    },
    "acquire_lease": {"task_id": [None], "pid": BAD_NAMES, "lease": BAD_LEASES},
    "extend_lease": {"lease": BAD_LEASES},
    "renew_lease": {"lease": BAD_LEASES},
    "extend_leases": {
        "pid": [None],
        "task_ids": [None, [[ID]], [ID] * 10001],
        "tokens": [None, [], [1, 2]],
        "lease": BAD_LEASES,
    },
    "terminate_task": {"result": [Jsonb("x" * 1048575)]},
    "terminate_tasks": {
        "pid": [None],
        "task_ids": [None, [[ID]], [ID] * 10001],
        "tokens": [None, [], [1, 2]],
        "results": [[], [Jsonb(1), Jsonb(2)], [Jsonb("x" * 1048575)]],
    },
    "settle_tasks": {
        "pid": [None],
        "task_ids": [None, [[ID]], [ID] * 10001],
        "tokens": [None, [], [1, 2]],
        "verbs": [None, [], ["terminate", "fail"], [None], ["complete"], ["TERMINATE"]],
    },
    "snooze_task": {"snooze": [None, *BAD_DELAYS]},
    "fail_task": {
        "error": [
            None, Jsonb(None), Jsonb("boom"), Jsonb([]), Jsonb(1), Jsonb({"code": 7}),
            Jsonb({"code": None}), Jsonb({"message": "x" * 65536}),
        ],
    },
    "retry_task": {
        "error": [None, Jsonb(None), Jsonb("boom"), Jsonb({"code": []})],
        "delay": BAD_DELAYS,
    },
    "report_progress": {"progress": [Jsonb("x" * 65535)]},
    "save_checkpoint": {"checkpoint": [Jsonb("x" * 1048575)]},
    "advance_fence": {"resource": [None, "", "x" * 1001, "é" * 501], "token": [None, -1]},
    "revoke_lease": {"task_id": [None], "record_ver": [None]},
    "cancel_task": {"task_id": [None], "reason": ["x" * 2001]},
    "resubmit_task": {"task_id": [None]},
    "pause_topic": {"topic": BAD_NAMES},
    "resume_topic": {"topic": BAD_NAMES},
    "set_topic": {
        "topic": BAD_NAMES,
        "lease": BAD_LEASES,
        "retention": ["59 minutes", "-1 day", "101 years"],
    },
    "get_task": {"task_id": [None]},
    "list_group": {"task_group_id": [None]},
    "list_tasks": {
        "limit": BAD_COUNTS,
        "cursor": ["", "zz", "00", "646f67", "3132", "3120" + "31" * 8],
    },
    "list_leased_tasks": {"topic": BAD_NAMES, "limit": BAD_COUNTS, "cursor": ["", "nothing"]},
    "sweep": {"max_tasks": BAD_COUNTS},
    "apply_retention": {"max_rows": [None, 0, -1, 100001]},
    "look_around": {
        "topics": [None, [], [None], ["a\nb"]], "within": [None, "0", "-1 s", "2 years"],
    },
    "look_for_work": {
        "topics": [None, [], [None], ["a\nb"]], "within": [None, "0", "-1 s", "2 years"],
    },
    "mark_idle": {
        "topics": [None, [], [None], ["a\nb"]],
        "pid": BAD_NAMES,
        "for": [None, "0", "-1 s", "2 years"],
    },
    "try_lock": {"key": BAD_KEYS, "owner": BAD_NAMES, "ttl": [None, *BAD_LEASES]},
    "renew_lock": {
        "key": BAD_KEYS, "owner": BAD_NAMES, "token": [None], "ttl": [None, *BAD_LEASES],
    },
    "release_lock": {"key": BAD_KEYS, "owner": BAD_NAMES, "token": [None]},
    "assert_lock": {"key": BAD_KEYS, "owner": BAD_NAMES, "token": [None]},
    "put_schedule": {
        "name": BAD_NAMES,
        "spec": [None, Jsonb(None), Jsonb([]), Jsonb("daily"), Jsonb({"cron": "* * * * *"})],
    },
    "get_schedule": {"name": [None]},
    "list_schedules": {
        "limit": BAD_COUNTS,
        "filters": [Jsonb([]), Jsonb({"topic": "t"}), Jsonb({"source": ["a"]})],
    },
    "pause_schedule": {"name": [None]},
    "resume_schedule": {"name": [None]},
    "trigger_schedule": {"name": [None]},
    "delete_schedule": {"name": [None], "reason": ["x" * 2001]},
    "due_schedules": {"limit": BAD_COUNTS},
    "fire_schedules": {
        "fires": [
            None, Jsonb(None), Jsonb({}), Jsonb([1]), Jsonb([{"schedule_id": "x"}]),
            Jsonb([{"due_at": "2024-01-01 08:00"}]), Jsonb([{"due_at": "now"}]),
            Jsonb([{"ticks": "2024-01-01T08:00:00Z"}]),
            Jsonb([{"next_at": "9999-01-01T00:00:00Z"}]), Jsonb([{"generation": "first"}]),
            Jsonb([{"busy": "maybe"}]), Jsonb([{}] * 10_001),
        ],
    },
    "fan_out": {
        "specs": [None, Jsonb(None), Jsonb({}), Jsonb("x"), Jsonb(1)],
        "policy": [None, "", "most", "ALL"],
        "needed": [1, 0, -1],
        "max_running": [0, -1],
        "deadline": BAD_DELAYS,
        "topic": BAD_NAMES[1:],
        "kind": BAD_NAMES[1:],
        "data": [Jsonb("x" * 1048575)],
        "sub_topic": BAD_NAMES[1:],
        "priority": [-1, 10],
        "retry": [Jsonb(1), Jsonb({"tries": 1})],
        "timeout": ["0", "-1 s", "2 years"],
        "headers": [Jsonb([]), Jsonb({"a": 1})],
        "max_attempts": [-1],
        "parent_task_id": [None],
    },
    "get_join": {"task_id": [None]},
    "join_results": {"task_id": [None], "after": [None], "limit": BAD_COUNTS},
    "task_tree": {"task_id": [None], "max_rows": BAD_COUNTS, "max_children": BAD_COUNTS},
    "wait_for_task": {"waits_for": [None]},
    "record_step": {"name": BAD_NAMES, "value": [Jsonb("x" * 1048575)]},
    "list_steps": {"task_id": [None]},
    "open_stream": {
        "task_id": [None],
        "max_items": [None, 0, -1, 1_000_001],
        "max_bytes": [None, 0, 1023, 1_073_741_825],
    },
    "append_stream": {
        "items": [
            None, Jsonb(None), Jsonb([]), Jsonb({}), Jsonb("x"), Jsonb(7), Jsonb([1] * 1001),
        ],
    },
    "read_stream": {
        "task_id": [None],
        "after": [None],
        "max_items": BAD_COUNTS,
        "max_bytes": [None, 0, -1],
    },
    "get_stream": {"task_id": [None]},
    "watch_tasks": {
        "watcher": BAD_NAMES,
        "task_ids": [None, [None], [ID, None], [[ID]], [ID] * 10001],
        "for": [None, *BAD_LEASES],
    },
    "unwatch_tasks": {
        "watcher": BAD_NAMES,
        "task_ids": [[None], [ID, None], [[ID]], [ID] * 10001],
    },
    "peek_tasks": {"task_ids": [None, [None], [ID, None], [[ID]], [ID] * 10001]},
}  # fmt: skip



def right_arguments(function: str, claim: states.Claim) -> Arguments:
    """Arguments with which the function would be accepted."""
    lease_proof = claim.arguments()
    batch = {"pid": claim.pid, "task_ids": [claim.task_id], "tokens": [claim.token]}
    right: dict[str, Arguments] = {
        "create_tasks_like": {"spec": Jsonb({"topic": "t"}), "data": Jsonb([1])},
        "reserve_task": {"topic": "t", "pid": "w1"},
        "reserve_tasks": {"topics": ["t"], "pid": "w1", "max_tasks": 1},
        "acquire_lease": {"task_id": claim.task_id, "pid": "w1"},
        "extend_leases": batch,
        "terminate_tasks": batch,
        "settle_tasks": batch | {"verbs": ["terminate"]},
        "advance_fence": {"resource": "r", "token": 1},
        "revoke_lease": {"task_id": claim.task_id, "record_ver": 1},
        "cancel_task": {"task_id": claim.task_id},
        "resubmit_task": {"task_id": claim.task_id},
        "pause_topic": {"topic": "t"},
        "resume_topic": {"topic": "t"},
        "set_topic": {"topic": "t"},
        "get_task": {"task_id": claim.task_id},
        "list_group": {"task_group_id": claim.task_id},
        "list_tasks": {},
        "list_leased_tasks": {"topic": "t"},
        "sweep": {},
        "apply_retention": {},
        "look_around": {"topics": ["t"], "within": "1 s"},
        "look_for_work": {"topics": ["t"], "within": "1 s"},
        "mark_idle": {"topics": ["t"], "pid": "w1", "for": "1 s"},
        "try_lock": {"key": "k", "owner": "w1", "ttl": "1 s"},
        "renew_lock": {"key": "k", "owner": "w1", "token": 1, "ttl": "1 s"},
        "release_lock": {"key": "k", "owner": "w1", "token": 1},
        "assert_lock": {"key": "k", "owner": "w1", "token": 1},
        "put_schedule": {"name": "s", "spec": {}},
        "get_schedule": {"name": "s"},
        "list_schedules": {},
        "pause_schedule": {"name": "s"},
        "resume_schedule": {"name": "s"},
        "trigger_schedule": {"name": "s"},
        "delete_schedule": {"name": "s"},
        "due_schedules": {},
        "fire_schedules": {},
        "snooze_task": lease_proof | {"snooze": "1 s"},
        "fail_task": lease_proof | {"error": ERROR},
        "retry_task": lease_proof | {"error": ERROR},
        "report_progress": lease_proof | {"progress": None},
        "save_checkpoint": lease_proof | {"checkpoint": None},
        "fan_out": {
            "specs": Jsonb([{"topic": "t"}]), "parent_task_id": claim.task_id, "pid": claim.pid,
            "token": claim.token,
        },
        "get_join": {"task_id": claim.task_id},
        "join_results": {"task_id": claim.task_id},
        "task_tree": {"task_id": claim.task_id},
        "wait_for_task": lease_proof | {"waits_for": ID},
        "record_step": lease_proof | {"name": "s", "value": None},
        "list_steps": {"task_id": claim.task_id},
        "open_stream": {"task_id": claim.task_id},
        "append_stream": lease_proof | {"items": Jsonb([1])},
        "read_stream": {"task_id": claim.task_id},
        "get_stream": {"task_id": claim.task_id},
        "watch_tasks": {"watcher": "w", "task_ids": [claim.task_id], "for": "1 s"},
        "unwatch_tasks": {"watcher": "w"},
        "peek_tasks": {"task_ids": [claim.task_id]},
    }  # fmt: skip
    return right.get(function, lease_proof)


@pytest.mark.parametrize(
    ("function", "argument"), [(f, a) for f, arguments in WRONG.items() for a in arguments]
)
def test_a_wrong_argument_is_refused_by_name_and_changes_nothing(
    queue: Queue, function: str, argument: str
) -> None:
    claim = states.running(queue)
    before = queue.image(claim.task_id)
    for value in WRONG[function][argument]:
        arguments = right_arguments(function, claim) | {argument: value}
        found = queue.refused(function, **arguments)
        assert found.sqlstate == "22023", (str(value)[:60], found)
        assert found.detail["argument"] == argument, (str(value)[:60], found)
        assert found.detail["rule"] in found.message
    assert queue.image(claim.task_id) == before


@pytest.mark.parametrize("function", ["extend_leases", "terminate_tasks", "settle_tasks"])
@pytest.mark.parametrize("column", ["task_ids", "tokens"])
def test_null_as_a_member_of_a_batch_is_refused(queue: Queue, function: str, column: str) -> None:
    claim = states.running(queue)
    right = right_arguments(function, claim)
    two: Arguments = {"task_ids": [claim.task_id, ID], "tokens": [claim.token, 1]}
    if "verbs" in right:
        two["verbs"] = ["terminate", "terminate"]
    two[column] = [two[column][0], None]
    before = queue.image(claim.task_id)
    found = queue.refused(function, **(right | two))
    assert found.sqlstate == "22023"
    assert column in found.detail["argument"]
    assert queue.image(claim.task_id) == before


INFINITE = {
    "reserve_task": "lease",
    "acquire_lease": "lease",
    "extend_lease": "lease",
    "renew_lease": "lease",
    "extend_leases": "lease",
    "snooze_task": "snooze",
    "retry_task": "delay",
    "set_topic": "retention",
    "look_around": "within",
    "look_for_work": "within",
    "mark_idle": "for",
    "try_lock": "ttl",
    "renew_lock": "ttl",
    "fan_out": "deadline",
    "watch_tasks": "for",
}


@pytest.mark.parametrize("function", INFINITE)
@pytest.mark.parametrize("endless", ["infinity", "-infinity"])
def test_an_infinite_duration_is_refused(queue: Queue, function: str, endless: str) -> None:
    if queue.connection.info.server_version < 170000:
        # An interval cannot be infinite there; what comes instead is an error of the type.
        wanted = ("22007", None)
    else:
        wanted = ("22023", INFINITE[function])
    claim = states.running(queue)
    arguments = right_arguments(function, claim) | {INFINITE[function]: endless}
    found = queue.refused(function, **arguments)
    assert (found.sqlstate, found.detail.get("argument")) == wanted


@pytest.mark.parametrize("lease", ["1 ms", "1 year", "12 months", "365 days", "1 month", None])
def test_a_lease_within_its_bounds_is_granted(queue: Queue, topic: str, lease: Any) -> None:
    granted = queue.leased(topic, lease=lease)
    seconds = queue.value(
        "select extract(epoch from %s::interval)::float8", "30 s" if lease is None else lease
    )
    assert (granted.lease_expires_at - granted.leased_at).total_seconds() == seconds


@pytest.mark.parametrize("snooze", ["0", "10 years", "1 month", "1 microsecond"])
def test_a_snooze_within_its_bounds_is_accepted(queue: Queue, topic: str, snooze: str) -> None:
    lease = queue.leased(topic)
    answer = queue.verb("snooze_task", lease, snooze=snooze)
    assert answer.status == ("starting" if snooze == "0" else "snoozed")


def test_the_longest_names_are_accepted(queue: Queue) -> None:
    lease = queue.leased(LONGEST, "w" * 200, kind="k" * 200, sub_topic="s" * 200)
    assert queue.verb("extend_lease", lease).record_ver == 3
    queue.verb("terminate_task", lease)


AT_THE_LIMIT: dict[str, tuple[str, Callable[[], Any]]] = {
    "terminate_task": ("result", lambda: Jsonb("x" * 1048574)),
    "save_checkpoint": ("checkpoint", lambda: Jsonb("x" * 1048574)),
    "report_progress": ("progress", lambda: Jsonb("x" * 65534)),
    "record_step": ("value", lambda: Jsonb("x" * 1048574)),
    "fail_task": ("error", lambda: Jsonb({"code": "e", "message": "x" * (65536 - 28)})),
}


@pytest.mark.parametrize("function", AT_THE_LIMIT)
def test_a_value_of_exactly_the_allowed_size_is_kept(queue: Queue, function: str) -> None:
    argument, value = AT_THE_LIMIT[function]
    claim = states.running(queue)
    given = right_arguments(function, claim) | {argument: value()}
    answer = queue.one(function, **given)
    kept = answer if function == "record_step" else queue.row(claim.task_id)
    assert getattr(kept, argument) == value().obj


@pytest.mark.parametrize("function", AT_THE_LIMIT)
def test_a_short_number_with_a_long_text_counts_by_its_text(queue: Queue, function: str) -> None:
    """1e131000 is ten bytes in jsonb, and 131,001 when written out."""
    argument, _ = AT_THE_LIMIT[function]
    claim = states.running(queue)
    value = '{"n": [' + ",".join(["1e131000"] * 9) + "]}"
    found = queue.refused(function, **(right_arguments(function, claim) | {argument: value}))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", argument)


@pytest.mark.parametrize("limit", [1024, 1025, 1300])
def test_a_task_is_as_large_as_the_installation_allows(
    fresh: Queue, topic: str, limit: int
) -> None:
    fresh.execute("update sokka.settings set max_data_bytes = %s", limit)
    assert fresh.create(topic, data=Jsonb("x" * (limit - 2)))
    found = fresh.refused("create_task", topic=topic, data=Jsonb("x" * (limit - 1)))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "data")


def test_no_installation_allows_less_than_what_is_taken_unasked(fresh: Queue) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        fresh.execute("update sokka.settings set max_data_bytes = 1023")


def test_the_limit_of_large_values_is_the_installations(fresh: Queue, topic: str) -> None:
    fresh.execute("update sokka.settings set max_data_bytes = 1024")
    assert fresh.refused("create_task", topic=topic, data=Jsonb("x" * 1023)).sqlstate == "22023"
    lease = fresh.leased(topic, data=Jsonb("x" * 1022))
    too_large = Jsonb("y" * 1023)
    for verb, argument in (("save_checkpoint", "checkpoint"), ("terminate_task", "result")):
        found = fresh.refused(verb, **states.of(lease).arguments(), **{argument: too_large})
        assert found.detail["argument"] == argument

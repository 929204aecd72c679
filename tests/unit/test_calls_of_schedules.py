"""What is refused of locks and schedules before anything is sent, and what is sent."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest

from sokka_pg import calls
from sokka_pg.errors import BadArgument
from sokka_pg.model import NextLook, ScheduleFire

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SPEC: dict[str, Any] = {"schedule": "@daily", "next_at": NOON, "task": {"topic": "t"}}

BAD: dict[str, list[Any]] = {
    "schedule": [None, 5, "x" * 501, "a\x00b"],
    "next_at": [None, "2030-01-01T00:00:00Z", datetime(2030, 1, 1), 5],
    "task": [None, "t", ["t"], 5],
    "anchor_at": [datetime(2030, 1, 1), "now"],
    "missed": ["none", True],
    "max_catch_up": [0, 10_001, 1.5, True, "5"],
    "grace": [-1, timedelta(days=4_000), "1 minute", float("nan")],
    "serial": [1, "yes"],
    "repeats": [0, -1, 10**10, 2.0],
    "expires_at": [datetime(1969, 1, 1, tzinfo=UTC), "never"],
    "source": ["", " ", "a\nb", "x" * 201],
    "description": ["x" * 2_001, "\ud800", 5],
    "cron": ["* * * * *"],
}


@pytest.mark.parametrize("key", BAD)
def test_a_bad_spec_is_named_by_its_key(key: str) -> None:
    for value in BAD[key]:
        with pytest.raises(BadArgument) as refused:
            calls.put_schedule("s", {**SPEC, key: value})
        assert refused.value.detail["argument"] == key, value


@pytest.mark.parametrize("spec", [None, [], "daily", 5])
def test_a_spec_that_is_none_is_refused(spec: Any) -> None:
    with pytest.raises(BadArgument, match="spec"):
        calls.put_schedule("s", spec)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({}, "task.topic: is required"),
        ({"topic": "t", "priority": 10}, "task.priority: must be from 0 to 9"),
        ({"topic": "t", "colour": 1}, "task.colour: is no argument of create_task"),
        ({"topic": "t", "data": {1}}, "task.data at $: is not JSON"),
        *(
            ({"topic": "t", word: None}, f"task.{word}: is not for the task of a schedule")
            for word in (
                "run_at", "expires_at", "task_id", "parent_task_id", "unique_key", "on_conflict",
            )
        ),
    ],
)  # fmt: skip
def test_a_bad_task_is_named_below_its_key(task: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument) as refused:
        calls.put_schedule("s", {**SPEC, "task": task})
    assert refused.value.message.startswith(message)
    assert "position" not in refused.value.detail


def test_the_same_schedule_is_sent_in_the_same_words() -> None:
    """Or putting it again would be a change."""
    there = timezone(timedelta(hours=5, minutes=45))
    said = {"grace": 90, "expires_at": NOON, "repeats": None, "task": {"topic": "t", "retry": 2}}
    alike = {
        "grace": timedelta(minutes=1.5), "expires_at": NOON.astimezone(there),
        "task": {"retry": 2, "topic": "t", "kind": None},
    }  # fmt: skip
    sent = [calls.put_schedule("s", {**SPEC, **more}).params["spec"] for more in (said, alike)]
    assert json.loads(sent[0] or "") == json.loads(sent[1] or "")
    assert json.loads(sent[0] or "")["grace"] == "PT90S"


@pytest.mark.parametrize(
    ("fire", "argument"),
    [
        ({"schedule_id": "x"}, "fires[1].schedule_id"),
        ({"generation": 0}, "fires[1].generation"),
        ({"generation": True}, "fires[1].generation"),
        ({"due_at": datetime(2030, 1, 1)}, "fires[1].due_at"),
        ({"ticks": [NOON, None]}, "fires[1].ticks"),
        ({"ticks": "noon"}, "fires[1].ticks"),
        ({"next_at": datetime(9999, 1, 1, tzinfo=UTC)}, "fires[1].next_at"),
        ({"skipped": -1}, "fires[1].skipped"),
        ({"busy": 1}, "fires[1].busy"),
    ],
)
def test_a_bad_fire_is_named_with_its_position(fire: dict[str, Any], argument: str) -> None:
    whole: dict[str, Any] = {"schedule_id": uuid4(), "generation": 1, "due_at": NOON} | fire
    with pytest.raises(BadArgument) as refused:
        calls.fire_schedules([ScheduleFire(**whole)])
    assert refused.value.detail["argument"] == argument


def test_what_is_no_fire_is_refused() -> None:
    for fires in ([{"schedule_id": uuid4()}], "fires", {}, 5):
        with pytest.raises(BadArgument):
            calls.fire_schedules(fires)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        ("", "a", 1, 60), ("é" * 251, "a", 1, 60), ("k\x00", "a", 1, 60), (5, "a", 1, 60),
        ("k", " ", 1, 60), ("k", "a\n", 1, 60), ("k", "a", "1", 60), ("k", "a", 2**63, 60),
        ("k", "a", 1, None), ("k", "a", 1, 0.0001), ("k", "a", 1, "1 minute"),
    ],
)  # fmt: skip
def test_bad_arguments_of_a_lock_are_refused(arguments: Any) -> None:
    with pytest.raises(BadArgument):
        calls.renew_lock(*arguments)


def test_the_wait_until_the_next_look_is_never_negative() -> None:
    later = NOON + timedelta(seconds=5)
    assert NextLook(later, NOON).wait == timedelta(seconds=5)
    assert NextLook(NOON, later).wait == timedelta(0)

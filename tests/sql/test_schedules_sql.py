"""Schedules: put, changed, fired; what they say of themselves, and what cannot be made."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue
from tests.sql.scheduling import (
    FAR,
    LONG_AGO,
    fire,
    fire_due,
    fire_of,
    hours_after,
    put,
    schedule,
    specification,
    tasks_of,
)

START = datetime.fromisoformat("2030-01-01T00:00:00+00:00")


@pytest.fixture
def hourly(fresh: Queue, clock: Clock) -> Queue:
    """A queue at the start of 2030, with schedule ``s`` that is due there."""
    clock.stop(START)
    put(fresh, "s", next_at=START.isoformat())
    return fresh


def due_names(queue: Queue) -> list[str]:
    with queue.connection.transaction():
        return [row.name for row in queue.call("due_schedules")]


def look(queue: Queue) -> Any:
    """When to look for due schedules again; None for never."""
    found = queue.call("next_schedule_at")
    return found[0].look_at if found else None


# Putting


def test_a_schedule_is_put_with_its_defaults(fresh: Queue, clock: Clock) -> None:
    now = clock.stop(START)
    made = put(fresh, "s", next_at=FAR)
    assert (made.generation, made.created, made.changed) == (1, True, True)
    found = schedule(fresh, "s")
    assert (found.schedule_id, found.state, found.schedule) == (
        made.schedule_id, "active", "@every 1h",
    )  # fmt: skip
    assert (found.missed, found.max_catch_up, found.grace) == ("one", 100, timedelta(minutes=1))
    assert (found.serial, found.repeats, found.expires_at) == (False, None, None)
    assert (found.source, found.topic, found.kind) == ("sql", "ticks", "default")
    assert (found.anchor_at.isoformat(), found.created_at) == (FAR, now)
    assert (found.runs, found.skipped, found.last_fire_at, found.last_task_id) == (0, 0, None, None)
    assert schedule(fresh, "t") is None


def test_the_same_again_changes_nothing(fresh: Queue, clock: Clock) -> None:
    clock.stop(START)
    put(fresh, "s", description="d", grace=90)
    before = fresh.rows("select * from sokka.schedules")
    clock.advance("1 hour")
    again = put(
        fresh, "s", description="d", grace=90, next_at=FAR, anchor_at=FAR, overwrite=False
    )
    assert (again.generation, again.created, again.changed) == (1, False, False)
    assert fresh.rows("select * from sokka.schedules") == before
    assert fresh.value("select count(*) from sokka.audit_log where action = 'put_schedule'") == 1


CHANGES: dict[str, Any] = {
    "schedule": "@every 2h", "task": {"topic": "other"}, "missed": "all", "max_catch_up": 5,
    "grace": "PT5M", "serial": True, "repeats": 3, "expires_at": FAR, "source": "app:shop",
    "description": "another",
}  # fmt: skip


@pytest.mark.parametrize("key", CHANGES)
def test_a_change_is_a_new_generation_that_begins_anew(
    fresh: Queue, clock: Clock, key: str
) -> None:
    clock.stop(START)
    put(fresh, "s")
    fire_due(fresh)
    clock.advance("1 hour")
    changed = put(fresh, "s", next_at=FAR, **{key: CHANGES[key]})
    assert (changed.generation, changed.created, changed.changed) == (2, False, True)
    found = schedule(fresh, "s")
    assert (found.runs, found.last_fire_at, found.last_task_id) == (0, None, None)
    assert found.next_at.isoformat() == FAR
    assert (found.anchor_at.isoformat(), found.created_at) == (FAR, START)
    assert [task.generation for task in tasks_of(fresh, "s")] == [1]


def test_another_one_is_refused_where_it_may_not_overwrite(fresh: Queue) -> None:
    put(fresh, "s")
    before = fresh.rows("select * from sokka.schedules")
    found = fresh.refused(
        "put_schedule", name="s", spec=Jsonb(specification(missed="all")), overwrite=False
    )
    assert (found.sqlstate, found.detail) == ("SK014", {"name": "s", "generation": 1})
    assert fresh.rows("select * from sokka.schedules") == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_finished_one_is_put_again_even_if_it_says_the_same(
    fresh: Queue, overwrite: bool
) -> None:
    put(fresh, "s")
    fire_due(fresh, next_at=None)
    assert schedule(fresh, "s").state == "finished"
    again = put(fresh, "s", overwrite=overwrite)
    assert (again.generation, again.created, again.changed) == (2, True, True)
    assert (schedule(fresh, "s").state, schedule(fresh, "s").finished_at) == ("active", None)


def test_a_change_leaves_a_paused_schedule_paused(fresh: Queue) -> None:
    put(fresh, "s")
    fresh.call("pause_schedule", name="s")
    put(fresh, "s", missed="all")
    assert schedule(fresh, "s").state == "paused"
    assert due_names(fresh) == []


BAD_SPECS: dict[str, list[Any]] = {
    "schedule": [None, "", "x" * 501, 5, {"every": "1h"}],
    "next_at": [None, 5, "tomorrow", "2024-01-01", "2024-01-01T08:00:00", "1969-12-31T23:59:59Z",
                "9999-01-01T00:00:00Z", "infinity"],
    "anchor_at": ["2024-01-01", "-infinity", {}],
    "expires_at": ["2024-01-01", "now", []],
    "task": [
        None, "mail", [], 7, {"topic": "t", "run_at": LONG_AGO}, {"topic": "t", "expires_at": FAR},
        {"topic": "t", "task_id": str(uuid4())}, {"topic": "t", "parent_task_id": str(uuid4())},
        {"topic": "t", "unique_key": "k"}, {"topic": "t", "on_conflict": "error"},
    ],
    "missed": ["never", "ALL", 1, []],
    "max_catch_up": [0, -1, 1.5, 10_001, "5", True],
    "grace": ["-1 s", -1, "11 years", "soon", [], True],
    "serial": ["true", 1, []],
    "repeats": [0, -1, 1.5, 10**10, "5", []],
    "source": ["", " ", "x" * 201, "a\nb"],
    "description": ["x" * 2_001],
}  # fmt: skip


@pytest.mark.parametrize("key", BAD_SPECS)
def test_a_bad_spec_is_refused_by_its_key(fresh: Queue, key: str) -> None:
    put(fresh, "s")
    before = fresh.rows("select * from sokka.schedules")
    for value in BAD_SPECS[key]:
        for name in ("s", "new"):
            spec = Jsonb(specification(**{key: value}))
            found = fresh.refused("put_schedule", name=name, spec=spec)
            assert found.sqlstate == "22023", (value, found)
            assert found.detail["argument"] == key, (value, found)
    assert fresh.rows("select * from sokka.schedules") == before


BAD_TASKS: list[dict[str, Any]] = [
    {}, {"topic": None}, {"topic": ""}, {"topic": "t", "priority": 10}, {"topic": "t", "tpic": "u"},
    {"topic": "t", "retry": {"max_attempts": -1}}, {"topic": "t", "timeout": "0"},
    {"topic": "t", "headers": {"a": 1}}, {"topic": "t", "data": "x" * 1048575},
    {"topic": "t", "max_attempts": "many"}, {"topic": "t", "kind": 7},
]  # fmt: skip


@pytest.mark.parametrize("task", BAD_TASKS, ids=lambda task: str(task)[:40])
def test_a_task_that_could_not_be_made_is_refused_when_it_is_put(
    fresh: Queue, task: dict[str, Any]
) -> None:
    found = fresh.refused("put_schedule", name="s", spec=Jsonb(specification(task=task)))
    assert found.sqlstate == "22023", found
    assert schedule(fresh, "s") is None


@pytest.mark.parametrize("key", ["anchor_at", "missed", "max_catch_up", "grace", "serial",
                                 "repeats", "expires_at", "source", "description"])  # fmt: skip
def test_json_null_is_the_same_as_saying_nothing(fresh: Queue, key: str) -> None:
    put(fresh, "said", **{key: None})
    put(fresh, "unsaid")
    said, unsaid = schedule(fresh, "said"), schedule(fresh, "unsaid")
    assert getattr(said, key) == getattr(unsaid, key)


# Firing


def test_a_tick_becomes_a_task_that_says_whose_it_is(hourly: Queue, clock: Clock) -> None:
    put(hourly, "s", task={"topic": "t", "kind": "k", "data": [1], "priority": 2, "timeout": 60,
                           "headers": {"a": "b"}, "retry": {"max_attempts": 4}},
        next_at=START.isoformat())  # fmt: skip
    assert due_names(hourly) == ["s"]
    (due,) = hourly.call("due_schedules")
    assert (due.due_at, due.busy, due.runs, due.clock) == (START, False, 0, START)
    assert due.serial is False
    (verdict,) = fire(hourly, fire_of(due, next_at=hours_after(START, 1)))
    assert (verdict.ord, verdict.fired, verdict.verdict) == (1, 1, "ok")
    (task,) = tasks_of(hourly, "s")
    assert verdict.task_ids == [task.task_id]
    assert (task.topic, task.kind, task.data, task.status) == ("t", "k", [1], "starting")
    assert (task.priority, task.timeout, task.max_attempts) == (2, timedelta(minutes=1), 4)
    assert task.headers == {
        "a": "b", "sokka-schedule": "s", "sokka-fire-at": "2030-01-01T00:00:00.000000Z",
    }  # fmt: skip
    assert (task.task_group_id, task.parent_task_id, task.extra) == (task.task_id, None, False)
    found = schedule(hourly, "s")
    assert (found.runs, found.last_fire_at, found.last_task_id) == (1, START, task.task_id)
    assert found.next_at == START + timedelta(hours=1)
    assert due_names(hourly) == []
    assert look(hourly) == START + timedelta(hours=1)


def test_a_schedule_is_due_at_exactly_its_tick(fresh: Queue, clock: Clock) -> None:
    clock.stop(START)
    put(fresh, "s", next_at=hours_after(START, 1))
    clock.advance("59 minutes 59.999999 seconds")
    assert due_names(fresh) == []
    clock.advance("1 microsecond")
    assert due_names(fresh) == ["s"]


def test_the_oldest_ticks_come_first_and_no_more_than_asked_for(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop(START)
    for name, hours in (("b", -2), ("c", -1), ("a", -3), ("later", 1)):
        put(fresh, name, next_at=hours_after(START, hours))
    assert [row.name for row in fresh.call("due_schedules", limit=2)] == ["a", "b"]
    assert due_names(fresh) == ["a", "b", "c"]


def test_several_ticks_become_a_task_each(hourly: Queue, clock: Clock) -> None:
    clock.advance("3 hours")
    ticks = [hours_after(START, hours) for hours in range(3)]
    (verdict,) = fire_due(hourly, ticks=ticks, next_at=hours_after(START, 4), skipped=1)
    assert (verdict.fired, verdict.verdict) == (3, "ok")
    assert [task.fire_at.isoformat() for task in tasks_of(hourly, "s")] == ticks
    assert [task.task_id for task in tasks_of(hourly, "s")] == verdict.task_ids
    found = schedule(hourly, "s")
    assert (found.runs, found.skipped) == (3, 1)
    assert found.last_fire_at.isoformat() == ticks[-1]
    assert found.last_task_id == tasks_of(hourly, "s")[-1].task_id


def test_ticks_that_are_passed_over_make_no_task(hourly: Queue) -> None:
    (verdict,) = fire_due(hourly, ticks=[], skipped=7)
    assert (verdict.fired, verdict.verdict, verdict.task_ids) == (0, "ok", [])
    found = schedule(hourly, "s")
    assert (found.runs, found.skipped, found.last_fire_at) == (0, 7, None)


def test_a_tick_fires_once_even_if_the_rule_names_it_again(hourly: Queue) -> None:
    for fired in (1, 0):
        (verdict,) = fire_due(hourly, next_at=START.isoformat())
        assert (verdict.fired, verdict.verdict) == (fired, "ok")
    assert (len(tasks_of(hourly, "s")), schedule(hourly, "s").runs) == (1, 1)


def test_a_schedule_without_a_next_tick_is_finished(hourly: Queue) -> None:
    fire_due(hourly, next_at=None)
    found = schedule(hourly, "s")
    assert (found.state, found.next_at, found.finished_at, found.runs) == (
        "finished", None, START, 1,
    )  # fmt: skip
    assert (due_names(hourly), look(hourly)) == ([], None)


@pytest.mark.parametrize("ticks", [1, 2, 3, 5])
def test_repeats_bound_the_ticks_that_fire(fresh: Queue, clock: Clock, ticks: int) -> None:
    clock.stop(START)
    put(fresh, "s", repeats=3, next_at=START.isoformat())
    total = 0
    for start in range(0, 12, ticks):
        fired = fire_due(
            fresh,
            ticks=[hours_after(START, hours) for hours in range(start, start + ticks)],
            next_at=hours_after(START, 0),
        )
        total += sum(verdict.fired for verdict in fired)
        if schedule(fresh, "s").state == "finished":
            break
    found = schedule(fresh, "s")
    assert (total, found.runs, found.state) == (3, 3, "finished")
    assert (found.next_at, due_names(fresh)) == (None, [])


def test_nothing_fires_after_the_end(fresh: Queue, clock: Clock) -> None:
    clock.stop(START)
    put(fresh, "s", expires_at=hours_after(START, 2), next_at=START.isoformat())
    clock.advance("10 hours")
    ticks = [hours_after(START, hours) for hours in range(5)]
    (verdict,) = fire_due(fresh, ticks=ticks, next_at=hours_after(START, 11))
    assert verdict.fired == 3, "the tick at exactly the end fires"
    assert schedule(fresh, "s").state == "finished"


def test_an_end_before_the_next_tick_finishes_it_now(hourly: Queue) -> None:
    put(hourly, "s", expires_at=hours_after(START, 1), next_at=START.isoformat())
    fire_due(hourly, next_at=hours_after(START, 1))
    assert schedule(hourly, "s").state == "active", "the next tick is at the end"
    put(hourly, "s", expires_at=hours_after(START, 0.5), next_at=START.isoformat())
    fire_due(hourly, next_at=hours_after(START, 1))
    assert schedule(hourly, "s").state == "finished"


def test_a_serial_schedule_is_busy_until_the_task_of_its_last_tick_has_ended(
    hourly: Queue, clock: Clock
) -> None:
    put(hourly, "s", serial=True, next_at=START.isoformat())
    fire_due(hourly, next_at=START.isoformat())
    (task_id,) = [task.task_id for task in tasks_of(hourly, "s")]
    (due,) = hourly.call("due_schedules")
    assert (due.serial, due.busy, due.due_at) == (True, True, START)
    (verdict,) = fire(hourly, fire_of(due, ticks=[], busy=True))
    assert (verdict.fired, verdict.verdict) == (0, "ok")
    found = schedule(hourly, "s")
    assert (found.next_at, found.state) == (START, "active"), "the tick is kept"
    assert (due_names(hourly), look(hourly)) == ([], START + timedelta(seconds=1))
    clock.advance("1 s")
    lease = hourly.one("acquire_lease", task_id=task_id, pid="w", lease="1 hour")
    assert [row.busy for row in hourly.call("due_schedules")] == [True]
    hourly.verb("terminate_task", lease)
    assert [row.busy for row in hourly.call("due_schedules")] == [False]


def test_an_extra_run_keeps_no_serial_schedule_busy(hourly: Queue, clock: Clock) -> None:
    put(hourly, "s", serial=True, next_at=START.isoformat())
    clock.advance("1 minute")
    hourly.call("trigger_schedule", name="s")
    assert [row.busy for row in hourly.call("due_schedules")] == [False]


def test_one_that_is_not_serial_is_never_busy(hourly: Queue) -> None:
    fire_due(hourly, next_at=START.isoformat())
    assert [row.busy for row in hourly.call("due_schedules")] == [False]


def test_a_schedule_that_cannot_be_worked_out_says_why_and_is_tried_again(
    hourly: Queue, clock: Clock
) -> None:
    fire_due(hourly, ticks=[], error="unknown zone")
    found = schedule(hourly, "s")
    assert (found.state, found.error, found.failing_since) == ("failing", "unknown zone", START)
    assert (found.next_at, look(hourly)) == (START, START + timedelta(minutes=1))
    clock.advance("1 minute")
    fire_due(hourly, ticks=[], error="still unknown")
    found = schedule(hourly, "s")
    assert (found.error, found.failing_since) == ("still unknown", START)
    clock.advance("1 minute")
    fire_due(hourly)
    found = schedule(hourly, "s")
    assert (found.state, found.error, found.failing_since) == ("active", None, None)


BROKEN: dict[str, tuple[Any, str]] = {
    "no object": ([], "22023"),
    "no topic": ({"kind": "k"}, "22023"),
    "a bad priority": ({"topic": "t", "priority": 77}, "22023"),
    "a bad type": ({"topic": "t", "timeout": {}}, "22023"),
    "an unknown key": ({"topic": "t", "colour": "red"}, "22023"),
    "too much data": ({"topic": "t", "data": "x" * 2_000_000}, "22023"),
    "a parent that is gone": ({"topic": "t", "parent_task_id": str(uuid4())}, "SK001"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_task_that_cannot_be_made_holds_up_no_other(
    fresh: Queue, clock: Clock, how: str
) -> None:
    """Written past put_schedule, by hand, or by an older version."""
    clock.stop(START)
    for name in ("a", "broken", "z"):
        put(fresh, name, next_at=START.isoformat())
    task, state = BROKEN[how]
    fresh.execute("update sokka.schedules set task = %s where name = 'broken'", Jsonb(task))
    due = fresh.call("due_schedules")
    verdicts = fire(fresh, *(fire_of(each) for each in due))
    named = {each.name: verdict for each, verdict in zip(due, verdicts, strict=True)}
    assert [verdict.ord for verdict in verdicts] == [1, 2, 3]
    assert (named["broken"].fired, named["broken"].verdict) == (0, state)
    for name in "az":
        assert (named[name].fired, named[name].verdict) == (1, "ok")
        assert len(tasks_of(fresh, name)) == 1
    assert tasks_of(fresh, "broken") == []
    found = schedule(fresh, "broken")
    assert (found.state, found.failing_since, found.next_at) == ("failing", START, START)
    assert found.error
    assert (due_names(fresh), look(fresh)) == ([], START + timedelta(minutes=1))
    # Mended, it fires the tick that it kept.
    fresh.execute("update sokka.schedules set task = '{\"topic\": \"t\"}' where name = 'broken'")
    clock.advance("1 minute")
    fire_due(fresh)
    assert [task.fire_at for task in tasks_of(fresh, "broken")] == [START]
    assert schedule(fresh, "broken").state == "active"


def test_a_task_with_the_largest_headers_that_put_takes_can_be_made(fresh: Queue) -> None:
    size = next(
        size
        for size in range(65536, 60000, -1)
        if fresh.refusal(
            "put_schedule", name="s",
            spec=Jsonb(specification(task={"topic": "t", "headers": {"a": "x" * size}})),
        ) is None
    )  # fmt: skip
    (verdict,) = fire_due(fresh)
    assert verdict.verdict == "ok", (size, schedule(fresh, "s").error)


UNKNOWN: dict[str, dict[str, Any]] = {
    "an id that nobody has": {"schedule_id": str(uuid4())},
    "an older generation": {"generation": 0},
    "another tick": {"due_at": hours_after(START, -1)},
    "no generation": {"generation": None},
    "no tick": {"due_at": None},
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_does_not_fit_the_schedule_fires_nothing(hourly: Queue, what: str) -> None:
    before = hourly.rows("select * from sokka.schedules")
    (verdict,) = fire_due(hourly, **UNKNOWN[what])
    assert (verdict.fired, verdict.verdict) == (0, "SK007")
    assert hourly.rows("select * from sokka.schedules") == before


NULLS: dict[str, dict[str, Any]] = {
    "ticks": {"ticks": None}, "skipped": {"skipped": None}, "busy": {"busy": None},
    "error": {"error": None},
}  # fmt: skip


@pytest.mark.parametrize("key", NULLS)
def test_null_in_a_fire_is_the_same_as_saying_nothing(hourly: Queue, key: str) -> None:
    (verdict,) = fire_due(hourly, **NULLS[key])
    assert (verdict.verdict, verdict.fired) == ("ok", 0 if key == "ticks" else 1)
    found = schedule(hourly, "s")
    assert (found.skipped, found.error, found.state) == (0, None, "active")


def test_a_tick_that_is_null_is_told_and_fires_nothing(hourly: Queue) -> None:
    try:
        verdicts = fire_due(hourly, ticks=[START.isoformat(), None])
    except psycopg.Error as error:
        assert error.sqlstate == "22023"
    else:
        assert verdicts[0].verdict != "ok"
    assert (tasks_of(hourly, "s"), schedule(hourly, "s").runs) == ([], 0)


def test_nothing_to_fire_is_no_fault(fresh: Queue) -> None:
    assert fire(fresh) == []


@pytest.mark.parametrize("more", [{}, {"ticks": []}, {"generation": 7}, {"schedule_id": None}])
def test_a_batch_names_each_schedule_once(hourly: Queue, more: dict[str, Any]) -> None:
    (due,) = hourly.call("due_schedules")
    found = hourly.refused("fire_schedules", fires=Jsonb([fire_of(due), fire_of(due, **more)]))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "fires")
    assert (tasks_of(hourly, "s"), schedule(hourly, "s").runs) == ([], 0)


@pytest.mark.parametrize("function", ["due_schedules", "fire_schedules"])
def test_firing_needs_read_committed(
    fresh: Queue, another: Callable[..., Queue], function: str
) -> None:
    caller = another(autocommit=False)
    caller.execute("set transaction isolation level repeatable read")
    more = {"fires": Jsonb([])} if function == "fire_schedules" else {}
    assert caller.refused(function, **more).sqlstate == "25001"


def test_what_is_undone_has_not_fired(fresh: Queue, another: Callable[..., Queue]) -> None:
    put(fresh, "s")
    caller = another(autocommit=False)
    assert fire_due(caller)[0].fired == 1
    caller.connection.rollback()
    assert (tasks_of(fresh, "s"), schedule(fresh, "s").runs) == ([], 0)
    assert fire_due(fresh)[0].fired == 1


def test_what_fired_stays_known_when_partitions_are_made_for_it(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop(START)
    put(fresh, "s", next_at=START.isoformat())
    fire_due(fresh)
    assert fresh.value("select count(*) from sokka.schedule_fires_default") == 1
    fresh.one("sweep")
    fresh.value("select sokka.prepare_partitions()")
    assert fresh.value("select count(*) from sokka.schedule_fires_default") == 0
    assert len(tasks_of(fresh, "s")) == 1


@pytest.mark.parametrize("act", ["update sokka.schedule_fires set extra = true",
                                 "delete from sokka.schedule_fires",
                                 "truncate sokka.schedule_fires"])  # fmt: skip
def test_what_fired_is_never_changed(hourly: Queue, act: str) -> None:
    fire_due(hourly)
    with pytest.raises(psycopg.Error):
        hourly.execute(act)
    assert len(tasks_of(hourly, "s")) == 1


# Steering


def test_a_paused_schedule_waits_and_goes_on_with_the_tick_that_it_missed(
    hourly: Queue, clock: Clock
) -> None:
    assert hourly.one("pause_schedule", name="s", reason="holiday").state == "paused"
    paused = schedule(hourly, "s")
    clock.advance("5 hours")
    assert hourly.one("pause_schedule", name="s").paused_at == START
    assert (due_names(hourly), look(hourly)) == ([], None)
    resumed = hourly.one("resume_schedule", name="s", reason="back")
    assert (resumed.state, resumed.paused_at, resumed.next_at) == ("active", None, START)
    assert (resumed.generation, resumed.anchor_at) == (paused.generation, paused.anchor_at)
    assert due_names(hourly) == ["s"]
    hourly.call("resume_schedule", name="s")
    acts = hourly.rows("select action, reason, detail from sokka.audit_log order by id")
    assert [(act.action, act.reason) for act in acts] == [
        ("put_schedule", None), ("pause_schedule", "holiday"), ("resume_schedule", "back"),
    ]  # fmt: skip
    assert {act.detail["schedule"] for act in acts} == {"s"}


@pytest.mark.parametrize("paused", [True, False])
def test_an_extra_run_moves_no_tick_and_counts_as_none(
    fresh: Queue, clock: Clock, paused: bool
) -> None:
    clock.stop(START)
    put(fresh, "s", repeats=1, next_at=hours_after(START, 1))
    if paused:
        fresh.call("pause_schedule", name="s")
    before = fresh.rows("select * from sokka.schedules")
    run = fresh.one("trigger_schedule", name="s", reason="try it")
    assert run.fire_at == START
    assert fresh.rows("select * from sokka.schedules") == before
    (task,) = tasks_of(fresh, "s")
    assert (task.task_id, task.extra, task.data) == (run.task_id, True, {"n": 1})
    assert task.headers["sokka-schedule"] == "s"
    (act,) = fresh.rows("select * from sokka.audit_log where action = 'trigger_schedule'")
    assert (act.task_id, act.reason) == (run.task_id, "try it")


def test_extra_runs_may_be_asked_for_in_one_moment(hourly: Queue) -> None:
    """The clock stands still: whoever asks twice gets two."""
    first = hourly.one("trigger_schedule", name="s")
    assert hourly.one("trigger_schedule", name="s").task_id != first.task_id
    fire_due(hourly)
    assert [task.extra for task in tasks_of(hourly, "s")].count(False) == 1


def test_an_extra_run_at_the_instant_of_a_tick_does_not_take_its_place(
    hourly: Queue, clock: Clock
) -> None:
    hourly.one("trigger_schedule", name="s")
    fire_due(hourly)
    assert sorted(task.extra for task in tasks_of(hourly, "s")) == [False, True]
    assert schedule(hourly, "s").runs == 1


def test_a_finished_schedule_can_be_run_once_more(hourly: Queue, clock: Clock) -> None:
    fire_due(hourly, next_at=None)
    clock.advance("1 s")
    assert hourly.one("trigger_schedule", name="s").task_id
    assert schedule(hourly, "s").state == "finished"


def test_a_deleted_schedule_leaves_its_tasks_and_its_name(hourly: Queue) -> None:
    fire_due(hourly)
    assert hourly.one("delete_schedule", name="s", reason="no more").deleted
    assert not hourly.one("delete_schedule", name="s").deleted
    assert schedule(hourly, "s") is None
    assert len(tasks_of(hourly, "s")) == 1
    acts = hourly.rows("select reason from sokka.audit_log where action = 'delete_schedule'")
    assert [act.reason for act in acts] == ["no more"]
    again = put(hourly, "s")
    assert (again.generation, again.created) == (1, True)
    # Another schedule of that name: its ticks are its own.
    assert fire_due(hourly)[0].fired == 1


@pytest.mark.parametrize("act", ["pause_schedule", "resume_schedule", "trigger_schedule"])
def test_what_is_not_there_cannot_be_steered(fresh: Queue, act: str) -> None:
    found = fresh.refused(act, name="s")
    assert (found.sqlstate, found.detail) == ("SK015", {"name": "s"})
    put(fresh, "s")
    found = fresh.refused(act, name="s", reason="x" * 2001)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "reason")


def test_schedules_are_listed_by_name_in_pages_and_by_filters(fresh: Queue) -> None:
    for number in range(7):
        put(fresh, f"s{number}", source="app:a" if number % 2 else "app:b")
    put(fresh, "other", next_at=FAR)
    fresh.call("pause_schedule", name="s1")
    fire_due(fresh, next_at=None)
    put(fresh, "late", next_at=FAR)

    def names(**options: Any) -> list[str]:
        if options.get("filters") is not None:
            options["filters"] = Jsonb(options["filters"])
        return [row.name for row in fresh.call("list_schedules", **options)]

    assert names() == ["late", "other", *(f"s{number}" for number in range(7))]
    assert names(limit=3) == ["late", "other", "s0"]
    assert names(limit=3, cursor="s0") == ["s1", "s2", "s3"]
    assert names(cursor="s6") == []
    assert names(filters={"source": "app:a"}) == ["s1", "s3", "s5"]
    assert names(filters={"state": "paused"}) == ["s1"]
    assert names(filters={"state": "active"}) == ["late", "other"]
    assert names(filters={"state": "finished", "source": "app:b"}) == ["s0", "s2", "s4", "s6"]
    assert names(filters={"prefix": "s"}, cursor="s4") == ["s5", "s6"]
    assert names(filters={"prefix": "%"}) == []
    assert names(filters=None) == names(filters={"source": None})


# How much it costs


@pytest.fixture
def crowded(fresh: Queue, clock: Clock) -> Queue:
    """A hundred thousand schedules, none of which is due yet; half of them paused or over."""
    clock.stop(START)
    put(fresh, "s", next_at=hours_after(START, 1))
    fresh.execute(
        "insert into sokka.schedules select (jsonb_populate_record(s, jsonb_build_object("
        " 'schedule_id', gen_random_uuid(), 'name', 'n' || n,"
        " 'paused_at', case when n % 4 = 0 then s.created_at end,"
        " 'look_at', case when n % 4 <> 1 then s.look_at + n * interval '1 s' end))).*"
        " from sokka.schedules s, generate_series(1, 20000) n"
    )
    fresh.execute("analyze sokka.schedules")
    return fresh


def pages(queue: Queue, call: str) -> int:
    """The pages that a call touches, once its plans are made."""
    queue.rows(f"select * from {call}")
    plan = queue.value(f"explain (analyze, buffers, format json) select * from {call}")[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("call", ["sokka.next_schedule_at()", "sokka.due_schedules()"])
def test_to_see_that_nothing_is_due_costs_a_few_pages_among_many_schedules(
    crowded: Queue, clock: Clock, call: str
) -> None:
    assert pages(crowded, call) < 30
    # Nor does it when the statistics are those of a table that was just filled.
    crowded.execute("delete from pg_statistic where starelid = 'sokka.schedules'::regclass")
    crowded.execute("discard plans")
    assert pages(crowded, call) < 30


def test_a_few_that_are_due_are_found_among_many(crowded: Queue, clock: Clock) -> None:
    clock.advance("1 hour 2 seconds")
    assert due_names(crowded) == ["s", "n2"]
    assert pages(crowded, "sokka.due_schedules()") < 60


def test_who_asks_when_to_fire_must_be_able_to_fire(fresh: Queue) -> None:
    """On a standby it would be told, and never find out that it is one."""
    fresh.execute("set default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        fresh.rows("select * from sokka.next_schedule_at()")
    fresh.execute("set default_transaction_read_only = off")
    assert fresh.rows("select * from sokka.next_schedule_at()") == []

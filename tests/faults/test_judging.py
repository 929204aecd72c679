"""The judge, on histories made by hand: each rule has one that it must refuse, and a near
twin that it must not."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.faults.chaos.judging.making import CHILD, GIVEN_UP, NEW, TASK, Making, us
from tests.faults.chaos.words import FAIL, INFO, OK
from tests.proof.replay import SWEEPERS

Story = Callable[[Making, bool], None]
STORIES: list[tuple[str, Story]] = []


def breaks(*rules: str) -> Callable[[Story], Story]:
    """A story that breaks these rules where it is told ``wrong``, and else none."""

    def enter(story: Story) -> Story:
        STORIES.extend((rule, story) for rule in rules)
        return story

    return enter


def running(m: Making) -> None:
    m.made()
    m.granted()


@breaks("I1")
def a_lease_is_taken_back(m: Making, wrong: bool) -> None:
    running(m)
    m.swept(9 if wrong else 12)


@breaks("I1")
def another_acquires_it(m: Making, wrong: bool) -> None:
    running(m)
    pid = "w2" if wrong else "w1"
    m.change(5, "acquire_lease", status="starting", attempt=0, **GIVEN_UP)
    m.change(
        5, "acquire_lease", same=True, status="running", token=9, pid=pid, attempt=1,
        until=us(15),
    )  # fmt: skip
    row = {"task_id": TASK, "token": 9, "pid": pid, "lease_expires_at": us(15)}
    m.call("acquire_lease", 5, rows=[row], task_id=TASK, pid=pid)


@breaks("I2")
def a_token_falls(m: Making, wrong: bool) -> None:
    running(m)
    m.swept(12)
    m.granted(13, token=6 if wrong else 8, pid="w2")


@breaks("I2")
def a_token_is_granted_twice(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(2)
    m.made(3, CHILD)
    m.granted(4, token=7 if wrong else 8)


@breaks("I3")
def an_end_comes_too_late(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(11.5 if wrong else 10.5)


@breaks("I3", "L1")
def a_stale_token_ends_it(m: Making, wrong: bool) -> None:
    running(m)
    m.swept(12)
    m.granted(13, token=8, pid="w1")
    m.terminated(14, token=7 if wrong else 8)


@breaks("I3")
def a_stale_token_extends_it(m: Making, wrong: bool) -> None:
    running(m)
    said: dict[str, Any] = {"record_ver": 3, "lease_expires_at": us(15)}
    m.owner("extend_lease", 5, token=6 if wrong else 7, rows=[said], lease="PT10S")
    m.change(5, "extend_lease", until=us(15))


@breaks("I3")
def an_extension_revives_it(m: Making, wrong: bool) -> None:
    running(m)
    at = 11.5 if wrong else 10.5
    said: dict[str, Any] = {"record_ver": 3, "lease_expires_at": us(25)}
    m.owner("extend_lease", at, rows=[said], lease="PT10S")
    m.change(at, "extend_lease", until=us(25))


@breaks("I3")
def a_function_that_may_not_moves_it(m: Making, wrong: bool) -> None:
    running(m)
    m.owner("report_progress" if wrong else "release_lease", 2, rows=[m.outcome("starting")])
    m.change(2, m.act.calls[-1].function, status="starting", attempt=0, **GIVEN_UP)


@breaks("I4")
def progress_moves_the_lease(m: Making, wrong: bool) -> None:
    running(m)
    m.owner("report_progress", 2, rows=[{"record_ver": 3}], progress="1")
    m.change(2, "report_progress", progress=1, until=us(20) if wrong else m.row["until"])


@breaks("I4")
def a_lease_is_longer_than_asked_for(m: Making, wrong: bool) -> None:
    m.made()
    m.granted()
    if wrong:
        old = m.act.changes.pop()
        m.row = {**m.row, "until": m.row["until"] + 1}
        m.act.changes.append(dataclasses.replace(old, new=m.row))
        m.act.calls[-1].rows[0]["lease_expires_at"] = m.row["until"]


@breaks("I5")
def a_version_is_left_out(m: Making, wrong: bool) -> None:
    running(m)
    m.owner("report_progress", 2, rows=[{"record_ver": 4 if wrong else 3}], progress="1")
    m.change(2, "report_progress", progress=1, ver=4 if wrong else 3)


@breaks("I5")
def a_revoke_by_an_old_version(m: Making, wrong: bool) -> None:
    running(m)
    m.call(
        "revoke_lease", 2, rows=[m.outcome("starting")], process="operator-1", task_id=TASK,
        record_ver="1" if wrong else "2",
    )  # fmt: skip
    m.change(2, "revoke_lease", status="starting", **GIVEN_UP)


@breaks("I6")
def it_skips_a_status(m: Making, wrong: bool) -> None:
    m.made(status="snoozed", run_at=us(1))
    if not wrong:
        m.call("sweep", 2, max_tasks="10")
        m.change(2, "sweep", status="starting")
    m.granted(3)


@breaks("I6")
def it_is_granted_though_it_is_to_stop(m: Making, wrong: bool) -> None:
    running(m)
    m.call("cancel_task", 2, rows=[m.outcome("running") | {"outcome": "requested"}], task_id=TASK)
    m.change(2, "cancel_task", cancel=us(2))
    m.swept(12)
    if wrong:
        m.granted(13, token=8)
    else:
        m.end(12, "sweep", same=True, status="failed", code="cancelled")


@breaks("I7")
def it_lives_after_its_end(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(2)
    if wrong:
        m.add("finished_tasks", 3, "terminate_task", m.row, {**m.row, "result": 2})


@breaks("I7")
def it_leaves_without_a_record(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(2)
    if wrong:
        m.act.changes.pop()


@breaks("I8")
def nobody_has_asked_for_it(m: Making, wrong: bool) -> None:
    m.made()
    if wrong:
        m.act.calls.pop()


@breaks("I8")
def it_carries_other_data(m: Making, wrong: bool) -> None:
    m.made(data={"n": 1})
    if wrong:
        m.act.calls[-1].arguments["data"] = '{"n": 2}'


@breaks("I8")
def a_handler_gets_other_data(m: Making, wrong: bool) -> None:
    m.made()
    m.granted(data={"n": 2 if wrong else 1})


@breaks("I8")
def its_data_change(m: Making, wrong: bool) -> None:
    running(m)
    m.owner("report_progress", 2, rows=[{"record_ver": 3}], progress="1")
    m.change(2, "report_progress", progress=1, data={"n": 2 if wrong else 1})


@breaks("I8")
def a_handler_runs_without_a_grant(m: Making, wrong: bool) -> None:
    running(m)
    m.effect("start", 2, token=8 if wrong else 7)


@breaks("I9")
def a_refused_call_changes_it(m: Making, wrong: bool) -> None:
    running(m)
    if wrong:
        m.terminated(2, rows=[], outcome=FAIL, sqlstate="SK004")
    else:
        m.owner("terminate_task", 12, outcome=FAIL, sqlstate="SK004")


@breaks("I9")
def a_refused_member_of_a_batch_changes_it(m: Making, wrong: bool) -> None:
    running(m)
    m.call(
        "settle_and_reserve", 2, rows=[{"verdict": "55P03" if wrong else "ok", "detail": None}],
        pid="w1", task_ids="{" + TASK.replace("-", "") + "}", tokens="{7}", verbs="{terminate}",
    )  # fmt: skip
    m.end(2, "settle_and_reserve", status="terminated")


@breaks("I10")
def it_is_granted_before_its_time(m: Making, wrong: bool) -> None:
    m.made(status="snoozed", run_at=us(5))
    at = 4 if wrong else 6
    m.call("sweep", at, max_tasks="10")
    m.change(at, "sweep", status="starting")


@breaks("I10")
def it_expires_before_its_deadline(m: Making, wrong: bool) -> None:
    m.made(expires_at=us(5))
    at = 4 if wrong else 6
    m.call("sweep", at, max_tasks="10")
    m.end(at, "sweep", status="failed", code="expired", failures=0)


@breaks("I10")
def it_is_decided_by_another_clock(m: Making, wrong: bool) -> None:
    m.made()
    m.granted()
    m.owner("release_lease", 5, rows=[m.outcome("starting")])
    now = us(4.9) if wrong else us(5) + 1_000
    m.change(5, "release_lease", status="starting", attempt=0, now=now, **GIVEN_UP)


@breaks("I11")
def a_snooze_costs_an_attempt(m: Making, wrong: bool) -> None:
    running(m)
    m.owner("snooze_task", 2, rows=[m.outcome("snoozed")], snooze="PT1S")
    m.change(
        2, "snooze_task", status="snoozed", attempt=int(wrong), run_at=us(3) + 1_000, **GIVEN_UP
    )


@breaks("I11")
def one_lost_lease_too_many(m: Making, wrong: bool) -> None:
    m.made(max_losses=0)
    m.granted()
    m.swept(12)
    if wrong:
        m.granted(13, token=8)
    else:
        m.end(12, "sweep", same=True, status="failed", code="lease_lost")


@breaks("I12")
def two_hold_a_key(m: Making, wrong: bool) -> None:
    m.made(key="k")
    m.made(1, CHILD, key="k" if wrong else "l")


def fired(m: Making, task: str, tick: float, at: float) -> None:
    m.row = {}
    instant = f"s {us(tick)}"
    m.change(at, "fire_schedules", **{**NEW, "id": task, "run_at": us(at), "fire": instant})
    row = {"id": task, "name": "s", "generation": 1, "at": us(tick), "extra": False, "now": us(at)}
    m.add("schedule_fires", at, "fire_schedules", None, row)
    answer = {"verdict": "ok", "fired": 1, "task_ids": [task]}
    m.call("fire_schedules", at, rows=[answer], fires="[]")


def scheduled(m: Making) -> None:
    """Every two seconds from 1 on; missed ticks are made up."""
    spec = {"schedule": "@every 2s", "next_at": us(1), "missed": "all", "task": {"topic": "a"}}
    m.call("put_schedule", 0, rows=[{"generation": 1}], name="s", spec=json.dumps(spec))


@breaks("I13")
def a_tick_becomes_two_tasks(m: Making, wrong: bool) -> None:
    scheduled(m)
    fired(m, TASK, 1, 1.5)
    fired(m, CHILD, 1 if wrong else 3, 3.5)


@breaks("I13")
def a_tick_is_none_of_the_schedule(m: Making, wrong: bool) -> None:
    scheduled(m)
    fired(m, TASK, 1, 1.5)
    fired(m, CHILD, 2 if wrong else 3, 3.5)


@breaks("I10")
def a_tick_fires_too_soon(m: Making, wrong: bool) -> None:
    scheduled(m)
    fired(m, TASK, 1, 0.5 if wrong else 1.5)


@breaks("I23")
def a_missed_tick_is_not_made_up(m: Making, wrong: bool) -> None:
    scheduled(m)
    fired(m, TASK, 1, 1.5)
    fired(m, CHILD, 5 if wrong else 3, 5.5)


@breaks("I14")
def a_sleeper_is_woken_before_the_child_is_final(m: Making, wrong: bool) -> None:
    running(m)
    m.owner("wait_for_task", 2, rows=[m.outcome("snoozed")], waits_for=CHILD)
    m.change(
        2, "wait_for_task", status="snoozed", attempt=0, waits_for=CHILD, run_at=us(3600),
        **GIVEN_UP,
    )  # fmt: skip
    parent = m.row
    m.made(3, CHILD)
    m.granted(4, token=8)
    if not wrong:
        m.terminated(5, token=8)
    m.row = parent
    m.call("sweep", 6, max_tasks="10")
    m.change(6, "sweep", status="starting")


@breaks("P1")
def a_cancel_wakes_one_who_does_not_wait_for_that_task(m: Making, wrong: bool) -> None:
    running(m)
    verb, asked = "wait_for_task", {"waits_for": CHILD}
    if wrong:
        verb, asked = "snooze_task", {"snooze": "1"}
    m.owner(verb, 2, rows=[m.outcome("snoozed")], **asked)
    waits_for = None if wrong else CHILD
    m.change(
        2, verb, status="snoozed", attempt=0, waits_for=waits_for, run_at=us(3), **GIVEN_UP
    )  # fmt: skip
    parent = m.row
    m.made(3, CHILD)
    m.call(
        "cancel_task", 4, rows=[m.outcome("failed") | {"outcome": "cancelled"}], task_id=CHILD
    )  # fmt: skip
    m.end(4, "cancel_task", status="failed", code="cancelled")
    m.row = parent
    m.change(4, "cancel_task", same=True, status="starting", waits_for=None)


@breaks("I16")
def a_handler_gets_an_old_checkpoint(m: Making, wrong: bool) -> None:
    running(m)
    m.owner("save_checkpoint", 2, rows=[{"seq": 1, "saved_at": us(2)}], checkpoint="5")
    m.change(2, "save_checkpoint", checkpoint=5, checkpoint_seq=1)
    m.swept(12)
    m.granted(13, token=8, pid="w2", checkpoint=None if wrong else 5)


@breaks("I19")
def what_was_acknowledged_is_not_there(m: Making, wrong: bool) -> None:
    m.made()
    if wrong:
        m.act.changes.clear()


@breaks("I17")
def a_transaction_that_failed_leaves_a_task(m: Making, wrong: bool) -> None:
    m.made()
    m.act.calls[-1].transaction = 1
    m.transaction(1, 0, FAIL if wrong else OK, "producer-1")


@breaks("P1")
def somebody_changes_it_by_hand(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(2)
    if wrong:
        m.act.calls.pop()


@breaks("P1")
def it_is_not_as_the_last_change_left_it(m: Making, wrong: bool) -> None:
    running(m)
    if wrong:
        m.row = {**m.row, "losses": 1}
    m.owner("report_progress", 2, rows=[{"record_ver": 3}], progress="1")
    m.change(2, "report_progress", progress=1)


@breaks("P3")
def an_answer_has_no_row(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(2)
    if wrong:
        del m.act.changes[-2:]


@breaks("P3")
def it_is_granted_to_nobody(m: Making, wrong: bool) -> None:
    m.made()
    m.granted(told=not wrong)


@breaks("P3")
def a_token_is_handed_out_and_not_granted(m: Making, wrong: bool) -> None:
    m.made()
    m.granted()
    m.act.calls[-1].rows[0]["token"] = 8 if wrong else 7


@breaks("I8")
def an_enqueue_is_sent_twice(m: Making, wrong: bool) -> None:
    for outcome, at in ((INFO if wrong else FAIL, 0), (OK, 1)):
        rows = [{"task_id": TASK, "created": True}] if outcome == OK else []
        m.call(
            "create_task", at, outcome=outcome, rows=rows, process="producer-1", topic="a",
            data='{"n": 1}', headers='{"order": "1-1"}',
        )  # fmt: skip
    m.change(1, "create_task", **{**NEW, "run_at": us(1)})


@breaks("I3")
def a_worker_writes_under_the_lease_of_another(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(2)
    m.act.calls[-1].pid = "w2.1" if wrong else "w1"


@breaks("L1")
def a_refusal_that_nothing_explains(m: Making, wrong: bool) -> None:
    running(m)
    m.owner(
        "terminate_task", 5, outcome=FAIL, sqlstate="SK002" if wrong else "SK005",
        token=7 if wrong else 3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "story"), STORIES, ids=[f"{rule}-{story.__name__}" for rule, story in STORIES]
)
def test_it_refuses_what_breaks_a_rule_and_nothing_else(rule: str, story: Story) -> None:
    good, bad = Making(), Making()
    story(good, False)
    assert good.rules() == set()
    story(bad, True)
    assert rule in bad.rules()


# Nothing unknown is ever taken for a no


@pytest.mark.parametrize("ended", [None, 0.002], ids=["never answered", "cut off"])
def test_a_lost_answer_explains_what_came_of_it(ended: float | None) -> None:
    m = Making()
    running(m)
    m.owner("terminate_task", 5, outcome=INFO, took=ended)
    m.end(5.5, "terminate_task", status="terminated")
    m.owner("terminate_task", 6, outcome=FAIL, sqlstate="SK002")
    assert m.rules() == set()


def test_a_lost_answer_may_have_come_to_nothing() -> None:
    m = Making()
    running(m)
    m.owner("terminate_task", 5, outcome=INFO, took=None)
    m.terminated(6)
    assert m.rules() == set()


def test_a_lost_answer_explains_nothing_that_was_there_before() -> None:
    m = Making()
    running(m)
    m.end(5, "terminate_task", status="terminated")
    m.owner("terminate_task", 6, outcome=INFO, took=None)
    assert "P1" in m.rules()


def test_a_refusal_that_took_effect_is_a_fault_even_if_it_came_late() -> None:
    m = Making()
    running(m)
    m.owner("terminate_task", 5, outcome=FAIL, sqlstate="57014")
    m.end(5.5, "terminate_task", status="terminated")
    assert "P1" in m.rules()


def test_an_enqueue_of_unknown_fate_may_turn_up_with_an_id_and_without() -> None:
    for said in ({"task_id": TASK}, {}):
        m = Making()
        m.made()
        m.act.calls[-1] = dataclasses.replace(
            m.act.calls[-1], outcome=INFO, rows=[], ended=None,
            arguments={"topic": "a", "data": '{"n": 1}', **said},
        )  # fmt: skip
        assert m.rules() == set()
        m.act.calls[-1].arguments["topic"] = "b"
        assert ("I8" in m.rules()) is (not said)


def test_a_commit_of_unknown_fate_may_have_happened_or_not() -> None:
    for happened in (True, False):
        m = Making()
        m.made()
        m.act.calls[-1].transaction = 1
        m.transaction(1, 0, INFO, "producer-1")
        if not happened:
            m.act.changes.clear()
        assert m.rules() == set()


def test_a_reserve_that_was_not_answered_explains_a_grant_to_its_caller_alone() -> None:
    for pid, rules in (("w1", set()), ("w2", {"P3"})):
        m = Making()
        m.made()
        m.granted()
        m.act.calls[-1] = dataclasses.replace(m.act.calls[-1], outcome=INFO, rows=[], ended=None)
        m.act.calls[-1].arguments["pid"] = pid
        m.swept(12)
        assert m.rules() == rules


@pytest.mark.parametrize("function", sorted(SWEEPERS))
def test_every_function_that_sweeps_may_take_back_what_is_over(function: str) -> None:
    for at, rules in ((12, set()), (9, {"I1"})):
        m = Making()
        running(m)
        m.swept(at, function)
        assert rules <= m.rules()
        assert rules or not m.rules() & {"I1", "I3", "P1"}


def test_those_that_sweep_are_known(db: str) -> None:
    """By what the functions call: none may be forgotten here."""
    with psycopg.connect(db) as conn:
        found = conn.execute(
            "with recursive calling (name) as ("
            " values ('sweep_once')"
            ' union select p.proname::text collate "default" from pg_proc p join calling c'
            "   on p.prosrc ~ ('sokka[.]' || c.name || '[(]')"
            "  where p.pronamespace = 'sokka'::regnamespace)"
            " select distinct p.proname::text from pg_proc p join calling c on c.name = p.proname"
            "  where p.prosecdef and p.pronamespace = 'sokka'::regnamespace"
        ).fetchall()
    assert {name for (name,) in found} == SWEEPERS


def test_an_answer_that_a_frozen_server_gave_late_breaks_no_rule() -> None:
    m = Making()
    running(m)
    # Judged in time at 10.5, written at 20: it held the row between.
    m.owner("terminate_task", 10.5, rows=[m.outcome("terminated")], took=9.6)
    m.end(20, "terminate_task", status="terminated", now=us(10.6))
    for n in (-1, -2):
        m.act.changes[n] = dataclasses.replace(m.act.changes[n], began=us(10.5))
    assert m.rules() == set()

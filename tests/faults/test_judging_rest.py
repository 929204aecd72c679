"""The judge on what stands beside the tasks, on failovers and the drain, and its verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.chaos.judging.making import CHILD, GIVEN_UP, TASK, Making, us
from tests.faults.chaos.judging.reading import array, duration, instant, uuid
from tests.faults.chaos.judging.verdict import Verdict, judge
from tests.faults.chaos.words import FAIL, INFO, Bite, Left, Life, Loss, Run

Story = Callable[[Making, bool], None]
STORIES: list[tuple[str, Story]] = []


def breaks(rule: str) -> Callable[[Story], Story]:
    def enter(story: Story) -> Story:
        STORIES.append((rule, story))
        return story

    return enter


def running(m: Making) -> None:
    m.made()
    m.granted()


# Guarded writes, locks, steps, items


@breaks("F2")
def a_guarded_write_under_an_old_token(m: Making, wrong: bool) -> None:
    running(m)
    m.add("guarded", 2, "", None, {"id": TASK, "token": 6 if wrong else 7})


@breaks("F1")
def a_lease_ends_while_its_fence_is_open(m: Making, wrong: bool) -> None:
    running(m)
    write = m.add("guarded", 10.5, "", None, {"id": TASK, "token": 7})
    m.swept(12)
    if wrong:
        m.act.changes.append(dataclasses.replace(write, pos=len(m.act.changes) + 1))


def lock(m: Making, at: float, function: str, old: Any, **columns: Any) -> dict[str, Any]:
    new = {**(old or {}), "id": "k", **columns}
    m.add("locks", at, function, old, new)
    return new


@breaks("I1")
def a_live_lock_is_taken(m: Making, wrong: bool) -> None:
    held = lock(m, 1, "try_lock", None, owner="a", token=1, until=us(11), now=us(1))
    at = 10 if wrong else 12
    lock(m, at, "try_lock", held, owner="b", token=2, until=us(30), now=us(at))


@breaks("I2")
def the_token_of_a_lock_falls(m: Making, wrong: bool) -> None:
    held = lock(m, 1, "try_lock", None, owner="a", token=5, until=us(11), now=us(1))
    token = 4 if wrong else 6
    lock(m, 12, "try_lock", held, owner="b", token=token, until=us(30), now=us(12))


@breaks("I4")
def a_renewal_revives_a_lock(m: Making, wrong: bool) -> None:
    held = lock(m, 1, "try_lock", None, owner="a", token=5, until=us(11), now=us(1))
    lock(m, 12 if wrong else 10, "renew_lock", held, until=us(30))


@breaks("S4")
def a_step_is_recorded_twice(m: Making, wrong: bool) -> None:
    running(m)
    for name in ("one", "one" if wrong else "two"):
        m.add("task_steps", 2, "record_step", None, {"id": TASK, "name": name, "token": 7})


@breaks("I3")
def a_step_under_an_old_token(m: Making, wrong: bool) -> None:
    running(m)
    row = {"id": TASK, "name": "one", "token": 6 if wrong else 7}
    m.add("task_steps", 2, "record_step", None, row)


@breaks("S1")
def an_item_is_left_out(m: Making, wrong: bool) -> None:
    running(m)
    for seq in (1, 3 if wrong else 2):
        m.add("stream_items", 2, "append_stream", None, {"id": TASK, "seq": seq, "token": 7})


def a_join(m: Making) -> dict[str, Any]:
    """One child, ended well; the join counts."""
    m.made(0, CHILD, parent=TASK, candidate=1)
    m.granted(1)
    m.terminated(2)
    return {
        "id": TASK, "policy": "settled", "needed": 1, "total": 1, "done": 0, "succeeded": 0,
        "failed": 0, "in_flight": 1, "max_running": None, "state": "open", "outcome": None,
        "deadline_at": None,
    }  # fmt: skip


@breaks("I14")
def a_join_counts_a_child_twice(m: Making, wrong: bool) -> None:
    join = a_join(m)
    counted = {"done": 2 if wrong else 1, "succeeded": 1, "state": "decided"}
    m.add("joins", 2, "terminate_task", join, {**join, **counted, "outcome": "satisfied"})


# Effects


@breaks("E1")
def the_fenced_store_goes_back(m: Making, wrong: bool) -> None:
    running(m)
    m.swept(12)
    m.granted(13, token=8, pid="w2")
    for token in (8, 7) if wrong else (7, 8):
        m.effect("fenced", 14, token)


# Failovers


def failed_over(m: Making, mode: str, lost_from: int, at: float = 5.0) -> Loss:
    """A failover that lost the changes from this place on."""
    lost = m.act.changes[lost_from:]
    del m.act.changes[lost_from:]
    commits = {change.xid: f"0/{0x2000 + change.pos:X}" for change in lost}
    loss = Loss(mode, "0/2000", round(at * 1e9), commits, lost)
    m.act.losses.append(loss)
    return loss


@breaks("I19")
def a_synchronous_failover_loses_what_was_acknowledged(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(4)
    failed_over(m, "sync", 2)
    if not wrong:
        call = m.act.calls[-1]
        m.act.calls[-1] = dataclasses.replace(call, outcome=INFO, rows=[], ended=None)


@breaks("F9")
def an_asynchronous_failover_loses_what_was_replayed(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(4)
    loss = failed_over(m, "async", 2)
    if wrong:
        loss.switch_lsn = "0/3000"


@breaks("I19")
def what_no_failover_lost_is_missing(m: Making, wrong: bool) -> None:
    m.made()
    failed_over(m, "async", 0)
    if wrong:
        m.act.losses[0].lost_changes.clear()


@breaks("I2")
def a_token_of_the_lost_tail_comes_again(m: Making, wrong: bool) -> None:
    m.made()
    m.granted(4, token=9)
    failed_over(m, "async", 1)
    m.row = m.act.changes[0].row | {}
    m.granted(6, token=8 if wrong else 10, pid="w2")


@breaks("L1")
def nothing_of_it_was_lost_and_still_no_order(m: Making, wrong: bool) -> None:
    running(m)
    m.owner("extend_lease", 3, outcome=FAIL, sqlstate="SK002" if wrong else "55P03")


# The drain


@breaks("I19")
def an_acknowledged_task_is_not_over(m: Making, wrong: bool) -> None:
    running(m)
    if wrong:
        m.act.after.unfinished = [{"task_id": TASK, "status": "running"}]


@breaks("I19")
def an_acknowledged_task_is_not_in_the_tables(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(2)
    m.row = {}
    m.made(3, CHILD)
    m.granted(4, token=8)
    m.terminated(5, token=8)
    m.act.after.present = [CHILD] if wrong else [CHILD, TASK]


@breaks("P1")
def a_task_is_in_the_tables_that_nobody_saw(m: Making, wrong: bool) -> None:
    running(m)
    m.terminated(2)
    m.act.after.present = [TASK, CHILD] if wrong else [TASK]


@breaks("I20")
def a_row_that_nobody_can_take(m: Making, wrong: bool) -> None:
    m.act.after.stuck = [{"task_id": TASK}] if wrong else []


@breaks("I21")
def a_session_is_left(m: Making, wrong: bool) -> None:
    m.act.after.left = [Left("a session", "w1")] if wrong else []


@breaks("I22")
def a_worker_ends_by_itself(m: Making, wrong: bool) -> None:
    m.act.after.lives = [
        Life("w1.1", "direct", 1, 0, ended=5, asked=not wrong, code=1),
        Life("w1.2", "direct", 2, 6, reserved_after_ns=9),
    ]


@breaks("I22")
def a_worker_does_not_come_back(m: Making, wrong: bool) -> None:
    m.act.after.lives = [Life("w1.1", "direct", 1, 0, reserved_after_ns=None if wrong else 9)]


@breaks("I24")
def more_connections_than_the_pool_may_have(m: Making, wrong: bool) -> None:
    m.act.after.connections_max = {"w1": 6 if wrong else 5}
    m.act.after.connections_bound = {"w1": 5}


@pytest.mark.parametrize(
    ("rule", "story"), STORIES, ids=[f"{rule}-{story.__name__}" for rule, story in STORIES]
)
def test_it_refuses_what_breaks_a_rule_and_nothing_else(rule: str, story: Story) -> None:
    good, bad = Making(), Making()
    story(good, False)
    assert good.rules() == set()
    story(bad, True)
    assert rule in bad.rules()


# The verdict


def eventful() -> Making:
    """All that a run must have seen: a lost enqueue, an overlap, a stale write refused."""
    m = Making()
    running(m)
    m.act.calls[0] = dataclasses.replace(m.act.calls[0], outcome=INFO, rows=[], ended=None)
    m.effect("start", 1.1)
    m.swept(12)
    m.granted(13, token=8, pid="w2")
    m.effect("start", 13.1, token=8)
    m.effect("end", 14)
    m.owner("terminate_task", 14.1, outcome=FAIL, sqlstate="SK003")
    m.act.bites = [Bite("F2", 1, "a pause")]
    return m


def verdict(m: Making) -> Verdict:
    plan = {"acts": [{"name": "made", "faults": ["F2"]}]}
    return judge(Run(1, 60.0, plan, {}, [m.act]))


def test_a_run_that_saw_its_faults_and_no_broken_rule_passes() -> None:
    found = verdict(eventful())
    assert (found.verdict, found.why, found.broken) == ("pass", [], [])
    assert found.counts["overlapping_effects"] == found.counts["refused_stale_writes"] == 1
    assert (found.counts["recovered"], found.counts["infos"]) == (1, 1)
    assert (found.counts["started"], found.counts["duplicated_starts"]) == (1, 1)


@pytest.mark.parametrize(
    ("why", "spoil"),
    [
        ("F2 had no effect", lambda m: setattr(m.act.bites[0], "count", 0)),
        ("F2 was planned, and nothing is known of it", lambda m: m.act.bites.clear()),
        ("no stale write was refused", lambda m: m.act.calls.pop()),
        ("no two attempts were at the same work at once", lambda m: m.act.effects.pop()),
    ],
)
def test_a_run_that_shows_too_little_is_unknown(
    why: str, spoil: Callable[[Making], object]
) -> None:
    m = eventful()
    spoil(m)
    found = verdict(m)
    assert found.verdict == "unknown"
    assert why in found.why


def test_a_broken_rule_is_told_with_the_story_of_its_task() -> None:
    m = eventful()
    m.owner("terminate_task", 15, rows=[m.outcome("terminated")])
    m.end(15, "terminate_task", status="terminated")
    found = verdict(m)
    assert found.verdict == "FAIL"
    assert {fault.rule for fault in found.broken} == {"I3", "P3", "L1"}
    story = "\n".join(found.story)
    assert "token 7 -> None" in story and "terminate_task" in story
    assert "broken: I3" in "\n".join(found.lines())


def test_the_forms_in_which_values_travel_are_read() -> None:
    assert uuid(TASK.replace("-", "").upper()) == TASK
    assert array("{a,b}") == ["a", "b"] and array("{}") == array(None) == []
    assert [duration(t) for t in ("PT1.500000S", "PT30S", "10 seconds", None)] == [
        1_500_000, 30_000_000, 10_000_000, None,
    ]  # fmt: skip
    same = "2026-11-30T08:00:00.000001+00:00", "2026-11-30T09:30:00.000001+01:30"
    assert instant(same[0]) == instant(same[1]) == 1_796_025_600_000_001
    assert instant(5) == 5 and instant(None) == 0


def test_a_retry_puts_it_to_sleep_and_a_wake_up_by_anybody_is_in_order() -> None:
    m = Making()
    m.made(max_attempts=3)
    m.granted()
    m.owner("retry_task", 2, rows=[m.outcome("snoozed")], error='{"code": "x"}', delay=None)
    m.change(
        2, "retry_task", status="snoozed", failures=1, run_at=us(3) + 1_000, code="x", **GIVEN_UP
    )
    m.call("reserve_tasks", 4, pid="w2", topics="{a}", max_tasks="1", lease="PT10S", rows=[])
    m.change(4, "reserve_tasks", status="starting")
    assert m.rules() == set()

"""look_around: whether there is work, without taking any; a sweep where nobody swept."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue, Row, go_on_at_every_glance
from tests.sql.test_reserve import fill, take

Another = Callable[..., Queue]
ZEROS = {"woken": 0, "taken_back": 0, "expired": 0, "failed_lost": 0, "sleepers": 0}


def look(queue: Queue, *topics: str, within: str = "1 hour") -> Row:
    """A look that does not sweep, unless told to."""
    return queue.one("look_around", topics=list(topics or ("t",)), within=within)


@pytest.fixture
def swept(fresh: Queue) -> Queue:
    fresh.one("sweep")
    return fresh


def test_an_empty_queue_shows_nothing(swept: Queue) -> None:
    assert vars(look(swept)) == {"ready": False, "swept": False, "next_due_at": None} | ZEROS


def test_look_for_work_says_the_same_without_the_sleepers(swept: Queue, clock: Clock) -> None:
    clock.stop()
    swept.create("t")
    swept.leased("lost", lease="1 s")
    clock.advance("1 s")
    before = swept.one("look_for_work", topics=["t"], within="1 hour")
    assert vars(before) | {"sleepers": 0} == vars(look(swept))
    with swept.connection.transaction(force_rollback=True):
        found = swept.one("look_for_work", topics=["t"], within="1 ms")
        assert (found.ready, found.swept, found.taken_back) == (True, True, 1)


def test_it_counts_those_who_sleep_on_its_topics_once_each(swept: Queue, clock: Clock) -> None:
    clock.stop()
    for pid, topics in (("a", ["t", "u"]), ("b", ["t"]), ("c", ["v"])):
        assert swept.value("select sokka.mark_idle(%s, %s, '1 minute')", topics, pid)
    assert look(swept, "t", "u").sleepers == 2
    assert look(swept, "v").sleepers == 1
    assert look(swept, "w").sleepers == 0
    swept.execute("update sokka.settings set notify = false")
    assert look(swept, "t", "u").sleepers == 0
    swept.execute("update sokka.settings set notify = true")
    clock.advance("1 minute")
    assert look(swept, "t", "u").sleepers == 0


def test_a_ready_task_is_seen_and_stays_as_it_is(swept: Queue) -> None:
    task = swept.create("t")
    before = swept.image(task)
    assert look(swept).ready
    assert look(swept).ready
    assert swept.image(task) == before
    assert not look(swept, "another").ready


@pytest.mark.parametrize("priority", [0, 5, 9])
def test_it_is_seen_whatever_its_priority(swept: Queue, priority: int) -> None:
    swept.create("t", priority=priority)
    assert look(swept).ready


@pytest.mark.parametrize("status", ["running", "snoozed", "failed", "terminated"])
def test_a_task_in_any_other_status_is_not(swept: Queue, status: str) -> None:
    if status == "snoozed":
        swept.create("t", run_at="2100-01-01")
    else:
        lease = swept.leased("t")
        if status == "failed":
            swept.verb("fail_task", lease, error=states.ERROR)
        elif status == "terminated":
            swept.verb("terminate_task", lease)
    assert {row.status for row in swept.rows("select * from sokka.all_tasks")} == {status}
    assert not look(swept).ready


def test_a_task_that_comes_back_is_seen_again(swept: Queue) -> None:
    lease = swept.leased("t")
    assert not look(swept).ready
    swept.verb("release_lease", lease)
    assert look(swept).ready


def test_one_of_several_topics_is_enough(swept: Queue) -> None:
    swept.create("c")
    assert look(swept, "a", "b", "c").ready
    assert not look(swept, "a", "b").ready


def test_every_topic_is_checked_also_behind_one_with_work(swept: Queue) -> None:
    swept.create("a")
    for wrong in ("", "x" * 201, None):
        refused = swept.refused("look_around", topics=["a", wrong], within="1 hour")
        assert refused.sqlstate == "22023"


@pytest.mark.parametrize("within", ["1 hour 1 s", "1 year"])
def test_a_long_time_without_a_sweep_may_be_named(swept: Queue, within: str) -> None:
    assert not look(swept, within=within).swept


@pytest.mark.parametrize(("step", "noted"), [("2 ms", True), ("1 us", False)])
def test_a_look_that_was_slow_is_noted_and_a_quick_one_is_not(
    swept: Queue, step: str, noted: bool
) -> None:
    go_on_at_every_glance(swept, step)
    assert not look(swept).ready
    key = swept.value("select sokka.topic_hash('t')")
    assert (swept.value("select sokka.scan_hint(%s) ->> 'took'", key) is not None) == noted


def test_a_sweep_that_was_slow_makes_no_look_slow(swept: Queue, clock: Clock) -> None:
    """The hints of sweeps stand beside those of topics."""
    clock.stop()  # no look takes any time
    swept.execute("select sokka.set_scan_hint('wake', '{\"at\": 1, \"from\": 2, \"took\": 9}')")
    with swept.connection.transaction(force_rollback=True):
        swept.execute("alter function sokka.sees_ready rename to closed")
        assert not look(swept).ready
    slow = Jsonb({"p": "{0,0,0,0,0,0,0,0,0,0}", "at": 1, "took": 9})
    swept.execute("select sokka.set_scan_hint(sokka.topic_hash('t'), %s)", slow)
    with swept.connection.transaction(force_rollback=True):
        swept.execute("alter function sokka.sees_ready rename to closed")
        with pytest.raises(psycopg.errors.UndefinedFunction):
            look(swept)


def test_a_paused_topic_shows_nothing_and_hides_no_other(swept: Queue) -> None:
    swept.create("t")
    swept.call("pause_topic", topic="t")
    assert not look(swept, "t", "u").ready
    swept.create("u")
    assert look(swept, "t", "u").ready
    swept.call("resume_topic", topic="t")
    assert look(swept).ready


def test_a_task_past_its_deadline_is_not_ready(swept: Queue, clock: Clock) -> None:
    now = clock.stop()
    swept.create("t", expires_at=now + timedelta(seconds=1))
    assert look(swept).ready
    clock.advance("1 s")
    assert not look(swept).ready
    swept.create("t")
    assert look(swept).ready


def test_it_sees_what_another_is_claiming_and_what_that_one_leaves(
    swept: Queue, another: Another
) -> None:
    swept.create("t")
    other = another(autocommit=False)
    take(other, ["t"], 1)
    look(swept)
    other.connection.rollback()
    assert look(swept).ready


def test_it_sweeps_where_nobody_has_within_the_time(swept: Queue, clock: Clock) -> None:
    clock.stop()
    swept.leased("t", lease="2 s")
    clock.advance("1 s")  # one that follows the last within 100 ms leaves no mark
    swept.one("sweep")
    clock.advance("1.999 s")
    assert vars(look(swept, within="2 s")) == {
        "ready": False, "swept": False, "next_due_at": None,
    } | ZEROS  # fmt: skip
    clock.advance("0.002 s")
    assert vars(look(swept, within="2 s")) == {
        "ready": True, "swept": True, "next_due_at": None,
    } | ZEROS | {"taken_back": 1}  # fmt: skip
    assert not look(swept, within="2 s").swept
    assert look(swept, "u", within="2 s").ready is False


def test_it_says_all_that_its_sweep_did_and_when_the_next_is_due(
    swept: Queue, clock: Clock
) -> None:
    now = clock.stop()
    swept.create("later", run_at=now + timedelta(seconds=1))
    swept.leased("lost", lease="1 s")
    swept.leased("poison", lease="1 s", max_losses=0)
    swept.leased("kept", lease="9 s")
    swept.create("expired", expires_at=now + timedelta(seconds=1))
    clock.advance("1 s")
    found = look(swept, "t", within="100 ms")
    assert vars(found) == {
        "ready": False, "swept": True, "woken": 1, "taken_back": 1, "expired": 1,
        "failed_lost": 1, "next_due_at": now + timedelta(seconds=9), "sleepers": 0,
    }  # fmt: skip


def test_a_clock_that_was_set_back_does_not_stop_the_sweep(swept: Queue, clock: Clock) -> None:
    clock.stop()
    swept.one("sweep")
    clock.advance("-1 minute")
    assert look(swept).swept


def test_a_snoozed_task_is_announced_and_woken_when_it_is_due(swept: Queue, clock: Clock) -> None:
    """Also where nobody knew of it at the last sweep, and the next is far."""
    clock.stop()
    clock.advance("1 s")
    swept.one("sweep")
    now = clock.now()
    due = now + timedelta(milliseconds=300)
    swept.create("t", run_at=due)
    swept.create("t", run_at=now + timedelta(milliseconds=400))
    swept.create("t", run_at=now + timedelta(hours=1))
    found = look(swept)
    assert (found.ready, found.swept, found.next_due_at) == (False, False, due)
    clock.advance("0.299999 s")
    assert not look(swept).swept
    clock.advance("0.000001 s")
    found = look(swept)
    assert (found.ready, found.swept, found.woken) == (True, True, 1)
    assert found.next_due_at == now + timedelta(milliseconds=400)
    # The sweep has been there: no second one for the same task.
    assert not look(swept).swept


def test_tasks_that_are_due_late_or_wait_for_others_are_not_announced(
    swept: Queue, clock: Clock
) -> None:
    now = clock.stop()
    swept.create("t", run_at=now + timedelta(seconds=1, microseconds=1))
    swept.create("t", run_at="9998-12-31")
    assert look(swept).next_due_at is None


def test_one_who_finds_another_sweeping_goes_on(swept: Queue, another: Another) -> None:
    swept.create("t")
    other = another(autocommit=False)
    other.value("select pg_advisory_lock('sokka.settings'::regclass::oid::int, 1) is null")
    found = look(swept, within="1 ms")
    assert (found.ready, found.swept) == (True, True)
    assert found.next_due_at is not None


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_an_old_snapshot_is_refused(fresh: Queue, another: Another, isolation: str) -> None:
    caller = another(autocommit=False)
    caller.execute(f"set transaction isolation level {isolation}")
    assert caller.refused("look_around", topics=["t"], within="1 s").sqlstate == "25001"


def read_entries(queue: Queue, index: str) -> int:
    """Entries of an index that this transaction has read so far."""
    queue.value("select pg_stat_clear_snapshot()")
    return int(
        queue.value("select pg_stat_get_xact_tuples_returned(%s::regclass)", f"sokka.{index}")
    )


def hint(queue: Queue, topic: str, **changed: Any) -> None:
    """The session's hint for a topic, as a slow full scan at this moment leaves it."""
    key = queue.value("select sokka.topic_hash(%s)", topic)
    found = {
        "p": "{" + ",".join([str(queue.value("select last_value from sokka.queue_pos_seq"))] * 10)
        + "}",
        "at": float(queue.value("select extract(epoch from sokka.clock())")),
        "took": 0.5,
    } | changed  # fmt: skip
    queue.value("select set_config('skpg_hint.sokka', %s, false)", json.dumps({key: found}))


def leave_dead_entries(queue: Queue, another: Another, count: int) -> Queue:
    """A session whose snapshot keeps the index entries of tasks that have gone."""
    fill(queue, "t", count)
    old = another(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    old.value("select count(*) from sokka.tasks")
    leases = take(queue, ["t"], count)
    queue.call(
        "terminate_tasks", pid="w1", task_ids=[lease.task_id for lease in leases],
        tokens=[lease.token for lease in leases],
    )  # fmt: skip
    return old


def test_behind_a_pinned_snapshot_a_look_walks_the_dead_entries_now_and_then_only(
    swept: Queue, clock: Clock, another: Another
) -> None:
    clock.stop()
    late = another(autocommit=False)
    late.create("t")
    leave_dead_entries(swept, another, 400)
    hint(swept, "t")
    with swept.connection.transaction():
        before = read_entries(swept, "tasks_ready")
        for _ in range(10):
            assert not look(swept).ready
        assert read_entries(swept, "tasks_ready") - before <= 10
    late.connection.commit()
    clock.advance("9.9 s")  # 20 times the length of the last full look have not passed
    assert not look(swept).ready
    swept.create("t", priority=9)
    assert look(swept).ready
    swept.verb("terminate_task", swept.reserve("t"))
    clock.advance("0.2 s")
    assert look(swept).ready  # from the left end: the one that committed late
    assert [lease.pid for lease in take(swept, ["t"], 1)] == ["w1"]


def test_a_full_look_that_took_long_is_remembered_and_a_quick_one_is_forgotten(
    swept: Queue, clock: Clock
) -> None:
    clock.stop()
    hint(swept, "t", at=0)
    assert not look(swept).ready
    key = swept.value("select sokka.topic_hash('t')")
    found = swept.value("select sokka.scan_hint(%s)", key)
    assert found["took"] < 0.002
    assert found["at"] > 0
    swept.create("t")
    assert look(swept).ready


def test_snoozed_tasks_that_were_woken_leave_nothing_to_walk_over(
    swept: Queue, clock: Clock, another: Another
) -> None:
    now = clock.stop()
    for _ in range(200):
        swept.create("t", run_at=now + timedelta(seconds=1))
    old = another(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    old.value("select count(*) from sokka.tasks")
    clock.advance("2 s")
    assert swept.one("sweep").woken == 200
    with swept.connection.transaction():
        before = read_entries(swept, "tasks_wake")
        for _ in range(10):
            look(swept)
        assert read_entries(swept, "tasks_wake") - before <= 10


@pytest.mark.parametrize("garbage", ["", "x", "{", "[1]", "7", "null", '"text"', '{"a": 1}'])
def test_a_hint_that_cannot_be_read_is_no_hint(swept: Queue, garbage: str) -> None:
    swept.create("t")
    swept.value("select set_config('skpg_hint.sokka', %s, false)", garbage)
    assert look(swept).ready

"""Several schedulers at once, and what happens to a schedule while one of them is at work."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.races.ordering import Session, accepted, answer, refused
from tests.sql.calling import Queue, Row
from tests.sql.scheduling import fire_of, put, schedule, specification, tasks_of

Sessions = Callable[..., Session]


def fire(queue: Queue, *due: Row, **said: Any) -> list[Row]:
    return queue.call("fire_schedules", fires=Jsonb([fire_of(each, **said) for each in due]))


def test_three_schedulers_make_each_of_many_ticks_a_task_once(queue: Queue, db: str) -> None:
    for number in range(300):
        put(queue, f"s{number}")

    def run(_: int) -> int:
        made = 0
        with psycopg.connect(db) as connection:
            mine = Queue(connection)
            while due := mine.call("due_schedules", limit=7):
                verdicts = fire(mine, *due)
                assert {verdict.verdict for verdict in verdicts} == {"ok"}
                made += sum(verdict.fired for verdict in verdicts)
                connection.commit()
        return made

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(run, range(3))) == 300
    assert queue.value("select count(*) from sokka.tasks") == 300
    assert queue.value(
        "select count(distinct headers ->> 'sokka-schedule') from sokka.all_tasks"
    ) == 300
    assert queue.rows("select from sokka.all_schedules where runs <> 1") == []


def test_what_one_scheduler_is_at_work_on_the_others_pass_by(
    queue: Queue, opened: Session, other: Session
) -> None:
    for name in "abc":
        put(queue, name)
    first = opened.call("due_schedules", limit=2)
    rest = other.call("due_schedules")
    assert len(first) == 2
    assert {row.name for row in first} | {row.name for row in rest} == set("abc")
    assert len(rest) == 1
    # One of theirs makes nobody wait for the time of the next.
    assert queue.one("next_schedule_at").look_at <= queue.value("select sokka.clock()")


def test_of_twins_with_the_same_ticks_one_fires(
    queue: Queue, opened: Session, other: Session
) -> None:
    put(queue, "s")
    (due,) = queue.call("due_schedules")
    assert fire(opened, due)[0].verdict == "ok"
    twin = other.begin("fire_schedules", fires=Jsonb([fire_of(due)]))
    other.blocked_by(opened)
    opened.commit()
    assert (accepted(twin).verdict, accepted(twin).fired) == ("SK007", 0)
    assert len(tasks_of(queue, "s")) == 1
    assert schedule(queue, "s").runs == 1


def test_two_that_fire_the_same_schedules_in_opposite_orders_do_not_deadlock(
    queue: Queue, session: Sessions
) -> None:
    for name in "abcdefgh":
        put(queue, name)
    due = queue.call("due_schedules")
    holder = session(autocommit=False)
    holder.execute("select from sokka.schedules for update")
    first, second = session(), session()
    there = first.begin("fire_schedules", fires=Jsonb([fire_of(each) for each in due]))
    first.blocked_by(holder)
    back = second.begin("fire_schedules", fires=Jsonb([fire_of(each) for each in due[::-1]]))
    second.blocked_by(first)
    holder.rollback()
    answers = [answer(there), answer(back)]
    assert all(isinstance(found, list) for found in answers), answers
    verdicts = [[row.verdict for row in found] for found in answers]
    assert verdicts == [["ok"] * 8, ["SK007"] * 8]


def test_a_scheduler_that_dies_between_looking_and_firing_leaves_the_tick_to_others(
    queue: Queue, opened: Session, other: Session
) -> None:
    put(queue, "s")
    (due,) = opened.call("due_schedules")
    assert other.call("due_schedules") == []
    queue.value("select pg_terminate_backend(%s)", opened.pid)
    queue.until("select not exists (select from pg_stat_activity where pid = %s)", opened.pid)
    (again,) = other.call("due_schedules")
    assert (again.due_at, again.generation) == (due.due_at, due.generation)
    assert fire(other, again)[0].fired == 1
    assert len(tasks_of(queue, "s")) == 1


def test_a_scheduler_that_dies_before_its_commit_has_fired_nothing(
    queue: Queue, opened: Session, other: Session
) -> None:
    put(queue, "s")
    assert fire(opened, *opened.call("due_schedules"))[0].fired == 1
    queue.value("select pg_terminate_backend(%s)", opened.pid)
    queue.until("select not exists (select from pg_stat_activity where pid = %s)", opened.pid)
    assert tasks_of(queue, "s") == []
    assert fire(other, *other.call("due_schedules"))[0].fired == 1
    assert len(tasks_of(queue, "s")) == 1


MEANWHILE: dict[str, Callable[[Queue], Any]] = {
    "deleted": lambda queue: queue.call("delete_schedule", name="s"),
    "paused": lambda queue: queue.call("pause_schedule", name="s"),
    "overwritten": lambda queue: put(queue, "s", description="another"),
    "deleted and made anew": lambda queue: (
        queue.call("delete_schedule", name="s"), put(queue, "s"),
    ),
    "fired": lambda queue: fire(queue, *queue.call("due_schedules")),
}  # fmt: skip


@pytest.mark.parametrize("what", MEANWHILE)
def test_a_schedule_that_changed_between_looking_and_firing_does_not_fire(
    queue: Queue, other: Session, what: str
) -> None:
    """As when the transaction that looked has ended."""
    put(queue, "s")
    (due,) = queue.call("due_schedules")
    MEANWHILE[what](queue)
    before = queue.rows("select * from sokka.schedules")
    (verdict,) = fire(other, due)
    assert (verdict.verdict, verdict.fired) == ("SK007", 0)
    assert queue.rows("select * from sokka.schedules") == before
    assert len(tasks_of(queue, "s")) == (1 if what == "fired" else 0)


@pytest.mark.parametrize("what", ["deleted", "paused", "overwritten"])
def test_who_changes_a_schedule_waits_for_the_scheduler_at_work_on_it(
    queue: Queue, opened: Session, other: Session, what: str
) -> None:
    put(queue, "s")
    due = opened.call("due_schedules")
    call = other.begin_act(lambda: MEANWHILE[what](other))
    other.blocked_by(opened)
    assert fire(opened, *due)[0].verdict == "ok"
    opened.commit()
    answer(call)
    assert len(tasks_of(queue, "s")) == 1
    found = schedule(queue, "s")
    if what == "deleted":
        assert found is None
    elif what == "paused":
        assert (found.state, found.runs) == ("paused", 1)
    else:
        # A new generation has ticks of its own.
        assert (found.generation, found.runs, found.state) == (2, 0, "active")


@pytest.mark.parametrize("what", ["deleted", "paused", "overwritten"])
def test_the_wait_for_a_scheduler_is_bounded(
    queue: Queue, opened: Session, other: Session, what: str
) -> None:
    put(queue, "s")
    opened.call("due_schedules")
    call = other.begin_act(lambda: MEANWHILE[what](other))
    assert refused(call) == "55P03"


def test_two_that_put_the_same_schedule_at_once_make_it_once(
    queue: Queue, opened: Session, other: Session
) -> None:
    assert put(opened, "s").created
    second = other.begin("put_schedule", name="s", spec=Jsonb(specification()))
    other.blocked_by(opened)
    opened.commit()
    found = accepted(second)
    assert (found.created, found.changed, found.generation) == (False, False, 1)


def test_two_that_change_a_schedule_at_once_change_it_one_after_the_other(
    queue: Queue, opened: Session, other: Session
) -> None:
    put(queue, "s")
    assert put(opened, "s", description="first").generation == 2
    second = other.begin("put_schedule", name="s", spec=Jsonb(specification(description="second")))
    other.blocked_by(opened)
    opened.commit()
    found = accepted(second)
    assert (found.changed, found.generation) == (True, 3)
    assert schedule(queue, "s").description == "second"


def begin_both(first: Session, second: Session, holder: Session, acts: Any) -> list[Any]:
    """Two acts that wait in this order for the scheduler at work on the schedule."""
    calls = []
    for caller, act in zip((first, second), acts, strict=True):
        calls.append(caller.begin_act(lambda caller=caller, act=act: act(caller)))
        caller.blocked_by(holder if caller is first else first)
    holder.commit()
    return [answer(call) for call in calls]


def test_a_schedule_that_is_deleted_while_it_is_put_is_made_anew(
    queue: Queue, opened: Session, session: Sessions
) -> None:
    put(queue, "s")
    opened.call("due_schedules")
    deleted, made = begin_both(
        session(), session(), opened,
        (MEANWHILE["deleted"], lambda caller: put(caller, "s", description="another")),
    )  # fmt: skip
    assert deleted[0].deleted
    assert made.created, made
    assert schedule(queue, "s").description == "another"


@pytest.mark.parametrize("act", ["pause_schedule", "trigger_schedule", "delete_schedule"])
def test_a_schedule_that_is_changed_meanwhile_is_still_there(
    queue: Queue, opened: Session, session: Sessions, act: str
) -> None:
    put(queue, "s")
    opened.call("due_schedules")
    changed, after = begin_both(
        session(), session(), opened,
        (MEANWHILE["overwritten"], lambda caller: caller.call(act, name="s")),
    )  # fmt: skip
    assert changed.generation == 2
    assert isinstance(after, list), after
    found = schedule(queue, "s")
    if act == "delete_schedule":
        assert after[0].deleted
        assert found is None
    else:
        assert found.state == ("paused" if act == "pause_schedule" else "active")


def test_a_schedule_goes_on_from_where_another_scheduler_left_it(
    queue: Queue, opened: Session, other: Session
) -> None:
    put(queue, "s", missed="all")
    (due,) = opened.call("due_schedules")
    later = queue.value("select sokka.clock() - interval '1 second'")
    fire(opened, due, next_at=later.isoformat())
    opened.commit()
    (next_due,) = other.call("due_schedules")
    assert next_due.due_at == later
    assert fire(other, next_due)[0].verdict == "ok"
    assert [task.fire_at for task in queue.rows(
        "select fire_at from sokka.fired_ticks order by fire_at"
    )] == [due.due_at, next_due.due_at]  # fmt: skip

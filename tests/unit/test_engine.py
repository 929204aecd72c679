from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import pytest

from sokka_pg.engine import Engine, EngineSettings, words
from sokka_pg.engine.backoff import Backoff
from sokka_pg.engine.desk import SECOND_MOST
from sokka_pg.engine.words import Answer, Reason, Settlement, Verb
from sokka_pg.model import LeasedTask
from tests.unit.tasks_made_up import leased

C = TypeVar("C")


@dataclass
class Desk:
    """An engine with a clock that the test moves."""

    engine: Engine
    now: float = 1000.0
    said: list[words.Command] = field(default_factory=list)

    def tell(self, *events: words.Input) -> list[words.Command]:
        self.said = self.engine.step(events, self.now)
        return self.said

    def later(self, seconds: float) -> list[words.Command]:
        self.now += seconds
        return self.tell(words.Tick())

    def only(self, kind: type[C]) -> C:
        found = self.all(kind)
        assert len(found) == 1, self.said
        return found[0]

    def all(self, kind: type[C]) -> list[C]:
        return [command for command in self.said if isinstance(command, kind)]

    def answer(self, leases: Sequence[LeasedTask] = (), *answers: Answer) -> list[words.Command]:
        return self.tell(words.Exchanged(self.now, answers, leases))

    def nothing(self) -> list[words.Command]:
        """The answer that there is no work, to whatever asked for some."""
        return self.looked() if self.all(words.Look) else self.answer([])

    def looked(
        self, ready: bool = False, *, swept: bool = False, readied: int = 0,
        due_in_s: float | None = None, sleepers: int = 0,
    ) -> list[words.Command]:
        return self.tell(words.Looked(ready, swept, readied, due_in_s, sleepers))

    def swept(self, readied: int = 0, due_in_s: float | None = None) -> list[words.Command]:
        """The answer of a sweep, to whatever made one."""
        if self.all(words.Look):
            return self.looked(swept=True, readied=readied, ready=readied > 0, due_in_s=due_in_s)
        return self.tell(words.SweepDone(readied, due_in_s))

    def second(self, leases: Sequence[LeasedTask] = (), *answers: Answer) -> list[words.Command]:
        """The answer to the second exchange under way."""
        return self.tell(words.Exchanged(self.now, answers, leases, second=True))

    def end(
        self, task: LeasedTask, verb: Verb = Verb.TERMINATE, took_s: float = 1.0
    ) -> words.Ended:
        return words.Ended(task.token, Settlement(task, verb, duration_s=took_s))


def desk(slots: int = 2, limits: dict[str, int] | None = None, **settings: float) -> Desk:
    chosen = EngineSettings(limits or {"mail": slots}, slots, **settings)  # type: ignore[arg-type]
    made = Desk(Engine(chosen, lambda task: task.kind == "send", Backoff(roll=lambda: 1.0)))
    made.tell(words.Tick())
    made.only(words.Sweep)
    made.tell(words.SweepDone(0, None))
    return made


def gap(it: Desk) -> float:
    """Until it makes a call by itself."""
    wake = it.engine.wake_at(it.now)
    assert wake is not None
    return wake - it.now


def until(it: Desk, *kinds: type[words.Command]) -> float:
    """When it makes a call of these kinds, if each other one is answered with nothing."""
    while not any(it.all(kind) for kind in kinds):
        if it.all(words.Exchange):
            it.answer([])
        elif it.all(words.MarkIdle):
            it.tell(words.Marked(True))
        elif it.all(words.ClearIdle):
            it.tell(words.Cleared())
        else:
            it.later(gap(it))
    return it.now


OK = Answer("ok")
BUSY = Answer("55P03")


def test_a_worker_first_sweeps_then_reserves_what_its_slots_can_take() -> None:
    it = desk(slots=3)
    assert it.only(words.Exchange) == words.Exchange([], ("mail",), (3,), 3)


def test_reserved_tasks_run_and_the_ends_of_one_batch_are_settled_in_one_call() -> None:
    it, a, b = desk(), leased(), leased()
    it.answer([a, b])
    assert [run.task for run in it.all(words.Run)] == [a, b]
    it.tell(it.end(a), it.end(b))
    assert [s.task for s in it.only(words.Exchange).settlements] == [a, b]


def test_one_call_is_under_way_at_a_time_and_ends_gather_for_the_next() -> None:
    it, a, b = desk(), leased(), leased()
    it.answer([a, b])
    it.tell(it.end(a))
    assert it.only(words.Exchange).max_tasks == 1
    it.tell(it.end(b))
    assert not it.all(words.Exchange)
    it.answer([], OK)
    assert [s.task for s in it.only(words.Exchange).settlements] == [b]


def test_a_short_answer_ends_the_hunger_until_a_poll() -> None:
    it = desk()
    it.answer([])
    assert it.said == []
    it.later(gap(it))
    it.only(words.Exchange)


def test_a_notification_during_the_call_is_not_forgotten() -> None:
    it = desk()
    it.tell(words.Woken())
    it.answer([])
    it.only(words.Exchange)


def test_polls_thin_out_to_the_floor_and_never_stop() -> None:
    it = desk(poll_s=1.0, sweep_s=1000.0)
    waits = []
    for _ in range(12):
        it.nothing()
        wake = it.engine.wake_at(it.now)
        assert wake is not None
        waits.append(wake - it.now)
        it.later(wake - it.now)
    assert waits == sorted(waits)
    assert waits[-1] == 1.0


def test_an_idle_worker_that_listens_marks_itself_and_looks_once_more() -> None:
    it = desk()
    it.tell(words.Listening(True))
    it.answer([])
    it.later(0.1) if not it.all(words.Exchange) else None
    it.answer([])
    it.only(words.MarkIdle)
    it.tell(words.Marked(True))
    it.only(words.Exchange)
    it.answer([])
    assert it.said == []


def test_busy_producers_make_it_poll_again_soon_instead() -> None:
    it = desk()
    it.tell(words.Listening(True))
    it.answer([])
    it.later(0.1) if not it.all(words.Exchange) else None
    it.answer([])
    it.tell(words.Marked(False))
    wake = it.engine.wake_at(it.now)
    assert wake is not None
    assert wake - it.now <= 0.05


def test_without_notifications_no_mark_is_made() -> None:
    it = desk(sweep_s=1000.0)
    for _ in range(10):
        it.answer([])
        it.later(2.0)
        assert not it.all(words.MarkIdle)


def test_one_who_met_tasks_for_others_lets_them_go_first_after_a_wake_up() -> None:
    it = desk(sweep_s=1e9)
    it.answer([leased(kind="other")])
    it.answer([], OK)
    it.tell(words.Woken())
    assert not it.all(words.Exchange)
    it.later(0.1)
    it.only(words.Exchange)


def test_a_wake_up_that_found_nothing_is_followed_by_some_more_looks() -> None:
    it, looks = desk(poll_s=3600.0, sweep_s=1e9), 0
    it.tell(words.Listening(True))
    while not it.all(words.MarkIdle):
        it.answer([])
    it.tell(words.Marked(True))
    it.answer([])
    it.tell(words.Woken())
    began = it.now
    while it.now < began + 2.0:
        it.nothing()
        looks += 1
        if it.all(words.Exchange):
            continue
        it.later(gap(it))
    assert 3 <= looks <= 8


def test_a_sweep_that_readied_tasks_makes_it_look() -> None:
    it = desk()
    it.answer([])
    it.later(1.0)
    it.only(words.Look)
    it.swept(3)
    it.only(words.Exchange)


def test_it_sweeps_at_the_next_due_time_but_never_spins() -> None:
    it = desk()
    it.answer([])
    it.later(1.0)
    it.only(words.Look)
    it.swept(0, -5.0)
    it.answer([]) if it.all(words.Exchange) else None
    it.later(0.049)
    assert not it.all(words.Sweep)
    it.answer([]) if it.all(words.Exchange) else None
    it.later(0.001)
    it.only(words.Sweep)


def idle(**settings: float) -> Desk:
    """A worker whose first looks found nothing, about to look again."""
    it = desk(**settings)
    until(it, words.Look)
    return it


def calls_of(it: Desk, seconds: float) -> list[tuple[float, words.Command]]:
    """What an idle worker asks for within a time, each answered with nothing."""
    began, made = it.now, []
    it.looked()
    while (wake := it.engine.wake_at(it.now)) is not None and wake - began <= seconds:
        it.later(max(0.0, wake - it.now))
        made.append((it.now - began, it.said[0]))
        it.tell(words.SweepDone(0, None)) if it.all(words.Sweep) else it.nothing()
    return made


def test_an_idle_worker_looks_in_place_of_polls_and_sweeps() -> None:
    made = calls_of(idle(), 60.0)
    assert {type(call) for _, call in made} == {words.Look}
    assert 60 <= len(made) <= 66
    times = [0.0, *(at for at, _ in made)]
    assert max(b - a for a, b in pairwise(times)) <= 1.0


def test_it_looks_each_second_also_where_it_polls_less_often() -> None:
    times = [0.0, *(at for at, _ in calls_of(idle(poll_s=30.0), 60.0))]
    assert max(b - a for a, b in pairwise(times)) <= 1.0


def marked(**settings: float) -> Desk:
    """One that would be notified, at its first look."""
    it = desk(**settings)
    it.tell(words.Listening(True))
    it.answer([])
    until(it, words.Look)
    return it


def looked_often(it: Desk, *, swept: bool) -> Desk:
    """Its polls have thinned out."""
    for _ in range(8):
        it.looked(swept=swept)
        it.later(gap(it))
        it.only(words.Look)
    return it


def test_one_who_would_be_notified_rests_while_another_sweeps() -> None:
    it = looked_often(marked(), swept=True)
    rests = []
    for _ in range(6):
        it.looked(swept=False)
        rests.append(gap(it))
        it.later(gap(it))
        it.only(words.Look)
    assert rests == [2.0, 2.0, 2.0, 3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("sleepers", "rest"), [(1, 3.0), (6, 3.0), (8, 4.0), (20, 10.0), (60, 30.0), (5000, 30.0)]
)
def test_the_more_sleep_the_longer_each_of_them_rests(sleepers: int, rest: float) -> None:
    it = looked_often(marked(mark_s=1000), swept=True)
    rests = []
    for _ in range(5):
        it.looked(swept=False, sleepers=sleepers)
        rests.append(gap(it))
        it.later(gap(it))
        it.only(words.Look)
    assert rests == [2.0, 2.0, 2.0, rest, rest]
    it.looked(swept=True, sleepers=sleepers)
    assert gap(it) == 1.0


def test_those_who_rest_do_not_look_together() -> None:
    rolls = iter([0.0, 0.5])
    found = []
    for _ in range(2):
        it = marked(mark_s=1000)
        it.engine.backoff = Backoff(roll=lambda: next(rolls))
        looked_often(it, swept=True)
        for _ in range(3):
            it.looked(swept=False, sleepers=60)
            it.later(gap(it))
        it.looked(swept=False, sleepers=60)
        found.append(gap(it))
    assert found == [15.0, 22.5]


def test_one_who_swept_is_asked_to_sweep_again() -> None:
    it = idle()
    for swept in (True, False, False, True):
        it.looked(swept=swept)
        it.later(gap(it))
        assert it.only(words.Look).again == swept


def test_one_who_swept_itself_comes_back_in_a_second() -> None:
    it = looked_often(marked(), swept=True)
    it.looked(swept=True)
    assert gap(it) == 1.0


def test_one_who_rested_and_found_nobody_sweeping_rests_no_more() -> None:
    it = looked_often(marked(), swept=False)
    it.looked(swept=True)
    assert gap(it) == 1.0


def test_one_whom_no_notification_reaches_never_rests() -> None:
    it = looked_often(idle(), swept=False)
    it.looked(swept=False)
    assert gap(it) == 1.0


def test_what_a_look_saw_coming_shortens_the_rest() -> None:
    it = looked_often(marked(), swept=False)
    it.looked(swept=False, due_in_s=0.3)
    assert abs(gap(it) - 0.3) < 1e-6


def until_marking(it: Desk) -> None:
    while not it.all(words.MarkIdle):
        it.looked(swept=True) if it.all(words.Look) else None
        it.later(gap(it)) if not it.all(words.MarkIdle) else None


def test_a_mark_that_was_renewed_in_time_owes_no_look() -> None:
    it = marked()
    until_marking(it)
    it.tell(words.Marked(True))
    assert not it.said


def test_a_new_mark_owes_one_and_a_broken_listener_makes_every_mark_a_new_one() -> None:
    """The server may have crashed, and marks are in an unlogged table."""
    it = marked()
    it.tell(words.Listening(False), words.Listening(True))
    it.looked()
    while not it.all(words.MarkIdle):
        it.nothing() if it.said else it.later(gap(it))
    it.tell(words.Marked(True))
    it.only(words.Exchange)


def told_of(it: Desk, tasks: int, per_s: float, *, by: int = 1) -> list[type[words.Call]]:
    """So many tasks come, ``by`` of them with each notification, and end at once; what it
    called meanwhile beside its exchanges."""
    called: list[type[words.Call]] = []
    if it.all(words.Look):
        it.looked()
    for _ in range(tasks // by):
        it.now += by / per_s
        coming = [leased() for _ in range(by)]
        it.tell(words.Woken())
        while calls := [command for command in it.said if isinstance(command, words.CALLS)]:
            (call,) = calls
            if not isinstance(call, words.Exchange):
                called.append(type(call))
                it.tell(words.Cleared())
                continue
            came, coming = (coming, []) if call.max_tasks else ([], coming)
            it.answer(came, *[OK] * len(call.settlements))
            if came:
                it.tell(*[it.end(task, took_s=0.0) for task in came])
        assert not coming
    return called


def test_one_who_is_told_of_a_stream_takes_its_mark_back_and_polls() -> None:
    it = marked(slots=50, sweep_s=1000, exchanges=1)
    assert told_of(it, 500, per_s=1000) == [words.ClearIdle]
    for _ in range(4):
        assert gap(it) <= 0.04
        it.later(gap(it))
        it.only(words.Exchange)
        it.answer([])
    it.only(words.MarkIdle)
    assert it.now < 1000 + 60
    it.tell(words.Marked(True))
    it.only(words.Exchange)


def test_its_polls_in_a_stream_are_milliseconds_apart() -> None:
    it = marked(slots=50, sweep_s=1000, exchanges=1)
    told_of(it, 500, per_s=1000)
    task = leased()
    it.later(gap(it))
    it.answer([task])
    it.tell(it.end(task, took_s=0.0))
    it.answer([], OK)
    assert gap(it) <= 0.005


@pytest.mark.parametrize(("per_s", "by"), [(50, 1), (5000, 250)], ids=["a trickle", "bulks"])
def test_one_who_is_told_now_and_then_keeps_its_mark(per_s: float, by: int) -> None:
    it = marked(slots=500, sweep_s=1000, exchanges=1)
    assert told_of(it, 2000 if by > 1 else 200, per_s, by=by) == []


def test_a_look_that_sees_work_is_followed_by_a_reserve_at_once() -> None:
    it = idle()
    it.looked(ready=True)
    it.only(words.Exchange)


def test_work_that_others_take_first_does_not_make_it_spin() -> None:
    it, calls = idle(), 0
    it.looked(ready=True)
    began = it.now
    while it.now < began + 20.0:
        calls += len(it.all(words.Exchange)) + len(it.all(words.Look))
        if it.all(words.Exchange):
            it.answer([])
        elif it.all(words.Look):
            it.looked(ready=True)
        else:
            it.later(gap(it))
    assert calls <= 2 * 30


def test_a_look_that_swept_tasks_ready_for_others_only_is_no_reason_to_reserve() -> None:
    it = idle()
    it.looked(swept=True, readied=3)
    assert it.said == []


def test_what_a_look_readied_is_left_to_others_first_by_one_who_met_their_tasks() -> None:
    it = desk(sweep_s=1e9)
    it.answer([leased(kind="other")])
    it.answer([], OK)
    while not it.all(words.Look):
        it.later(gap(it))
        it.answer([]) if it.all(words.Exchange) else None
    it.looked(ready=True, swept=True, readied=1)
    assert it.said == []
    it.later(0.1)
    it.only(words.Exchange)


def test_what_its_own_sweep_saw_coming_is_swept_for_then_whatever_looks_come_between() -> None:
    it = idle()
    it.looked(swept=True, due_in_s=0.9)
    due = it.now + 0.9
    while not it.all(words.Sweep):
        wake = it.engine.wake_at(it.now)
        assert wake is not None
        assert wake <= due
        it.later(wake - it.now)
        it.looked() if it.all(words.Look) else None
    assert it.now == due


def test_a_snoozed_task_that_a_look_saw_is_looked_for_when_it_is_due() -> None:
    it = idle()
    it.looked(due_in_s=0.06)
    assert it.engine.wake_at(it.now) == it.now + 0.06
    it.later(0.06)
    it.only(words.Look)


def test_a_notification_while_it_looks_is_not_forgotten() -> None:
    it = idle()
    it.tell(words.Woken())
    it.looked()
    it.only(words.Exchange)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_worker_with_a_task_looks_each_second_and_sweeps_only_when_something_is_due(
    slots: int,
) -> None:
    it, looks = desk(slots=slots), []
    it.answer([leased()])
    for _ in range(60):
        looks.append(until(it, words.Look, words.Sweep))
        it.only(words.Look)
        it.looked(swept=True)
    assert {round(b - a, 3) for a, b in pairwise(looks)} == {1.0}
    until(it, words.Look)
    it.looked(swept=True, due_in_s=0.3)
    due_at = it.now + 0.3
    assert abs(until(it, words.Look, words.Sweep) - due_at) < 0.001
    it.only(words.Sweep)


def test_one_whose_slots_are_all_taken_rests_while_another_sweeps_also_if_work_waits() -> None:
    it = desk(slots=1)
    it.answer([leased()])
    looked_at = [until(it, words.Look)]
    for swept in (True, False, False, False, False, False, True):
        it.looked(ready=True, swept=swept, sleepers=100)
        looked_at.append(until(it, words.Look))
    assert [round(b - a, 3) for a, b in pairwise(looked_at)] == [1, 2, 2, 2, 3, 3, 1]


def test_one_whose_slot_comes_free_reserves_at_once_though_it_rested() -> None:
    it, task = desk(slots=1), leased()
    it.answer([task])
    for _ in range(6):
        until(it, words.Look)
        it.looked()
    it.tell(it.end(task))
    assert it.only(words.Exchange).max_tasks == 1


def test_one_that_rested_with_no_slot_free_polls_as_ever_when_its_task_ended_itself() -> None:
    it, asked = desk(slots=1), 1
    while asked == 1:  # short tasks are reserved ahead
        task, it.now = leased(), it.now + 0.001
        it.answer([task], OK)
        it.tell(it.end(task, took_s=0.001))
        asked = it.only(words.Exchange).max_tasks
    it.answer([task := leased()], OK)  # so this is too few: there is no more
    for _ in range(6):
        until(it, words.Look)
        it.looked(sleepers=100)
    ended_at = it.now
    it.tell(words.Ended(task.token, None))
    assert until(it, words.Exchange, words.Look) - ended_at <= 1.0


def test_many_with_long_tasks_and_slots_to_spare_leave_the_sweeps_to_one() -> None:
    it = marked(slots=2, mark_s=240.0)
    it.looked(ready=True)
    it.answer([leased()])
    for _ in range(12):
        looked_at = until(it, words.Look)
        it.looked(sleepers=100)
    assert until(it, words.Look) - looked_at > 10.0


def test_a_look_that_failed_is_made_again_after_a_pause() -> None:
    it = idle()
    it.tell(words.CallFailed())
    assert it.said == []
    wake = it.engine.wake_at(it.now)
    assert wake is not None
    assert wake > it.now
    it.later(wake - it.now)
    it.only(words.Look)


def test_a_worker_that_was_idle_stops_at_once() -> None:
    it = idle()
    it.tell(words.StopAsked())
    it.looked()
    assert it.engine.finished


def test_limits_per_topic_hold_and_idle_topics_do_not_block_others() -> None:
    it = desk(slots=4, limits={"a": 3, "b": 1})
    call = it.only(words.Exchange)
    assert dict(zip(call.topics, call.limits, strict=True)) == {"a": 3, "b": 1}
    assert call.max_tasks == 4
    b1, b2, a1 = leased("b"), leased("b"), leased("a")
    it.answer([b1, b2, a1])
    assert {run.task.token for run in it.all(words.Run)} == {b1.token, a1.token}


def test_long_handlers_get_nothing_reserved_ahead_and_short_ones_do() -> None:
    it, tasks = desk(slots=2), [leased(), leased()]
    it.answer(tasks)
    it.tell(it.end(tasks[0]))
    assert it.only(words.Exchange).max_tasks == 1
    it.tell(it.end(tasks[1]))
    for _ in range(400):
        batch = [leased(), leased()]
        it.now += 0.001
        it.answer(batch, *[OK] * 500)
        it.tell(*[it.end(task) for task in batch])
    it.answer([], *[OK] * 500)
    assert it.only(words.Exchange).max_tasks > 10


def test_a_task_reserved_ahead_that_finds_no_slot_goes_back() -> None:
    it, a, b = desk(slots=1), leased(), leased()
    it.answer([a, b])
    assert [run.task for run in it.all(words.Run)] == [a]
    it.later(1.0)
    it.swept()
    settlement = it.only(words.Exchange).settlements[0]
    assert (settlement.task, settlement.verb) == (b, Verb.RELEASE)


def test_an_unknown_kind_sleeps_for_a_growing_while_and_is_not_run() -> None:
    it, delays = desk(slots=1, sweep_s=1e9), []
    for _ in range(4):
        it.answer([leased(kind="other")], OK)
        call = it.only(words.Exchange)
        assert not it.all(words.Run)
        assert call.settlements[0].verb is Verb.SNOOZE
        delays.append(call.settlements[0].arg)
        it.now += 5
    assert delays == sorted(delays)
    assert delays[-1] > delays[0]


def test_a_grant_that_came_late_is_given_back_unstarted() -> None:
    it, a = desk(lease_s=2.0), leased()
    it.now += 3.0
    it.tell(words.Exchanged(it.now - 3.0, (), [a]))
    assert not it.all(words.Run)
    it.swept()
    assert it.only(words.Exchange).settlements[0].verb is Verb.RELEASE


def test_a_lost_lease_halts_its_run_and_writes_nothing() -> None:
    it, a = desk(slots=1), leased()
    it.answer([a])
    it.tell(words.LeaseGone(a.token))
    assert it.only(words.Halt) == words.Halt(a.token, Reason.LOST)
    it.tell(it.end(a))
    assert all(not call.settlements for call in it.all(words.Exchange))
    assert it.engine.slots.busy == 0


def test_a_run_that_does_not_stop_keeps_its_slot_until_it_ends() -> None:
    it, a = desk(slots=1), leased()
    it.answer([a])
    it.tell(words.Ended(a.token, Settlement(a, Verb.RETRY), freed=False))
    it.answer([], OK)
    assert it.engine.slots.busy == 1
    it.tell(words.Ended(a.token, None))
    assert it.engine.slots.busy == 0


def test_a_broken_call_is_repeated_with_the_same_members_after_a_pause() -> None:
    it, a = desk(slots=1), leased()
    it.answer([a])
    it.tell(it.end(a))
    it.tell(words.CallFailed())
    assert it.said == []
    wake = it.engine.wake_at(it.now)
    assert wake is not None
    assert wake > it.now
    it.later(wake - it.now)
    assert it.only(words.Exchange).settlements[0].task is a


def test_failures_are_tried_again_ever_more_rarely_up_to_a_cap() -> None:
    it, waits = desk(), []
    for _ in range(40):
        it.tell(words.CallFailed())
        wake = it.engine.wake_at(it.now)
        assert wake is not None
        waits.append(round(wake - it.now, 6))
        it.later(wake - it.now)
    assert waits == sorted(waits)
    assert waits[-1] == 5.0


def test_a_busy_row_is_tried_again_and_is_no_loss() -> None:
    it, a = desk(slots=1, sweep_s=1e9), leased()
    it.answer([a])
    it.tell(it.end(a))
    it.answer([], BUSY)
    assert not it.all(words.Settled)
    it.later(0.1)
    assert it.only(words.Exchange).settlements[0].task is a


def test_an_answer_that_was_lost_is_known_as_our_own_success_by_pid_and_token() -> None:
    it, a = desk(slots=1), leased()
    it.answer([a])
    it.tell(it.end(a))
    it.answer([], Answer("SK002", {"status": "terminated", "pid": a.pid, "token": a.token}))
    assert it.only(words.Settled).outcomes[0][1].verdict == "ok"


def test_a_task_that_was_failed_for_our_lost_lease_is_no_success_of_ours() -> None:
    it, a = desk(slots=1), leased()
    it.answer([a])
    it.tell(it.end(a))
    it.answer([], Answer("SK002", {"status": "failed", "pid": a.pid, "token": a.token}))
    assert it.only(words.Settled).outcomes[0][1].verdict == "SK002"


def test_another_owners_end_is_a_refusal() -> None:
    it, a = desk(slots=1), leased()
    it.answer([a])
    it.tell(it.end(a))
    it.answer([], Answer("SK002", {"pid": "w2", "token": a.token + 1}))
    assert it.only(words.Settled).outcomes[0][1].verdict == "SK002"
    assert it.only(words.Forget).tokens == [a.token]


def test_one_member_that_the_database_refuses_does_not_hold_up_its_batch() -> None:
    it, tasks = desk(slots=3), [leased() for _ in range(3)]
    it.answer(tasks)
    it.tell(*[it.end(task) for task in tasks])
    it.tell(words.CallFailed(refused=True, message="result"))
    seen: list[tuple[int, Verb]] = []
    while it.all(words.Exchange):
        call = it.only(words.Exchange)
        if not call.settlements:
            break
        assert len(call.settlements) == 1
        only = call.settlements[0]
        if only.task is tasks[1] and only.verb is Verb.TERMINATE:
            it.tell(words.CallFailed(refused=True, message="result"))
            continue
        seen.append((only.task.token, only.verb))
        it.answer([], OK)
    assert sorted(seen) == [
        (tasks[0].token, Verb.TERMINATE), (tasks[1].token, Verb.FAIL),
        (tasks[2].token, Verb.TERMINATE),
    ]


def test_a_stop_gives_waiting_tasks_back_and_lets_running_ones_end() -> None:
    it, a, b = desk(slots=1), leased(), leased()
    it.answer([a, b])
    it.tell(words.StopAsked())
    call = it.only(words.Exchange)
    assert [(s.task, s.verb) for s in call.settlements] == [(b, Verb.RELEASE)]
    assert call.max_tasks == 0
    it.answer([], OK)
    it.tell(it.end(a))
    it.answer([], OK)
    assert it.engine.finished


def test_after_the_grace_period_or_a_second_request_runs_are_halted() -> None:
    for ask in (None, words.StopAsked(now=True)):
        it, a = desk(slots=1, grace_s=5.0), leased()
        it.answer([a])
        it.tell(words.StopAsked())
        assert not it.all(words.Halt)
        if ask is None:
            it.later(5.0)
        else:
            it.tell(ask)
        assert it.only(words.Halt) == words.Halt(a.token, Reason.STOP)


def test_a_stop_while_the_database_is_away_ends_within_its_bound() -> None:
    it, a = desk(slots=1, grace_s=1.0, final_s=3.0), leased()
    it.answer([a])
    it.tell(words.StopAsked(now=True), it.end(a, Verb.RELEASE))
    while not it.engine.finished:
        if it.all(words.Exchange):
            it.tell(words.CallFailed())
        wake = it.engine.wake_at(it.now)
        assert wake is not None
        it.later(max(0.0, wake - it.now))
    assert it.engine.unsettled == 1
    assert it.now <= 1003.01


def test_a_mark_is_taken_back_before_the_worker_goes() -> None:
    it = desk()
    it.tell(words.Listening(True))
    it.answer([])
    it.later(0.1) if not it.all(words.Exchange) else None
    it.answer([])
    it.tell(words.Marked(True))
    it.answer([])
    it.tell(words.StopAsked())
    it.only(words.ClearIdle)
    it.tell(words.Cleared())
    assert it.engine.finished


def test_nothing_is_kept_of_tasks_that_are_through() -> None:
    it = desk(slots=5)
    for _ in range(2000):
        batch = [leased() for _ in range(5)]
        it.now += 0.01
        it.answer(batch, *[OK] * 500)
        if it.all(words.Look):
            it.swept()
        it.tell(*[it.end(task) for task in batch])
    # the call under way was sent before the last of them ended
    it.answer([], *[OK] * 500)
    if it.all(words.Exchange):
        it.answer([], *[OK] * 500)
    assert it.engine.unsettled == 0
    assert it.engine.slots.busy == 0


def test_after_the_end_of_a_candidate_a_sweep_comes_soon() -> None:
    for end in (OK, None):
        it, task = desk(), leased(candidate=1)
        it.answer([task])
        it.tell(it.end(task) if end else words.Ended(task.token, None))
        it.answer([], *([end] if end else []))
        it.answer([])
        it.later(0.11)
        it.only(words.Sweep)


@pytest.mark.parametrize(
    ("due_in_s", "swept_in_s"), [(0.2, 0.2), (-1.0, 0.05), (0.001, 0.05), (30.0, 1.0), (None, 1.0)]
)
def test_it_sweeps_when_a_task_that_it_put_to_sleep_is_due(
    due_in_s: float | None, swept_in_s: float
) -> None:
    it, task, other = desk(), leased(), leased()
    it.answer([task, other])
    it.tell(it.end(task, Verb.RETRY))
    slept = Answer("ok", {"status": "snoozed"})
    it.tell(words.Exchanged(it.now, [slept], [], due_in_s=due_in_s))
    began = it.now
    assert abs(until(it, words.Sweep, words.Look) - began - swept_in_s) < 0.001
    assert bool(it.all(words.Sweep)) == (swept_in_s < 1.0)


def test_a_task_that_was_put_to_sleep_while_a_sweep_was_under_way_is_swept_for() -> None:
    it, tasks = desk(slots=SECOND_MOST * 2), [leased() for _ in range(SECOND_MOST)]
    it.answer(tasks)
    it.later(1.0)
    it.only(words.Look)
    # a second exchange is none beside a sweep: one that was sent before comes back now
    it.engine._second = words.Exchange([], (), (), 0, second=True)
    it.tell(words.Exchanged(it.now, [], [], second=True, due_in_s=0.1))
    it.swept()
    began = it.now
    assert abs(until(it, words.Sweep) - began - 0.1) < 0.001


def test_after_the_end_of_any_other_task_it_comes_in_its_own_time() -> None:
    it, task = desk(), leased()
    it.answer([task])
    it.tell(it.end(task))
    it.answer([], OK)
    it.answer([])
    it.later(0.11)
    assert not it.all(words.Sweep)


def test_a_task_that_need_not_wait_after_all_is_looked_for_at_once() -> None:
    for status, looks in (("starting", 1), ("snoozed", 0)):
        it, task = desk(), leased()
        it.answer([task])
        it.answer([])
        it.tell(it.end(task, Verb.WAIT))
        it.answer([], Answer("ok", {"status": status}))
        assert len(it.all(words.Exchange)) == looks


def test_a_wait_whose_answer_was_lost_is_not_taken_for_a_lost_lease() -> None:
    it, task = desk(), leased()
    it.answer([task])
    it.tell(it.end(task, Verb.WAIT))
    it.tell(words.CallFailed())
    it.later(6)
    it.swept()
    it.answer([], Answer("SK006", {"status": "snoozed"}))
    (settled,) = it.all(words.Settled)
    assert [answer.verdict for _, answer in settled.outcomes] == ["ok"]


def test_large_results_go_in_calls_of_bounded_size_and_no_task_is_taken_meanwhile() -> None:
    it = desk(slots=20)
    tasks = [leased() for _ in range(20)]
    it.answer(tasks)
    it.tell(*[words.Ended(t.token, Settlement(t, Verb.TERMINATE, "x" * (3 << 20))) for t in tasks])
    settled, calls = 0, 0
    while it.engine.outbox:
        call = it.only(words.Exchange)
        size = sum(each.size for each in call.settlements)
        assert size < 12 << 20
        settled, calls = settled + len(call.settlements), calls + 1
        assert call.max_tasks <= settled
        it.answer([], *[OK] * len(call.settlements))
    assert (settled, calls) == (20, 7)


def many(
    slots: int = 1000, limits: dict[str, int] | None = None, **settings: float
) -> tuple[Desk, list[LeasedTask]]:
    """A worker of so many tasks and a free slot, and no more to come."""
    it = desk(slots + 1, limits, **settings)
    tasks = [leased() for _ in range(slots)]
    it.answer(tasks)
    return it, tasks


def test_a_second_exchange_goes_out_beside_the_first_when_many_have_ended() -> None:
    it, tasks = many()
    it.tell(it.end(tasks[0]))
    first = it.only(words.Exchange)
    assert (len(first.settlements), first.second) == (1, False)
    it.tell(*map(it.end, tasks[1 : SECOND_MOST]))
    assert not it.all(words.Exchange), "one short of many gather for the first"
    it.tell(it.end(tasks[SECOND_MOST]))
    second = it.only(words.Exchange)
    assert [s.task for s in second.settlements] == tasks[1 : SECOND_MOST + 1]
    assert second.second
    it.tell(*map(it.end, tasks[SECOND_MOST + 1 :]))
    assert not it.all(words.Exchange), "never a third"


def test_a_worker_that_may_have_one_call_under_way_never_sends_a_second() -> None:
    it, tasks = many(exchanges=1)
    it.tell(it.end(tasks[0]))
    assert len(it.only(words.Exchange).settlements) == 1
    it.tell(*map(it.end, tasks[1:]))
    assert not it.all(words.Exchange)
    it.answer([], OK)
    assert len(it.only(words.Exchange).settlements) > SECOND_MOST


def test_the_two_answers_may_come_in_any_order() -> None:
    it, tasks = many(400)
    it.tell(it.end(tasks[0]))
    it.tell(*map(it.end, tasks[1:]))
    it.second([], *[OK] * 399)
    assert [t for f in it.all(words.Forget) for t in f.tokens] == [t.token for t in tasks[1:]]
    assert it.engine.unsettled == 1
    it.answer([], OK)
    assert it.engine.unsettled == 0


def test_what_the_first_call_may_bring_is_not_asked_for_again() -> None:
    it = desk(700)
    tasks = [leased() for _ in range(700)]
    it.answer(tasks)
    it.tell(*map(it.end, tasks[:350]))
    first = it.only(words.Exchange).max_tasks
    it.tell(*map(it.end, tasks[350:]))
    second = it.only(words.Exchange).max_tasks
    assert 0 < first < second
    most = 700 + it.engine._pace.prefetch(it.now, it.engine.settings.prefetch_most)
    assert first + second <= most
    it.second([leased() for _ in range(second)], *[OK] * 350)
    assert first + second + sum(call.max_tasks for call in it.all(words.Exchange)) <= most


def test_a_second_call_that_failed_is_written_by_the_next_and_the_first_goes_on() -> None:
    it, tasks = many(400)
    it.tell(it.end(tasks[0]))
    it.tell(*map(it.end, tasks[1:]))
    it.tell(words.CallFailed(second=True))
    it.answer([], OK)
    assert it.engine.unsettled == 399
    it.later(5.0)
    it.swept()
    again = it.only(words.Exchange).settlements
    assert [s.task for s in again] == tasks[1:]
    assert all(s.uncertain for s in again)


def test_a_refused_second_call_is_tried_again_one_by_one() -> None:
    it, tasks = many(400)
    it.tell(it.end(tasks[0]))
    it.tell(*map(it.end, tasks[1:]))
    it.tell(words.CallFailed(refused=True, message="args", second=True))
    it.answer([], OK)
    call = it.only(words.Exchange)
    assert [s.task for s in call.settlements] == [tasks[1]]
    assert not call.second


def test_where_a_topic_has_one_slot_its_tasks_come_by_one_call_at_a_time() -> None:
    it, tasks = many(400, {"mail": 401, "post": 1})
    it.tell(it.end(tasks[0]))
    it.tell(*map(it.end, tasks[1:]))
    assert not it.all(words.Exchange)


def test_a_worker_that_stops_waits_for_both_calls() -> None:
    it, tasks = many(400)
    it.tell(it.end(tasks[0]))
    it.tell(*map(it.end, tasks[1:]))
    it.tell(words.StopAsked())
    it.answer([], OK)
    assert not it.engine.finished
    it.second([], *[OK] * 399)
    assert it.engine.finished

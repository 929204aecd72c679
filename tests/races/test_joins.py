"""Joins under concurrent ends: nobody waits, nothing is lost, and each fires once."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.races.ordering import Session, accepted, answer, refused
from tests.sql.calling import Clock, Queue, Row
from tests.sql.joining import (
    children,
    fail,
    fan_out,
    fired,
    join,
    lease,
    proof,
    specs,
    statuses,
    succeed,
    sweep_all,
)
from tests.sql.states import ERROR

Sessions = Callable[..., Session]
FIRST, SECOND = 0, 1


def inbox(queue: Queue) -> int:
    return int(queue.value("select count(*) from sokka.join_inbox"))


@pytest.fixture
def two_open(session: Sessions) -> list[Session]:
    """Two sessions in transactions that stay open; neither may wait for the other."""
    found = [session(autocommit=False) for _ in range(2)]
    for one in found:
        one.execute("set statement_timeout = '10 s'")
        one.commit()
    return found


# The last two children at one instant


@pytest.mark.parametrize("policy", ["settled", "all"])
@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)], ids=["in order", "reversed"])
def test_the_last_two_children_end_at_one_instant(
    queue: Queue, two_open: list[Session], order: tuple[int, int], policy: str
) -> None:
    join_id = fan_out(queue, 2, policy=policy)
    held = [lease(queue, child) for child in children(queue, join_id)]
    for one, row in zip(two_open, held, strict=True):
        one.verb("terminate_task", row)
    for place in order:
        two_open[place].commit()
    assert queue.row(join_id).status == "snoozed"
    sweep_all(queue)
    assert queue.row(join_id).result["succeeded"] == 2
    found = join(queue, join_id)
    assert (found.state, found.done, found.in_flight) == ("closed", 2, 0)
    assert fired(queue, join_id) == 1


@pytest.mark.parametrize("lost", [FIRST, SECOND])
def test_of_two_last_ends_one_rolls_back(
    queue: Queue, two_open: list[Session], lost: int
) -> None:
    join_id = fan_out(queue, 2)
    held = [lease(queue, child) for child in children(queue, join_id)]
    for one, row in zip(two_open, held, strict=True):
        one.verb("terminate_task", row)
    two_open[lost].rollback()
    two_open[1 - lost].commit()
    sweep_all(queue)
    found = join(queue, join_id)
    assert (found.state, found.done) == ("open", 1)
    queue.verb("terminate_task", held[lost])
    assert queue.row(join_id).result["succeeded"] == 2


def test_an_end_before_the_missed_one_is_swept_leaves_it_to_the_sweep_or_counts_it(
    queue: Queue, two_open: list[Session]
) -> None:
    """Its number in the inbox is below the one that was read last."""
    join_id = fan_out(queue, 3)
    held = [lease(queue, child) for child in children(queue, join_id)]
    late, early = two_open
    early.rows("select from sokka.joins where task_id = %s for update", (join_id,))
    late.verb("terminate_task", held[0])
    early.verb("terminate_task", held[1])
    early.commit()
    late.commit()
    assert join(queue, join_id).done == 1
    queue.verb("terminate_task", held[2])
    sweep_all(queue)
    assert queue.row(join_id).result["succeeded"] == 3
    assert fired(queue, join_id) == 1


def test_batches_that_end_the_last_children_at_one_instant(
    queue: Queue, two_open: list[Session]
) -> None:
    join_id = fan_out(queue, 100, policy="all")
    leases = queue.call("reserve_tasks", topics=["c"], pid="w1", max_tasks=100)
    for one, part in ((two_open[0], leases[::2]), (two_open[1], leases[1::2])):
        verdicts = one.call(
            "settle_tasks", pid="w1", task_ids=[row.task_id for row in part],
            tokens=[row.token for row in part], verbs=["terminate"] * len(part),
        )  # fmt: skip
        assert {row.verdict for row in verdicts} == {"ok"}
    for one in two_open:
        one.commit()
    sweep_all(queue)
    assert queue.row(join_id).result["succeeded"] == 100
    assert fired(queue, join_id) == 1


def test_of_two_first_answers_one_decides_and_the_other_is_late(
    queue: Queue, opened: Session, other: Session
) -> None:
    """Deciding asks the other one to stop: it waits for the row, and answers all the same."""
    join_id = fan_out(queue, 2, policy="any")
    held = [lease(queue, child) for child in children(queue, join_id)]
    opened.verb("terminate_task", held[0])
    call = other.begin_verb("fail_task", held[1], error=ERROR)
    other.blocked_by(opened)
    opened.commit()
    accepted(call)
    assert queue.row(join_id).status == "terminated"
    found = join(queue, join_id)
    assert (found.state, found.done, found.succeeded, found.late) == ("closed", 2, 1, 1)
    assert fired(queue, join_id) == 1


# Rows that somebody holds


def test_an_end_does_not_wait_for_who_holds_the_join(
    queue: Queue, opened: Session, other: Session
) -> None:
    join_id = fan_out(queue, 1)
    held = lease(queue, children(queue, join_id)[0])
    opened.rows("select from sokka.joins where task_id = %s for update", (join_id,))
    assert accepted(other.begin_verb("terminate_task", held)).status == "terminated"
    for _ in range(4):
        swept = accepted(other.begin("sweep"))
        # However often it looked in vain: it says that there is more to do.
        assert swept.next_due_at is not None
    assert queue.row(join_id).status == "snoozed"
    opened.commit()
    sweep_all(queue)
    assert queue.row(join_id).status == "terminated"
    assert fired(queue, join_id) == 1


def test_a_deadline_that_passes_while_somebody_holds_the_join_is_not_forgotten(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    join_id = fan_out(queue, 1, deadline="1 minute")
    opened.rows("select from sokka.joins where task_id = %s for update", (join_id,))
    clock.advance("1 minute")
    for _ in range(4):
        assert accepted(other.begin("sweep")).next_due_at is not None
    opened.commit()
    queue.one("sweep")
    assert join(queue, join_id).outcome == "deadline"


def test_a_join_that_somebody_holds_does_not_hold_up_the_others(
    queue: Queue, opened: Session, other: Session
) -> None:
    """However much has piled up for it meanwhile."""
    held, free = fan_out(queue, 1_200), fan_out(queue, 1)
    opened.rows("select from sokka.joins where task_id = %s for update", (held,))
    leases = queue.call("reserve_tasks", topics=["c"], pid="w1", max_tasks=1_200)
    queue.call(
        "terminate_tasks", pid="w1", task_ids=[row.task_id for row in leases],
        tokens=[row.token for row in leases],
    )  # fmt: skip
    assert inbox(queue) == 1_200
    queue.execute("delete from sokka.tasks where task_id = %s", children(queue, free)[0])
    for _ in range(3):
        accepted(other.begin("sweep"))
    assert queue.row(free).status == "terminated"
    opened.commit()
    sweep_all(queue)
    assert queue.row(held).result["succeeded"] == 1_200


def test_a_small_sweep_gets_through_a_full_inbox(queue: Queue) -> None:
    joins = [fan_out(queue, 3) for _ in range(6)]
    queue.execute("delete from sokka.tasks where candidate is not null")
    for _ in range(18):
        assert queue.one("sweep", max_tasks=1).next_due_at is not None or inbox(queue) == 0
    assert {queue.row(join_id).status for join_id in joins} == {"terminated"}
    assert inbox(queue) == 0


@pytest.mark.parametrize("strength", ["key share", "update"])
@pytest.mark.parametrize(("policy", "end", "outcome"), [
    ("settled", "S", "satisfied"), ("all", "F", "unmet"), ("any", "S", "satisfied"),
    ("first_success", "F", None),
])  # fmt: skip
def test_an_end_does_not_wait_for_who_holds_the_task_of_the_join(
    queue: Queue, opened: Session, other: Session, policy: str, end: str, outcome: str | None,
    strength: str,
) -> None:  # fmt: skip
    join_id = fan_out(queue, 1 if policy == "settled" else 2, policy=policy)
    held = lease(queue, children(queue, join_id)[0])
    opened.rows(f"select from sokka.tasks where task_id = %s for {strength}", (join_id,))
    verb, options = ("terminate_task", {}) if end == "S" else ("fail_task", {"error": ERROR})
    accepted(other.begin_verb(verb, held, **options))
    assert accepted(other.begin("sweep")) is not None
    assert queue.row(join_id).status == "snoozed"
    opened.commit()
    sweep_all(queue)
    found = join(queue, join_id)
    assert (found.outcome, found.succeeded, found.failed) == (outcome, end == "S", end == "F")
    assert (queue.row(join_id).status == "snoozed") is (outcome is None)
    assert fired(queue, join_id) == (outcome is not None)


def test_a_decision_stands_while_the_task_of_the_join_is_held(
    queue: Queue, opened: Session, other: Session
) -> None:
    """What comes after the first answer does not change it."""
    join_id = fan_out(queue, 2, policy="any", max_running=1)
    one, two = children(queue, join_id)
    opened.rows("select from sokka.tasks where task_id = %s for update", (join_id,))
    accepted(other.begin_verb("fail_task", lease(queue, one), error=ERROR))
    if queue.row(two).status == "starting":
        accepted(other.begin_verb("terminate_task", lease(queue, two)))
    opened.commit()
    sweep_all(queue)
    assert queue.row(join_id).error["code"] == "policy_unmet"


@pytest.mark.parametrize("place", [2, 3])
def test_a_held_child_that_somebody_holds_is_not_left_behind(
    queue: Queue, opened: Session, other: Session, place: int
) -> None:
    join_id = fan_out(queue, 4, max_running=2)
    kids = children(queue, join_id)
    waiting = kids[place]
    opened.rows("select from sokka.tasks where task_id = %s for update", (waiting,))
    for child in kids[: place - 1]:
        accepted(other.begin_verb("terminate_task", lease(queue, child)))
    # Its turn has come, and nobody overtakes it.
    assert statuses(queue, join_id)[place:] == ["held"] * (4 - place)
    opened.rollback()
    sweep_all(queue)
    assert statuses(queue, join_id)[place] == "starting"
    for child in kids[place - 1 :]:
        succeed(queue, child)
    assert queue.row(join_id).result["succeeded"] == 4


# Held children that end while others go


def test_a_held_child_is_being_cancelled_while_its_turn_comes(
    queue: Queue, opened: Session, other: Session
) -> None:
    join_id = fan_out(queue, 3, max_running=1)
    one, two, three = children(queue, join_id)
    opened.call("cancel_task", task_id=two)
    accepted(other.begin_verb("terminate_task", lease(queue, one)))
    opened.commit()
    sweep_all(queue)
    assert statuses(queue, join_id) == ["terminated", "failed", "starting"]
    assert join(queue, join_id).in_flight == 1
    succeed(queue, three)
    assert queue.row(join_id).status == "terminated"


def test_a_child_that_is_being_let_go_is_cancelled_after_that(
    queue: Queue, opened: Session, other: Session
) -> None:
    join_id = fan_out(queue, 3, max_running=1)
    one, two, _ = children(queue, join_id)
    opened.verb("terminate_task", lease(queue, one))
    call = other.begin("cancel_task", task_id=two)
    other.blocked_by(opened)
    opened.commit()
    assert accepted(call).outcome == "cancelled"
    assert statuses(queue, join_id) == ["terminated", "failed", "starting"]
    assert join(queue, join_id).in_flight == 1


def test_a_held_child_cancelled_out_of_sight_makes_no_room(
    queue: Queue, two_open: list[Session]
) -> None:
    """Its news are read after its turn was passed by: it never ran all the same."""
    join_id = fan_out(queue, 7, max_running=2)
    one, two, three, *_ = children(queue, join_id)
    late, early = two_open
    first = lease(queue, one)
    early.rows("select from sokka.joins where task_id = %s for update", (join_id,))
    late.call("cancel_task", task_id=three)
    early.rollback()
    early.verb("terminate_task", first)
    early.commit()
    late.commit()
    succeed(queue, two)
    sweep_all(queue)
    for _ in range(3):
        live = [status for status in statuses(queue, join_id) if status == "starting"]
        assert (len(live), join(queue, join_id).in_flight) == (2, 2)
        succeed(queue, children(queue, join_id)[statuses(queue, join_id).index("starting")])


# The join's own end


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_a_join_is_being_cancelled_while_its_last_child_ends(
    queue: Queue, opened: Session, other: Session, commit: bool
) -> None:
    join_id = fan_out(queue, 1)
    held = lease(queue, children(queue, join_id)[0])
    opened.call("cancel_task", task_id=join_id)
    call = other.begin_verb("terminate_task", held)
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    assert accepted(call).status == "terminated"
    sweep_all(queue)
    found = join(queue, join_id)
    assert (found.state, found.outcome) == ("closed", "cancelled" if commit else "satisfied")
    assert queue.row(join_id).status == ("failed" if commit else "terminated")
    assert fired(queue, join_id) == 1


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_a_cancel_of_a_join_waits_for_the_end_that_fires_it(
    queue: Queue, opened: Session, other: Session, commit: bool
) -> None:
    join_id = fan_out(queue, 1)
    held = lease(queue, children(queue, join_id)[0])
    opened.verb("terminate_task", held)
    call = other.begin("cancel_task", task_id=join_id)
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    assert accepted(call).outcome == ("already_done" if commit else "cancelled")
    sweep_all(queue)
    assert join(queue, join_id).outcome == ("satisfied" if commit else "cancelled")
    assert fired(queue, join_id) == 1


def test_a_deadline_does_not_pass_over_an_end_under_way(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    join_id = fan_out(queue, 1, policy="all", deadline="1 minute")
    held = lease(queue, children(queue, join_id)[0])
    opened.verb("terminate_task", held)
    clock.advance("1 minute")
    accepted(other.begin("sweep"))
    opened.commit()
    sweep_all(queue)
    assert (join(queue, join_id).outcome, queue.row(join_id).status) == ("satisfied", "terminated")


def test_an_end_waits_for_the_sweep_that_decides_by_the_deadline_and_is_late(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    join_id = fan_out(queue, 1, policy="all", deadline="1 minute")
    held = lease(queue, children(queue, join_id)[0])
    clock.advance("1 minute")
    opened.call("sweep")
    call = other.begin_verb("terminate_task", held)
    other.blocked_by(opened)
    opened.commit()
    assert accepted(call).status == "terminated"
    sweep_all(queue)
    found = join(queue, join_id)
    assert (found.outcome, found.late, found.state) == ("deadline", 1, "closed")
    assert queue.row(join_id).error["code"] == "deadline"


def test_two_sweeps_at_once_fire_a_join_once(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    joins = [fan_out(queue, 2, deadline="1 minute", kind=kind) for kind in (None, "sum")]
    clock.advance("1 minute")
    opened.call("sweep")
    accepted(other.begin("sweep"))
    opened.commit()
    version = queue.row(joins[1]).record_ver
    sweep_all(queue)
    assert fired(queue, joins[0]) == 1
    assert (queue.row(joins[1]).status, queue.row(joins[1]).record_ver) == ("starting", version)


# Many at once


@pytest.mark.parametrize("seed", range(3))
def test_workers_in_a_hurry_lose_no_child_and_fire_each_join_once(
    queue: Queue, session: Sessions, seed: int
) -> None:
    random = Random(seed)
    policies = ["settled", "all", "any", "first_success"]
    joins = [
        fan_out(queue, random.choice([1, 2, 5, 30]), policy=random.choice(policies),
                max_running=random.choice([None, 1, 2, 4]), kind=random.choice([None, "sum"]),
                topic="c")
        for _ in range(15)
    ]  # fmt: skip
    workers = [session() for _ in range(4)]
    calls = [worker.begin_act(work(worker, seed * 10 + n)) for n, worker in enumerate(workers)]
    while not all(call.done() for call in calls):
        assert queue.rows(CROWDED) == []
        assert queue.rows(MISCOUNTED) == []
    assert [answer(call) for call in calls] == [None] * 4
    sweep_all(queue)
    while rest := queue.call("reserve_tasks", topics=["c"], pid="w1", max_tasks=100):
        succeed_all(queue, rest)
        sweep_all(queue)
    for join_id in joins:
        found = join(queue, join_id)
        assert (found.state, found.done) == ("closed", found.total), found
        assert fired(queue, join_id) == 1
    assert queue.value("select count(*) from sokka.tasks") == 0


def succeed_all(queue: Queue, leases: list[Row]) -> None:
    for held in leases:
        queue.verb("terminate_task", held)


# No join counts more ends than there are.
MISCOUNTED = """
    select j.task_id from sokka.joins j
     where j.done > (select count(*) from sokka.finished_tasks f where f.parent_task_id = j.task_id
                        and f.candidate is not null)
"""
# No join has more children under way than it may.
CROWDED = """
    select j.task_id, count(*) from sokka.joins j
      join sokka.tasks t on t.parent_task_id = j.task_id and t.run_at <> sokka.until_told()
     where j.max_running is not null group by j.task_id, j.max_running
    having count(*) > j.max_running
"""


def work(worker: Session, seed: int) -> Callable[[], None]:
    """Reserve and end until there is nothing more for a while."""
    random = Random(seed)

    def run() -> None:
        idle, mine = 0, []
        while idle < 30:
            mine += worker.call(
                "reserve_tasks", topics=["c"], pid="w1", max_tasks=random.choice([1, 3, 10])
            )
            idle = 0 if mine else idle + 1
            if not mine:
                worker.call("sweep")
                continue
            verbs = [random.choice(["terminate", "terminate", "fail"]) for _ in mine]
            verdicts = worker.call(
                "settle_tasks", pid="w1", task_ids=[row.task_id for row in mine],
                tokens=[row.token for row in mine], verbs=verbs,
                args=[Jsonb(ERROR if verb == "fail" else 1) for verb in verbs],
            )  # fmt: skip
            # One that another session is asking to stop is busy: it has its turn again.
            assert {row.verdict for row in verdicts} <= {"ok", "55P03"}
            busy = {row.task_id for row in verdicts if row.verdict != "ok"}
            mine = [row for row in mine if row.task_id in busy]

    return run


# The same fan-out twice


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("parented", [True, False], ids=["below a parent", "alone"])
def test_of_two_who_make_the_same_fan_out_the_second_gets_the_firsts(
    queue: Queue, opened: Session, other: Session, commit: bool, parented: bool
) -> None:
    held = proof(queue.leased("p")) if parented else {}
    join_id = uuid4()
    fan_out(opened, 3, task_id=join_id, **held)
    call = other.begin("fan_out", specs=specs(3), task_id=join_id, **held)
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    made = accepted(call)
    assert (made.task_id, made.created, made.total) == (join_id, not commit, 3)
    assert queue.value("select count(*) from sokka.tasks where parent_task_id = %s", join_id) == 3


def test_of_two_who_make_it_below_other_parents_the_second_is_refused(
    queue: Queue, opened: Session, other: Session
) -> None:
    join_id = uuid4()
    fan_out(opened, 1, task_id=join_id, **proof(queue.leased("p")))
    call = other.begin(
        "fan_out", specs=specs(1), task_id=join_id, **proof(queue.leased("p"))
    )
    other.blocked_by(opened)
    opened.commit()
    assert refused(call) == "SK008"


# The parent's lease


def test_a_fan_out_holds_its_parent_as_a_fence_does(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    held = queue.leased("p", lease="1 s")
    fan_out(opened, 1, **proof(held))
    accepted(other.begin_verb("report_progress", held, progress=Jsonb(1)))
    version = queue.row(held.task_id).record_ver
    call = other.begin("revoke_lease", task_id=held.task_id, record_ver=version)
    assert refused(call) == "55P03"
    clock.advance("1 s")
    assert accepted(other.begin("sweep")).taken_back == 0
    opened.commit()
    assert accepted(other.begin("sweep")).taken_back == 1


def test_a_parent_that_was_taken_over_meanwhile_fans_out_nothing(
    queue: Queue, opened: Session, other: Session
) -> None:
    held = queue.leased("p")
    opened.call("revoke_lease", task_id=held.task_id, record_ver=held.record_ver)
    call = other.begin("fan_out", specs=specs(2), task_id=uuid4(), **proof(held))
    other.blocked_by(opened)
    opened.commit()
    assert refused(call) == "SK006"
    assert queue.value("select count(*) from sokka.tasks") == 1
    assert queue.value("select count(*) from sokka.joins") == 0


# A parent that waits


def child_of(queue: Queue, held: Row) -> UUID:
    return queue.create("c", parent_task_id=held.task_id)


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_who_waits_for_a_child_that_is_ending_learns_how_that_came_out(
    queue: Queue, opened: Session, other: Session, commit: bool
) -> None:
    parent = queue.leased("p")
    child = child_of(queue, parent)
    held = lease(queue, child)
    opened.verb("terminate_task", held)
    call = other.begin_verb("wait_for_task", parent, waits_for=child)
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    assert accepted(call).status == ("starting" if commit else "snoozed")
    if not commit:
        fail(queue, child) if held is None else queue.verb("terminate_task", held)
    assert queue.row(parent.task_id).status == "starting"


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_a_child_that_ends_while_its_parent_falls_asleep_wakes_it(
    queue: Queue, opened: Session, other: Session, commit: bool
) -> None:
    parent = queue.leased("p")
    held = lease(queue, child_of(queue, parent))
    opened.verb("wait_for_task", parent, waits_for=held.task_id)
    call = other.begin_verb("terminate_task", held)
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    assert accepted(call).status == "terminated"
    assert queue.row(parent.task_id).status == ("starting" if commit else "running")


def test_a_batch_passes_by_a_child_whose_parent_falls_asleep(
    queue: Queue, opened: Session, other: Session
) -> None:
    parent = queue.leased("p")
    held = lease(queue, child_of(queue, parent))
    opened.verb("wait_for_task", parent, waits_for=held.task_id)
    batch = {"pid": "w1", "task_ids": [held.task_id], "tokens": [held.token]}
    assert accepted(other.begin("terminate_tasks", **batch)).verdict == "55P03"
    opened.commit()
    assert accepted(other.begin("terminate_tasks", **batch)).verdict == "ok"
    assert queue.row(parent.task_id).status == "starting"


def test_two_batches_that_end_each_others_children_and_wait_for_them_never_deadlock(
    queue: Queue, two_open: list[Session]
) -> None:
    """A batch waits for no row: not for that of the child either."""
    parents = [queue.leased("p") for _ in range(2)]
    kids = [lease(queue, child_of(queue, parent)) for parent in parents]
    for one, held in zip(two_open, kids, strict=True):
        one.call("terminate_tasks", pid="w1", task_ids=[held.task_id], tokens=[held.token])
    calls = [
        one.begin(
            "settle_tasks", pid="w1", task_ids=[parent.task_id], tokens=[parent.token],
            verbs=["wait"], args=[Jsonb(str(child.task_id))],
        )
        for one, parent, child in zip(two_open, reversed(parents), reversed(kids), strict=True)
    ]  # fmt: skip
    assert [accepted(call).verdict for call in calls] == ["55P03"] * 2
    for one in two_open:
        one.commit()
    for parent, child in zip(parents, kids, strict=True):
        found = queue.verb("wait_for_task", parent, waits_for=child.task_id)
        assert found.status == "starting"


def test_a_fan_out_that_fires_while_its_parent_falls_asleep_wakes_it(
    queue: Queue, opened: Session, other: Session
) -> None:
    parent = queue.leased("p")
    join_id = fan_out(queue, 1, **proof(parent))
    held = lease(queue, children(queue, join_id)[0])
    opened.verb("wait_for_task", parent, waits_for=join_id)
    accepted(other.begin_verb("terminate_task", held))
    assert queue.row(join_id).status == "snoozed"
    opened.commit()
    sweep_all(queue)
    assert (queue.row(join_id).status, queue.row(parent.task_id).status) == (
        "terminated", "starting",
    )  # fmt: skip


def test_a_cancel_waits_for_a_parent_that_falls_asleep_and_ends_it(
    queue: Queue, opened: Session, other: Session
) -> None:
    parent = queue.leased("p")
    child = child_of(queue, parent)
    opened.verb("wait_for_task", parent, waits_for=child)
    call = other.begin("cancel_task", task_id=parent.task_id)
    other.blocked_by(opened)
    opened.commit()
    assert accepted(call).outcome == "cancelled"
    sweep_all(queue)
    assert queue.row(child).error["code"] == "cancelled"


@pytest.mark.parametrize("how", ["a cancel", "a look by hand", "an acquire"])
def test_a_child_that_ends_while_somebody_holds_its_sleeping_parent_wakes_it_all_the_same(
    queue: Queue, opened: Session, other: Session, how: str
) -> None:
    """The hour is for what nobody foresaw, not for a cancel that was rolled back."""
    parent = queue.leased("p")
    held = lease(queue, child_of(queue, parent))
    queue.verb("wait_for_task", parent, waits_for=held.task_id)
    if how == "a cancel":
        opened.call("cancel_task", task_id=parent.task_id)
    elif how == "a look by hand":
        opened.rows("select from sokka.tasks where task_id = %s for update", (parent.task_id,))
    else:
        # Refused, and its transaction stays open with the row in hand.
        opened.execute("savepoint before")
        opened.rows("select from sokka.tasks where task_id = %s for update", (parent.task_id,))
        found = opened.refused("acquire_lease", task_id=parent.task_id, pid="w2")
        assert found.sqlstate == "SK010"
    if how == "a cancel":
        call = other.begin_verb("terminate_task", held)
        other.blocked_by(opened)
        opened.rollback()
        accepted(call)
    else:
        accepted(other.begin_verb("terminate_task", held))
        opened.rollback()
    sweep_all(queue)
    assert queue.row(parent.task_id).status == "starting"


def test_a_parent_waits_for_a_child_that_somebody_holds_no_longer_than_any_verb(
    queue: Queue, opened: Session, other: Session
) -> None:
    parent = queue.leased("p")
    child = child_of(queue, parent)
    before = queue.image(parent.task_id)
    opened.rows("select from sokka.tasks where task_id = %s for update", (child,))
    assert refused(other.begin_verb("wait_for_task", parent, waits_for=child)) == "55P03"
    assert queue.image(parent.task_id) == before


# Isolation


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_cancel_under_an_old_snapshot_is_counted_by_the_sweep_exactly_once(
    queue: Queue, opened: Session, other: Session, isolation: str
) -> None:
    join_id = fan_out(queue, 2)
    one, two = children(queue, join_id)
    held = lease(queue, two)
    opened.execute(f"set transaction isolation level {isolation}")
    opened.call("cancel_task", task_id=one)
    accepted(other.begin_verb("terminate_task", held))
    opened.commit()
    assert inbox(queue) >= 1
    sweep_all(queue)
    assert queue.row(join_id).result["failed"] == 1
    assert fired(queue, join_id) == 1


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_cancel_under_an_old_snapshot_wakes_a_parent_that_fell_asleep_since(
    queue: Queue, opened: Session, isolation: str
) -> None:
    parent = queue.leased("p")
    child = child_of(queue, parent)
    opened.execute(f"set transaction isolation level {isolation}")
    opened.rows("select from sokka.all_tasks")
    queue.verb("wait_for_task", parent, waits_for=child)
    opened.call("cancel_task", task_id=child)
    opened.commit()
    sweep_all(queue)
    assert queue.row(parent.task_id).status == "starting"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_cancel_under_an_old_snapshot_takes_along_children_made_since(
    queue: Queue, opened: Session, isolation: str
) -> None:
    parent = queue.create("p")
    opened.execute(f"set transaction isolation level {isolation}")
    opened.rows("select from sokka.all_tasks")
    child = queue.create("c", parent_task_id=parent)
    opened.call("cancel_task", task_id=parent)
    opened.commit()
    sweep_all(queue)
    assert queue.row(child).error["code"] == "cancelled"


def test_a_reducer_whose_row_is_held_when_its_child_ends_is_woken_too(
    queue: Queue, opened: Session, other: Session
) -> None:
    """Its note lies in the inbox of its own join."""
    join_id = fan_out(queue, 1, kind="sum")
    succeed(queue, *children(queue, join_id))
    reducer = lease(queue, join_id)
    held = lease(queue, child_of(queue, reducer))
    queue.verb("wait_for_task", reducer, waits_for=held.task_id)
    opened.rows("select from sokka.tasks where task_id = %s for update", (join_id,))
    accepted(other.begin_verb("terminate_task", held))
    opened.rollback()
    sweep_all(queue)
    assert queue.row(join_id).status == "starting"


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_child_made_while_its_parent_is_cancelled_does_not_outlive_it(
    queue: Queue, opened: Session, other: Session, isolation: str
) -> None:
    """Its parent is only looked at: neither waits for the other."""
    parent, bystander = queue.create("p"), queue.create("p")
    opened.execute(f"set transaction isolation level {isolation}")
    made = [opened.create("c", parent_task_id=task_id) for task_id in (parent, bystander)]
    opened.call("create_tasks", specs=Jsonb([{"topic": "d", "parent_task_id": str(parent)}]))
    assert accepted(other.begin("cancel_task", task_id=parent)).outcome == "cancelled"
    sweep_all(queue)
    opened.commit()
    sweep_all(queue)
    assert queue.row(made[0]).error["code"] == "cancelled"
    assert queue.value("select count(*) from sokka.tasks where topic = 'd'") == 0
    assert queue.row(made[1]).status == "starting"

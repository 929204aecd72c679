"""Joins: what decides each policy, who goes next, and that it fires exactly once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue
from tests.sql.joining import (
    children,
    fail,
    fan_out,
    fired,
    join,
    lease,
    proof,
    statuses,
    succeed,
    sweep_all,
)  # fmt: skip
from tests.sql.states import ERROR

Another = Callable[..., Queue]
SETTLED = "settled"
POLICIES: dict[str, dict[str, Any]] = {
    "settled": {"policy": "settled"},
    "all": {"policy": "all"},
    "any": {"policy": "any"},
    "first_success": {"policy": "first_success"},
    "quorum of none": {"policy": "quorum", "needed": 0},
    "quorum of two": {"policy": "quorum", "needed": 2},
    "quorum of three": {"policy": "quorum", "needed": 3},
}


def verdict(policy: dict[str, Any], total: int, ends: str) -> str | None:
    """What a policy says after these ends, in their order: S a success, F a failure."""
    good, bad = ends.count("S"), ends.count("F")
    if policy["policy"] == "settled":
        return "satisfied" if good + bad == total else None
    if policy["policy"] == "any":
        return {"": None if total else "unmet", "S": "satisfied", "F": "unmet"}[ends[:1]]
    needed = {"all": total, "first_success": 1}.get(policy["policy"], policy.get("needed"))
    if good >= needed:
        return "satisfied"
    return "unmet" if total - bad < needed else None


# Policies


@pytest.mark.parametrize("ends", ["".join(ends) for ends in product("SF", repeat=3)])
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_is_decided_by_the_first_end_that_decides_it(
    fresh: Queue, name: str, ends: str
) -> None:
    policy = POLICIES[name]
    join_id = fan_out(fresh, 3, **policy)
    # In an order of their own: not by their place, and not by their ids.
    order = [children(fresh, join_id)[place] for place in (1, 2, 0)]
    for count in range(4):
        outcome = verdict(policy, 3, ends[:count])
        found, task = join(fresh, join_id), fresh.row(join_id)
        if outcome is None:
            assert (found.state, found.outcome, task.status) == ("open", None, "snoozed")
            assert (found.done, found.decided_at) == (count, None)
        else:
            assert found.outcome == outcome
            assert task.status == ("terminated" if outcome == "satisfied" else "failed")
            assert (found.succeeded, found.failed) == (
                ends[:count].count("S"), ends[:count].count("F"),
            )  # fmt: skip
            assert (found.state, found.done, found.late) == ("closed", 3, 0)
            assert statuses(fresh, join_id).count("failed") == 3 - found.succeeded
            rest = [fresh.row(child) for child in order[count:]]
            assert [row.error["code"] for row in rest] == ["cancelled"] * len(rest)
            break
        (succeed if ends[count] == "S" else fail)(fresh, order[count])
    assert fired(fresh, join_id) == 1
    assert fresh.value("select count(*) from sokka.join_inbox") == 0


@pytest.mark.parametrize(("policy", "status"), [
    ({"policy": "settled"}, "terminated"),
    ({"policy": "all"}, "terminated"),
    ({"policy": "quorum", "needed": 0}, "terminated"),
    ({"policy": "any"}, "failed"),
    ({"policy": "first_success"}, "failed"),
], ids=str)  # fmt: skip
def test_without_candidates_a_join_is_decided_at_once(
    fresh: Queue, policy: dict[str, Any], status: str
) -> None:
    made = fresh.one("fan_out", specs=Jsonb([]), **policy)
    assert (made.status, made.total, made.created) == (status, 0, True)
    row, found = fresh.row(made.task_id), join(fresh, made.task_id)
    assert (row.status, found.state, found.done) == (status, "closed", 0)
    assert found.outcome == ("satisfied" if status == "terminated" else "unmet")
    assert (row.error or {}).get("code") == (None if status == "terminated" else "policy_unmet")


def test_the_result_of_a_join_says_what_it_came_to(fresh: Queue) -> None:
    join_id = fan_out(fresh, 4, policy="quorum", needed=2)
    one, two, three, _ = children(fresh, join_id)
    succeed(fresh, two)
    fail(fresh, three)
    succeed(fresh, one)
    row = fresh.row(join_id)
    assert (row.status, row.error, row.pid, row.token) == ("terminated", None, None, None)
    assert row.result == {
        "policy": "quorum", "needed": 2, "total": 4, "succeeded": 2, "failed": 1, "pending": 1,
        "deadline_passed": False,
    }  # fmt: skip


def test_the_error_of_an_unmet_join_says_what_it_came_to(fresh: Queue) -> None:
    join_id = fan_out(fresh, 4, policy="all")
    one, two, *_ = children(fresh, join_id)
    succeed(fresh, one)
    fail(fresh, two)
    row = fresh.row(join_id)
    assert (row.status, row.result, row.error["code"]) == ("failed", None, "policy_unmet")
    assert "all" in row.error["message"]
    assert row.error["join"] == {
        "policy": "all", "needed": 4, "total": 4, "succeeded": 1, "failed": 1, "pending": 2,
        "deadline_passed": False,
    }  # fmt: skip


@pytest.mark.parametrize(("better", "status"), [(1, "terminated"), (2, "failed")])
def test_of_first_answers_in_one_batch_the_first_candidates_counts(
    fresh: Queue, better: int, status: str
) -> None:
    join_id = fan_out(fresh, 2, policy="any")
    held = [lease(fresh, child) for child in children(fresh, join_id)]
    batch = {"pid": "w1", "task_ids": [row.task_id for row in held],
             "tokens": [row.token for row in held]}  # fmt: skip
    verbs = ["fail", "fail"]
    verbs[better - 1] = "terminate"
    args = [Jsonb(1) if verb == "terminate" else Jsonb(ERROR) for verb in verbs]
    if better == 1:
        verdicts = fresh.call("settle_tasks", **batch, verbs=verbs, args=args)
        assert [row.verdict for row in verdicts] == ["ok", "ok"]
    else:
        fail(fresh, held[0].task_id)
        fresh.call("terminate_tasks", pid="w1", task_ids=[held[1].task_id], tokens=[held[1].token])
    assert fresh.row(join_id).status == status


# However a child ends


def retry_out(queue: Queue, clock: Clock, child: UUID) -> None:
    held = lease(queue, child)
    queue.verb("retry_task", held, error=ERROR)


def snooze_out(queue: Queue, clock: Clock, child: UUID) -> None:
    held = lease(queue, child)
    queue.verb("snooze_task", held, snooze="0")
    fail(queue, child)


def expire(queue: Queue, clock: Clock, child: UUID) -> None:
    queue.execute("update sokka.tasks set expires_at = sokka.clock() where task_id = %s", child)
    clock.advance("1 s")
    assert queue.one("sweep").expired == 1


def lose(queue: Queue, clock: Clock, child: UUID) -> None:
    lease(queue, child, span="1 s")
    queue.execute("update sokka.tasks set max_losses = 0 where task_id = %s", child)
    clock.advance("1 s")
    assert queue.one("sweep").failed_lost == 1


def cancel(queue: Queue, clock: Clock, child: UUID) -> None:
    assert queue.one("cancel_task", task_id=child).outcome == "cancelled"


def cancel_running(queue: Queue, clock: Clock, child: UUID) -> None:
    held = lease(queue, child)
    queue.one("cancel_task", task_id=child)
    queue.verb("release_lease", held)


def cancel_and_revoke(queue: Queue, clock: Clock, child: UUID) -> None:
    lease(queue, child)
    queue.one("cancel_task", task_id=child)
    version = queue.row(child).record_ver
    queue.one("revoke_lease", task_id=child, record_ver=version)


def delete_by_hand(queue: Queue, clock: Clock, child: UUID) -> None:
    assert queue.execute("delete from sokka.tasks where task_id = %s", child) == 1
    queue.one("sweep")


def succeed_in_a_batch(queue: Queue, clock: Clock, child: UUID) -> None:
    held = lease(queue, child)
    queue.one("terminate_tasks", pid="w1", task_ids=[child], tokens=[held.token])


def settle(queue: Queue, clock: Clock, child: UUID) -> None:
    held = lease(queue, child)
    queue.one(
        "settle_tasks", pid="w1", task_ids=[child], tokens=[held.token], verbs=["fail"],
        args=[Jsonb(ERROR)],
    )  # fmt: skip


def settle_and_reserve(queue: Queue, clock: Clock, child: UUID) -> None:
    held = lease(queue, child)
    first = queue.call(
        "settle_and_reserve", pid="w1", task_ids=[child], tokens=[held.token],
        verbs=["terminate"], args=[Jsonb(1)], topics=["elsewhere"], max_tasks=1,
    )[0]  # fmt: skip
    assert first.verdict == "ok"


ENDS = {
    succeed_in_a_batch: True, settle_and_reserve: True, settle: False, retry_out: False,
    snooze_out: False, expire: False, lose: False, cancel: False, cancel_running: False,
    cancel_and_revoke: False, delete_by_hand: False,
}  # fmt: skip


@pytest.mark.parametrize("how", ENDS, ids=lambda how: how.__name__)
def test_a_child_counts_once_however_it_ends(
    fresh: Queue, clock: Clock, how: Callable[[Queue, Clock, UUID], None]
) -> None:
    join_id = fan_out(fresh, 2, policy="all" if ENDS[how] else "settled")
    first, last = children(fresh, join_id)
    how(fresh, clock, first)
    found = join(fresh, join_id)
    assert (found.done, found.succeeded, found.failed) == (1, ENDS[how], not ENDS[how])
    assert (found.in_flight, found.state) == (1, "open")
    how(fresh, clock, last)
    assert fresh.row(join_id).status == "terminated"
    assert fired(fresh, join_id) == 1


@pytest.mark.parametrize("how", [how for how in ENDS if not ENDS[how]], ids=lambda h: h.__name__)
def test_whatever_is_no_success_is_a_failure_to_a_policy(
    fresh: Queue, clock: Clock, how: Callable[[Queue, Clock, UUID], None]
) -> None:
    for policy in ("all", "any"):
        join_id = fan_out(fresh, 1, policy=policy)
        how(fresh, clock, children(fresh, join_id)[0])
        row = fresh.row(join_id)
        assert (row.status, row.error["code"]) == ("failed", "policy_unmet")


def test_what_is_not_an_end_counts_for_nothing(fresh: Queue, clock: Clock) -> None:
    join_id = fan_out(fresh, 1, max_running=1)
    (child,) = children(fresh, join_id)
    fresh.execute("update sokka.tasks set max_attempts = 9 where task_id = %s", child)
    fresh.verb("release_lease", lease(fresh, child))
    fresh.verb("snooze_task", lease(fresh, child), snooze="0")
    fresh.verb("retry_task", lease(fresh, child), error=ERROR, delay="0")
    held = lease(fresh, child)
    fresh.one("revoke_lease", task_id=child, record_ver=held.record_ver)
    lease(fresh, child, span="1 s")
    clock.advance("1 s")
    fresh.one("sweep")
    found = join(fresh, join_id)
    assert (found.done, found.in_flight, found.state) == (0, 1, "open")
    succeed(fresh, child)
    assert fresh.row(join_id).status == "terminated"


@pytest.mark.parametrize("size", [2, 500])
def test_a_whole_batch_of_last_children_fires_once(fresh: Queue, size: int) -> None:
    join_id = fan_out(fresh, size, policy="all")
    leases = fresh.call("reserve_tasks", topics=["c"], pid="w1", max_tasks=size)
    batch = {"task_ids": [row.task_id for row in leases], "tokens": [row.token for row in leases]}
    assert {row.verdict for row in fresh.call("terminate_tasks", pid="w1", **batch)} == {"ok"}
    assert fresh.row(join_id).result["succeeded"] == size
    assert fired(fresh, join_id) == 1


def test_a_batch_over_several_joins_advances_each(fresh: Queue) -> None:
    joins = [fan_out(fresh, 3, policy="all") for _ in range(4)]
    leases = fresh.call("reserve_tasks", topics=["c"], pid="w1", max_tasks=11)
    fresh.call(
        "settle_tasks", pid="w1", task_ids=[row.task_id for row in leases],
        tokens=[row.token for row in leases], verbs=["terminate"] * 11,
    )  # fmt: skip
    assert [fresh.row(join_id).status for join_id in joins] == ["terminated"] * 3 + ["snoozed"]
    assert [join(fresh, join_id).done for join_id in joins] == [3, 3, 3, 2]


def test_an_end_that_rolls_back_has_not_been(fresh: Queue) -> None:
    join_id = fan_out(fresh, 1)
    (child,) = children(fresh, join_id)
    held, before = lease(fresh, child), fresh.image(join_id)
    with fresh.connection.transaction(force_rollback=True):
        fresh.verb("terminate_task", held)
        assert fresh.row(join_id).status == "terminated"
    assert fresh.image(join_id) == before
    assert join(fresh, join_id).done == 0
    fresh.verb("terminate_task", held)
    assert fired(fresh, join_id) == 1


def test_children_that_are_forgotten_before_the_last_ends_have_counted(
    fresh: Queue, clock: Clock
) -> None:
    join_id = fan_out(fresh, 3, policy="quorum", needed=2)
    one, two, three = children(fresh, join_id)
    succeed(fresh, one)
    fail(fresh, two)
    clock.advance("60 days")
    fresh.one("sweep")
    while fresh.call("apply_retention"):
        pass
    assert [fresh.call("get_task", task_id=child) for child in (one, two)] == [[], []]
    assert join(fresh, join_id).done == 2
    assert [row.candidate for row in fresh.call("join_results", task_id=join_id)] == [3]
    succeed(fresh, three)
    assert fresh.row(join_id).result["succeeded"] == 2


def test_what_ended_under_an_old_snapshot_is_counted_by_the_sweep(
    fresh: Queue, another: Another
) -> None:
    for isolation in ("repeatable read", "serializable"):
        join_id = fan_out(fresh, 1)
        caller = another(autocommit=False)
        caller.execute(f"set transaction isolation level {isolation}")
        caller.call("cancel_task", task_id=children(fresh, join_id)[0])
        caller.connection.commit()
        assert (join(fresh, join_id).done, fresh.row(join_id).status) == (0, "snoozed")
        fresh.one("sweep")
        assert (join(fresh, join_id).done, fresh.row(join_id).status) == (1, "terminated")


# The rest, once decided


def test_the_rest_are_cancelled_and_the_running_are_asked(fresh: Queue) -> None:
    join_id = fan_out(fresh, 4, policy="first_success", max_running=3)
    one, two, three, four = children(fresh, join_id)
    running = lease(fresh, two)
    succeed(fresh, one)
    assert statuses(fresh, join_id) == ["terminated", "running", "failed", "failed"]
    for child in (three, four):
        assert fresh.row(child).error["code"] == "cancelled"
        assert fresh.row(child).error["reason"]
    assert fresh.row(two).cancel_requested_at is not None
    found = join(fresh, join_id)
    assert (found.state, found.outcome, found.done, found.late) == ("decided", "satisfied", 3, 0)
    fresh.verb("terminate_task", running)
    found = join(fresh, join_id)
    assert (found.state, found.done, found.late, found.succeeded) == ("closed", 4, 1, 1)


@pytest.mark.parametrize(("verb", "late"), [
    ("terminate_task", 1), ("fail_task", 1), ("release_lease", 0), ("snooze_task", 0),
])  # fmt: skip
def test_late_is_what_a_child_still_answers_not_that_it_stopped(
    fresh: Queue, verb: str, late: int
) -> None:
    join_id = fan_out(fresh, 2, policy="any")
    one, two = children(fresh, join_id)
    running = lease(fresh, two)
    fail(fresh, one)
    row = fresh.row(join_id)
    options = {"fail_task": {"error": ERROR}, "snooze_task": {"snooze": "1 s"}}.get(verb, {})
    fresh.verb(verb, running, **options)
    found = join(fresh, join_id)
    assert (found.done, found.late, found.state) == (2, late, "closed")
    assert (found.succeeded, found.failed) == (0, 1)
    assert fresh.row(join_id) == row


def test_a_success_after_a_quorum_is_out_of_reach_changes_nothing(fresh: Queue) -> None:
    join_id = fan_out(fresh, 3, policy="quorum", needed=2)
    one, two, three = children(fresh, join_id)
    running = lease(fresh, three)
    fail(fresh, one, two)
    assert fresh.row(join_id).status == "failed"
    fresh.verb("terminate_task", running)
    found = join(fresh, join_id)
    assert (found.outcome, found.succeeded, found.late) == ("unmet", 0, 1)
    assert fired(fresh, join_id) == 1


# How many at once


def test_no_more_run_than_may_and_the_next_goes_when_one_ends(fresh: Queue) -> None:
    join_id = fan_out(fresh, 6, max_running=2)
    kids = children(fresh, join_id)
    assert statuses(fresh, join_id) == ["starting"] * 2 + ["held"] * 4
    succeed(fresh, kids[1])
    assert statuses(fresh, join_id) == ["starting", "terminated", "starting"] + ["held"] * 3
    fail(fresh, kids[0])
    assert statuses(fresh, join_id)[2:] == ["starting"] * 2 + ["held"] * 2
    assert join(fresh, join_id).in_flight == 2
    with fresh.connection.transaction():
        succeed(fresh, kids[2], kids[3])
    assert statuses(fresh, join_id)[4:] == ["starting"] * 2
    succeed(fresh, kids[5], kids[4])
    assert fresh.row(join_id).result["succeeded"] == 5
    assert join(fresh, join_id).in_flight == 0


@pytest.mark.parametrize("size", [1, 3, 7])
def test_candidates_go_in_their_order(fresh: Queue, size: int) -> None:
    join_id = fan_out(fresh, 20, max_running=size)
    kids, seen = children(fresh, join_id), []
    for _ in range(20):
        held = fresh.reserve("c")
        seen.append(held.task_id)
        fresh.verb("terminate_task", held)
        live = [s for s in statuses(fresh, join_id) if s in ("starting", "running")]
        assert len(live) <= size
    assert seen == kids
    assert fresh.row(join_id).status == "terminated"


def test_a_limit_beyond_their_number_holds_nobody(fresh: Queue) -> None:
    assert statuses(fresh, fan_out(fresh, 3, max_running=3)) == ["starting"] * 3
    assert statuses(fresh, fan_out(fresh, 3, max_running=99)) == ["starting"] * 3


def test_a_batch_of_ends_lets_as_many_go(fresh: Queue) -> None:
    join_id = fan_out(fresh, 100, max_running=10)
    for _ in range(10):
        leases = fresh.call("reserve_tasks", topics=["c"], pid="w1", max_tasks=100)
        assert len(leases) == 10
        fresh.call(
            "terminate_tasks", pid="w1", task_ids=[row.task_id for row in leases],
            tokens=[row.token for row in leases],
        )  # fmt: skip
    assert fresh.row(join_id).result["succeeded"] == 100


def test_a_retried_child_keeps_its_place_among_those_that_run(fresh: Queue) -> None:
    join_id = fan_out(fresh, 2, max_running=1)
    (first, _) = children(fresh, join_id)
    fresh.execute("update sokka.tasks set max_attempts = 2 where task_id = %s", first)
    fresh.verb("retry_task", lease(fresh, first), error=ERROR, delay="1 hour")
    assert statuses(fresh, join_id) == ["snoozed", "held"]
    assert fresh.call("reserve_task", topic="c", pid="w") == []


def test_a_child_that_is_let_go_wakes_a_sleeper(fresh: Queue, another: Another) -> None:
    listener = another()
    listener.execute("listen sokka")
    join_id = fan_out(fresh, 2, max_running=1)
    fresh.value("select sokka.mark_idle(array['c'], 'sleeper', '1 minute')")
    succeed(fresh, children(fresh, join_id)[0])
    (notice,) = listener.connection.notifies(timeout=20, stop_after=1)
    assert notice.payload == "t" + fresh.value("select sokka.topic_hash('c')")


HELD_ENDS: dict[str, Callable[[Queue, Clock, UUID], None]] = {
    "cancelled": cancel, "expired": expire, "deleted": delete_by_hand,
}  # fmt: skip


@pytest.mark.parametrize("how", HELD_ENDS)
@pytest.mark.parametrize("place", [2, 3, 5])
def test_a_held_child_that_ends_makes_no_room_and_is_not_waited_for(
    fresh: Queue, clock: Clock, how: str, place: int
) -> None:
    join_id = fan_out(fresh, 5, max_running=1)
    kids = children(fresh, join_id)
    HELD_ENDS[how](fresh, clock, kids[place - 1])
    found = join(fresh, join_id)
    assert (found.done, found.failed, found.in_flight) == (1, 1, 1)
    live = [child for n, child in enumerate(kids, 1) if n != place]
    for child in live:
        assert fresh.reserve("c").task_id == child
        assert fresh.call("reserve_task", topic="c", pid="w") == []
        fresh.verb("terminate_task", fresh.one("acquire_lease", task_id=child, pid="w1"))
    row = fresh.row(join_id)
    assert (row.status, row.result["succeeded"], row.result["failed"]) == ("terminated", 4, 1)


def test_all_held_children_may_be_cancelled_one_by_one(fresh: Queue) -> None:
    join_id = fan_out(fresh, 4, max_running=1)
    first, *held = children(fresh, join_id)
    for child in reversed(held):
        fresh.one("cancel_task", task_id=child)
    assert join(fresh, join_id).done == 3
    succeed(fresh, first)
    assert fresh.row(join_id).result["failed"] == 3


def test_a_revoke_does_not_let_a_held_child_go_past_the_limit(fresh: Queue) -> None:
    """Either it stays held, or it counts among those that run."""
    join_id = fan_out(fresh, 6, max_running=2)
    kids = children(fresh, join_id)
    version = fresh.row(kids[2]).record_ver
    fresh.refusal("revoke_lease", task_id=kids[2], record_ver=version)
    most = 0
    for _ in range(6):
        live = [s for s in statuses(fresh, join_id) if s in ("starting", "running")]
        most = max(most, len(live))
        succeed(fresh, next(k for k in kids if fresh.row(k).status == "starting"))
    assert fresh.row(join_id).status == "terminated"
    assert most <= 2


@pytest.mark.parametrize("kind", ["join", "held"])
def test_neither_a_join_nor_a_held_child_is_revoked(fresh: Queue, kind: str) -> None:
    join_id = fan_out(fresh, 2, max_running=1)
    task_id = join_id if kind == "join" else children(fresh, join_id)[1]
    before = fresh.image(task_id)
    version = fresh.row(task_id).record_ver
    found = fresh.refused("revoke_lease", task_id=task_id, record_ver=version)
    assert (found.sqlstate, found.detail["status"]) == ("SK006", "snoozed")
    assert fresh.image(task_id) == before


# Deadlines


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "quorum of none"])
def test_at_its_deadline_a_join_is_decided_by_what_is_there(
    fresh: Queue, clock: Clock, name: str
) -> None:
    clock.stop()
    join_id = fan_out(fresh, 4, deadline="1 minute", max_running=3, **POLICIES[name])
    one, two, *_ = children(fresh, join_id)
    if name not in ("any", "first_success"):
        succeed(fresh, one)
    running = lease(fresh, two)
    clock.advance("59.999 s")
    fresh.one("sweep")
    assert fresh.row(join_id).status == "snoozed"
    clock.advance("0.001 s")
    fresh.one("sweep")
    row, found = fresh.row(join_id), join(fresh, join_id)
    assert (found.outcome, found.state) == ("deadline", "decided")
    summary = row.result if name == SETTLED else row.error["join"]
    assert row.status == ("terminated" if name == SETTLED else "failed")
    assert (row.error or {}).get("code") == (None if name == SETTLED else "deadline")
    done = 0 if name in ("any", "first_success") else 1
    assert (summary["deadline_passed"], summary["pending"]) == (True, 4 - done)
    assert summary["succeeded"] == done
    assert statuses(fresh, join_id)[1:] == ["running", "failed", "failed"]
    assert fresh.row(two).cancel_requested_at is not None
    fresh.verb("terminate_task", running)
    found = join(fresh, join_id)
    assert (found.state, found.late) == ("closed", 1)
    assert fired(fresh, join_id) == 1


def test_a_child_that_ends_past_the_deadline_decides_before_the_sweep_does(
    fresh: Queue, clock: Clock
) -> None:
    """The end that is there counts; only what is missing is missed."""
    clock.stop()
    early = fan_out(fresh, 1, policy="all", deadline="1 minute")
    late = fan_out(fresh, 2, policy="all", deadline="1 minute")
    clock.advance("1 minute")
    succeed(fresh, *children(fresh, early))
    succeed(fresh, children(fresh, late)[0])
    assert (fresh.row(early).status, join(fresh, early).outcome) == ("terminated", "satisfied")
    assert (fresh.row(late).status, join(fresh, late).outcome) == ("failed", "deadline")


def test_a_deadline_of_nothing_is_over_at_once(fresh: Queue) -> None:
    made = fresh.one("fan_out", specs=Jsonb([{"topic": "c"}] * 2), deadline="0")
    assert made.status == "terminated"
    assert fresh.row(made.task_id).result["deadline_passed"] is True
    assert statuses(fresh, made.task_id) == ["failed"] * 2


def test_a_join_that_was_decided_in_time_has_no_deadline_any_more(
    fresh: Queue, clock: Clock
) -> None:
    join_id = fan_out(fresh, 1, deadline="1 minute", kind="sum")
    succeed(fresh, *children(fresh, join_id))
    before = fresh.image(join_id)
    clock.advance("1 hour")
    assert fresh.one("sweep").next_due_at is None
    assert fresh.image(join_id) == before


# Reducers


def test_a_reducer_is_ready_when_its_join_is_satisfied_and_not_before(fresh: Queue) -> None:
    join_id = fan_out(fresh, 2, policy="all", kind="sum", topic="r")
    one, two = children(fresh, join_id)
    topic = fresh.row(join_id).topic
    succeed(fresh, one)
    assert fresh.row(join_id).status == "snoozed"
    version = fresh.row(join_id).record_ver
    succeed(fresh, two)
    row = fresh.row(join_id)
    assert (row.status, row.record_ver) == ("starting", version + 1)
    held = fresh.reserve(topic)
    assert (held.task_id, held.kind, held.attempt) == (join_id, "sum", 1)
    assert fresh.call("reserve_task", topic=topic, pid="w") == []
    fresh.verb("terminate_task", held, result=Jsonb(42))
    row, found = fresh.row(join_id), join(fresh, join_id)
    assert (row.status, row.result) == ("terminated", 42)
    assert (found.state, found.outcome) == ("closed", "satisfied")
    assert fresh.value("select count(*) from sokka.join_inbox") == 0


@pytest.mark.parametrize("how", ["fails", "retries out", "is lost", "is cancelled"])
def test_a_reducer_ends_like_any_task_and_the_decision_stands(
    fresh: Queue, clock: Clock, how: str
) -> None:
    clock.stop()
    join_id = fan_out(fresh, 1, kind="sum", max_attempts=2)
    succeed(fresh, *children(fresh, join_id))
    held = lease(fresh, join_id, span="1 s")
    if how == "fails":
        fresh.verb("fail_task", held, error=ERROR)
    elif how == "retries out":
        fresh.verb("retry_task", held, error=ERROR, delay="0")
        fresh.verb("retry_task", lease(fresh, join_id), error=ERROR)
    elif how == "is lost":
        for _ in range(6):
            clock.advance("1 s")
            fresh.one("sweep")
            if fresh.row(join_id).status == "starting":
                lease(fresh, join_id, span="1 s")
    else:
        fresh.one("cancel_task", task_id=join_id)
        fresh.verb("release_lease", held)
    assert fresh.row(join_id).status == "failed"
    found = join(fresh, join_id)
    assert (found.state, found.outcome, found.succeeded) == ("closed", "satisfied", 1)


def test_a_reducer_may_be_revoked_like_any_running_task(fresh: Queue) -> None:
    join_id = fan_out(fresh, 1, kind="sum")
    succeed(fresh, *children(fresh, join_id))
    held = lease(fresh, join_id)
    answer = fresh.one("revoke_lease", task_id=join_id, record_ver=held.record_ver)
    assert answer.status == "starting"
    assert lease(fresh, join_id).token > held.token


def test_an_unmet_join_has_nothing_to_reduce(fresh: Queue) -> None:
    join_id = fan_out(fresh, 2, policy="all", kind="sum")
    fail(fresh, children(fresh, join_id)[0])
    row = fresh.row(join_id)
    assert (row.status, row.error["code"], row.attempt) == ("failed", "policy_unmet", 0)


def test_what_is_there_at_the_deadline_of_a_settled_join_is_reduced(
    fresh: Queue, clock: Clock
) -> None:
    settled = fan_out(fresh, 2, kind="sum", deadline="1 s")
    every = fan_out(fresh, 2, kind="sum", deadline="1 s", policy="all")
    clock.advance("1 s")
    fresh.one("sweep")
    assert fresh.row(settled).status == "starting"
    assert fresh.row(every).error["code"] == "deadline"


def test_a_reducer_without_candidates_is_ready_at_once(fresh: Queue) -> None:
    made = fresh.one("fan_out", specs=Jsonb([]), kind="sum", topic="r")
    assert made.status == "starting"
    assert fresh.reserve("r").task_id == made.task_id
    unmet = fresh.one("fan_out", specs=Jsonb([]), kind="sum", topic="r", policy="any")
    assert unmet.status == "failed"


def test_late_answers_do_not_make_a_reducer_ready_again(fresh: Queue) -> None:
    join_id = fan_out(fresh, 3, policy="first_success", kind="sum")
    one, two, three = children(fresh, join_id)
    slow, slower = lease(fresh, two), lease(fresh, three)
    succeed(fresh, one)
    held = lease(fresh, join_id)
    fresh.verb("terminate_task", slow)
    assert fresh.row(join_id).token == held.token
    fresh.verb("terminate_task", held)
    before = fresh.row(join_id)
    fresh.verb("fail_task", slower, error=ERROR)
    assert fresh.row(join_id) == before
    assert join(fresh, join_id).late == 2


def test_a_reducer_does_not_wait_for_a_single_candidate(fresh: Queue) -> None:
    """The end of a candidate tells its join, and nobody who sleeps."""
    join_id = fan_out(fresh, 2, policy="first_success", kind="sum")
    one, two = children(fresh, join_id)
    lease(fresh, two)
    succeed(fresh, one)
    held = lease(fresh, join_id)
    proven = {"task_id": held.task_id, "pid": held.pid, "token": held.token}
    before = fresh.image(join_id)
    for child in (one, two):
        found = fresh.refused("wait_for_task", **proven, waits_for=child)
        assert (found.sqlstate, found.detail["argument"]) == ("22023", "waits_for")
    assert fresh.image(join_id) == before


@pytest.mark.parametrize("how", ["a late answer", "the sweep"])
def test_late_answers_leave_alone_what_the_reducer_has_begun(fresh: Queue, how: str) -> None:
    """It is below the same task as the candidates are."""
    join_id = fan_out(fresh, 4, policy="first_success", kind="sum")
    one, *late = children(fresh, join_id)
    slow = [lease(fresh, child) for child in late]
    succeed(fresh, one)
    reducer = lease(fresh, join_id)
    inner = fan_out(fresh, 1, topic="d", **proof(reducer))
    plain = fresh.create("d", parent_task_id=join_id)
    fresh.verb("wait_for_task", reducer, waits_for=inner)
    if how == "the sweep":
        fresh.execute("delete from sokka.tasks where task_id = %s", slow[0].task_id)
        sweep_all(fresh)
    else:
        fresh.verb("terminate_task", slow[0])
    assert [fresh.row(task_id).status for task_id in (join_id, inner, plain)] == [
        "snoozed", "snoozed", "starting",
    ]  # fmt: skip
    for held in slow[1:]:
        fresh.verb("terminate_task", held)
    assert join(fresh, join_id).state == "closed"
    succeed(fresh, *children(fresh, inner))
    assert fresh.row(join_id).status == "starting"


def test_a_cancelled_reducer_takes_along_what_it_has_begun(fresh: Queue) -> None:
    join_id = fan_out(fresh, 1, kind="sum")
    succeed(fresh, *children(fresh, join_id))
    reducer = lease(fresh, join_id)
    inner = fan_out(fresh, 2, **proof(reducer))
    fresh.verb("wait_for_task", reducer, waits_for=inner)
    fresh.one("cancel_task", task_id=join_id)
    sweep_all(fresh)
    for task_id in (join_id, inner, *children(fresh, inner)):
        assert fresh.row(task_id).error["code"] == "cancelled"


# Below one another


def test_a_fan_out_below_a_candidate_counts_for_that_candidate_only(fresh: Queue) -> None:
    outer = fan_out(fresh, 2, policy="all")
    one, two = children(fresh, outer)
    held = lease(fresh, one)
    inner = fan_out(fresh, 2, policy="all", **proof(held))
    assert fresh.row(inner).depth == 2
    fresh.verb("wait_for_task", held, waits_for=inner)
    succeed(fresh, *children(fresh, inner))
    assert fresh.row(inner).status == "terminated"
    assert join(fresh, outer).done == 0
    assert fresh.row(one).status == "starting"
    succeed(fresh, one, two)
    assert fresh.row(outer).result["succeeded"] == 2


def test_a_decided_join_cancels_what_is_below_its_waiting_candidates(fresh: Queue) -> None:
    outer = fan_out(fresh, 2, policy="first_success")
    one, two = children(fresh, outer)
    held = lease(fresh, one)
    inner = fan_out(fresh, 2, **proof(held))
    fresh.verb("wait_for_task", held, waits_for=inner)
    succeed(fresh, two)
    for task_id in (one, inner, *children(fresh, inner)):
        assert fresh.row(task_id).error["code"] == "cancelled"
    sweep_all(fresh)
    assert (join(fresh, inner).outcome, join(fresh, inner).state) == ("cancelled", "closed")
    assert join(fresh, outer).state == "closed"


def test_joins_of_one_parent_do_not_touch_each_other(fresh: Queue) -> None:
    parent = fresh.leased("t")
    one, two = (fan_out(fresh, 2, policy="any", **proof(parent)) for _ in range(2))
    succeed(fresh, children(fresh, one)[0])
    assert (fresh.row(one).status, fresh.row(two).status) == ("terminated", "snoozed")
    assert statuses(fresh, two) == ["starting"] * 2


# A join that is taken away


@pytest.mark.parametrize("how", ["cancelled", "deleted"])
def test_without_its_task_a_join_is_cancelled_and_so_are_its_children(
    fresh: Queue, how: str
) -> None:
    join_id = fan_out(fresh, 3, policy="all", max_running=2)
    one, two, _ = children(fresh, join_id)
    succeed(fresh, one)
    running = lease(fresh, two)
    if how == "cancelled":
        assert fresh.one("cancel_task", task_id=join_id).outcome == "cancelled"
    else:
        fresh.execute("delete from sokka.tasks where task_id = %s", join_id)
        fresh.one("sweep")
    found = join(fresh, join_id)
    assert (found.state, found.outcome, found.succeeded) == ("decided", "cancelled", 1)
    assert statuses(fresh, join_id) == ["terminated", "running", "failed"]
    fresh.verb("terminate_task", running)
    assert join(fresh, join_id).state == "closed"
    if how == "cancelled":
        assert fresh.row(join_id).error["code"] == "cancelled"


# How much it costs

BUFFERS = "explain (analyze, buffers, format json) select * from sokka.terminate_task(%s, %s, %s)"


def buffers(queue: Queue, held: Any) -> int:
    """The pages that one end touches, in all functions and triggers below it."""
    plan = queue.value(BUFFERS, held.task_id, held.pid, held.token)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("limit", [None, 50], ids=["unbounded", "max_running"])
def test_an_end_reads_no_more_when_ten_thousand_siblings_have_ended_than_when_ten_have(
    fresh: Queue, limit: int | None
) -> None:
    join_id = fan_out(fresh, 10_000, max_running=limit)
    for _ in range(20):
        fresh.verb("terminate_task", fresh.reserve("c"))
    cost = {}
    for done in (30, 9_900):
        while (left := done - join(fresh, join_id).done) > 0:
            leases = fresh.call(
                "reserve_tasks", topics=["c"], pid="w1", max_tasks=min(left, limit or 1000)
            )
            fresh.call(
                "terminate_tasks", pid="w1", task_ids=[row.task_id for row in leases],
                tokens=[row.token for row in leases],
            )  # fmt: skip
        measured = [buffers(fresh, fresh.reserve("c")) for _ in range(8)]
        cost[done] = sorted(measured)[4]
    # An index that has grown by a level or two, not a walk over what is done or held.
    assert cost[9_900] <= cost[30] + 60, cost
    assert max(cost.values()) <= 200, cost


def test_counting_up_a_join_is_a_hot_update(fresh: Queue) -> None:
    join_id = fan_out(fresh, 300, deadline="1 hour")
    for _ in range(300):
        fresh.verb("terminate_task", fresh.reserve("c"))
    assert join(fresh, join_id).done == 300
    updates, hot = fresh.updates("sokka.joins")
    assert updates >= 299
    assert hot >= 0.95 * updates


def test_reports_of_progress_stay_hot_whoever_the_task_belongs_to(fresh: Queue) -> None:
    join_id = fan_out(fresh, 1)
    held = lease(fresh, children(fresh, join_id)[0])
    fresh.value("select sokka.watch_tasks('w', array[%s], '1 hour')", held.task_id)
    before = fresh.updates("sokka.tasks")
    for number in range(200):
        fresh.verb("report_progress", held, progress=Jsonb(number))
    after = fresh.updates("sokka.tasks")
    assert after[0] - before[0] == 200
    assert after[1] - before[1] >= 190


def test_the_sweep_finds_at_once_that_there_is_nothing_to_do(fresh: Queue) -> None:
    for _ in range(3):
        fan_out(fresh, 100, max_running=1)
    sweep_all(fresh)
    plan = fresh.value("explain (analyze, buffers, format json) select * from sokka.sweep()")
    assert plan[0]["Plan"]["Shared Hit Blocks"] < 2000


def test_a_sweep_that_ends_a_candidate_sees_what_that_asks_of_the_next(
    fresh: Queue, clock: Clock
) -> None:
    """The first loss decides the join and asks the second candidate to stop."""
    specs = [{"topic": "c", "max_losses": losses} for losses in (0, 5)]
    join_id = fresh.one("fan_out", specs=Jsonb(specs), policy="all").task_id
    for _ in specs:
        fresh.reserve("c", lease="1 s")
    clock.advance("2 s")
    fresh.one("sweep")
    ends = fresh.rows(
        "select status, error ->> 'code' as code from sokka.join_results(%s) order by code",
        [join_id],
    )
    assert [(end.status, end.code) for end in ends] == [
        ("failed", "cancelled"), ("failed", "lease_lost"),
    ]  # fmt: skip
    seqs = fresh.rows(
        "select h.task_id, count(*), count(distinct h.seq) as different from sokka.task_history h"
        " group by h.task_id"
    )
    assert all(row.count == row.different for row in seqs)

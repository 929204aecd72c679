"""wait_for_task: a parent sleeps, without a slot, until a child of it is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue, Row
from tests.sql.joining import children, fail, fan_out, proof, succeed
from tests.sql.states import ERROR, WRONG_STATES

Another = Callable[..., Queue]


@pytest.fixture
def held(fresh: Queue) -> Row:
    """A running parent."""
    return fresh.leased("p")


def child_of(queue: Queue, held: Row) -> UUID:
    return queue.create("c", parent_task_id=held.task_id)


def test_a_waiting_parent_gives_up_its_lease_and_its_attempt(fresh: Queue, held: Row) -> None:
    child = child_of(fresh, held)
    answer = fresh.verb("wait_for_task", held, waits_for=child)
    row = fresh.row(held.task_id)
    assert (answer.status, answer.record_ver) == (row.status, row.record_ver)
    assert (row.status, row.attempt, row.pid, row.token) == ("snoozed", 0, None, None)
    event = fresh.history(held.task_id)[-1]
    assert (event.event, event.token) == ("snoozed", held.token)
    assert event.detail == {"waits_for": str(child)}
    assert fresh.refused("extend_lease", **states.of(held).arguments()).sqlstate == "SK006"
    assert fresh.refused("acquire_lease", task_id=held.task_id, pid="w").sqlstate == "SK010"


ENDS: dict[str, Callable[[Queue, UUID], Any]] = {
    "success": succeed,
    "failure": fail,
    "cancel": lambda queue, child: queue.one("cancel_task", task_id=child),
}


@pytest.mark.parametrize("how", ENDS)
def test_it_is_ready_as_soon_as_its_child_is_final(fresh: Queue, held: Row, how: str) -> None:
    child, other = child_of(fresh, held), child_of(fresh, held)
    fresh.verb("wait_for_task", held, waits_for=child)
    succeed(fresh, other)
    assert fresh.row(held.task_id).status == "snoozed"
    ENDS[how](fresh, child)
    assert fresh.row(held.task_id).status == "starting"
    again = fresh.reserve("p")
    assert (again.task_id, again.attempt) == (held.task_id, 1)
    assert again.token > held.token


@pytest.mark.parametrize("how", ENDS)
def test_it_is_ready_at_once_where_its_child_is_final_already(
    fresh: Queue, held: Row, how: str
) -> None:
    child = child_of(fresh, held)
    ENDS[how](fresh, child)
    assert fresh.verb("wait_for_task", held, waits_for=child).status == "starting"
    assert fresh.reserve("p").attempt == 1


def test_it_waits_for_a_fan_out_as_for_any_child(fresh: Queue, held: Row) -> None:
    join_id = fan_out(fresh, 2, policy="all", **proof(held))
    one, two = children(fresh, join_id)
    fresh.verb("wait_for_task", held, waits_for=join_id)
    succeed(fresh, one)
    assert fresh.row(held.task_id).status == "snoozed"
    succeed(fresh, two)
    assert (fresh.row(join_id).status, fresh.row(held.task_id).status) == ("terminated", "starting")


def test_a_reducer_is_waited_for_until_it_has_ended(fresh: Queue, held: Row) -> None:
    join_id = fan_out(fresh, 1, kind="sum", **proof(held))
    fresh.verb("wait_for_task", held, waits_for=join_id)
    succeed(fresh, *children(fresh, join_id))
    assert fresh.row(held.task_id).status == "snoozed"
    succeed(fresh, join_id)
    assert fresh.row(held.task_id).status == "starting"


def test_a_child_that_ends_in_a_batch_wakes_its_parent(fresh: Queue) -> None:
    parents = [fresh.leased(f"p{n}") for n in range(3)]
    for parent in parents:
        fresh.verb("wait_for_task", parent, waits_for=child_of(fresh, parent))
    leases = fresh.call("reserve_tasks", topics=["c"], pid="w1", max_tasks=3)
    fresh.call(
        "terminate_tasks", pid="w1", task_ids=[row.task_id for row in leases],
        tokens=[row.token for row in leases],
    )  # fmt: skip
    assert [fresh.row(parent.task_id).status for parent in parents] == ["starting"] * 3


def test_a_woken_parent_is_told_of_to_a_sleeping_worker(
    fresh: Queue, another: Another, held: Row
) -> None:
    listener = another()
    listener.execute("listen sokka")
    child = child_of(fresh, held)
    fresh.verb("wait_for_task", held, waits_for=child)
    fresh.value("select sokka.mark_idle(array['p'], 'sleeper', '1 minute')")
    succeed(fresh, child)
    (notice,) = listener.connection.notifies(timeout=20, stop_after=1)
    assert notice.payload == "t" + fresh.value("select sokka.topic_hash('p')")


def test_after_an_hour_it_looks_by_itself(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    held = fresh.leased("p")
    child = child_of(fresh, held)
    fresh.one("sweep")  # has read that there is a child
    answer = fresh.verb("wait_for_task", held, waits_for=child)
    assert (answer.run_at - clock.now()).total_seconds() == 3600
    # A child that goes without an end: nobody tells of it.
    fresh.execute("delete from sokka.tasks where task_id = %s", child)
    clock.advance("59 minutes 59 s")
    fresh.one("sweep")
    assert fresh.row(held.task_id).status == "snoozed"
    clock.advance("1 s")
    fresh.one("sweep")
    assert fresh.row(held.task_id).status == "starting"


def test_an_hour_that_woke_it_does_not_leave_it_waiting(fresh: Queue, clock: Clock) -> None:
    held = fresh.leased("p")
    child = child_of(fresh, held)
    fresh.verb("wait_for_task", held, waits_for=child)
    clock.advance("1 hour")
    fresh.one("sweep")
    again = fresh.reserve("p")
    fresh.verb("snooze_task", again, snooze="1 hour")
    succeed(fresh, child)
    # It sleeps for its own reasons now.
    assert fresh.row(held.task_id).status == "snoozed"


def test_with_a_cancel_request_standing_it_fails(fresh: Queue, held: Row) -> None:
    child = child_of(fresh, held)
    fresh.one("cancel_task", task_id=held.task_id, reason="enough")
    assert fresh.verb("wait_for_task", held, waits_for=child).status == "failed"
    assert fresh.row(held.task_id).error["code"] == "cancelled"
    assert fresh.row(child).error["code"] == "cancelled"


def test_a_cancel_ends_the_wait_and_the_child(fresh: Queue, held: Row) -> None:
    child = child_of(fresh, held)
    fresh.verb("wait_for_task", held, waits_for=child)
    assert fresh.one("cancel_task", task_id=held.task_id).outcome == "cancelled"
    assert fresh.row(child).error["code"] == "cancelled"


def test_a_waiting_parent_may_be_woken_by_an_operator(fresh: Queue, held: Row) -> None:
    child = child_of(fresh, held)
    answer = fresh.verb("wait_for_task", held, waits_for=child)
    fresh.one("revoke_lease", task_id=held.task_id, record_ver=answer.record_ver)
    again = fresh.reserve("p")
    succeed(fresh, child)
    assert fresh.row(held.task_id).token == again.token
    fresh.verb("terminate_task", again)


def test_losses_start_anew_after_a_wait(fresh: Queue, clock: Clock) -> None:
    fresh.create("p", max_losses=1)
    held = fresh.reserve("p", lease="1 s")
    clock.advance("1 s")
    fresh.one("sweep")
    held = fresh.reserve("p", lease="1 hour")
    assert held.losses == 1
    fresh.verb("wait_for_task", held, waits_for=child_of(fresh, held))
    assert fresh.row(held.task_id).losses == 0


# Refusals


@pytest.mark.parametrize("state", WRONG_STATES, ids=lambda state: state.__name__)
def test_without_the_lease_nobody_waits(fresh: Queue, state: states.State) -> None:
    claim = state(fresh)
    child = fresh.create("c")
    before = fresh.image(claim.task_id)
    found = fresh.refused("wait_for_task", **claim.arguments(), waits_for=child)
    assert found.sqlstate == WRONG_STATES[state]
    assert fresh.image(claim.task_id) == before


@pytest.mark.parametrize("whose", ["nobody's", "another's", "its own", "a grandchild"])
@pytest.mark.parametrize("final", [False, True], ids=["live", "final"])
def test_only_a_child_is_waited_for(fresh: Queue, held: Row, whose: str, final: bool) -> None:
    if whose == "nobody's":
        other = fresh.create("c")
    elif whose == "another's":
        other = fresh.create("c", parent_task_id=fresh.create("q"))
    elif whose == "a grandchild":
        other = fresh.create("c", parent_task_id=child_of(fresh, held))
    else:
        other = held.task_id
    if final and whose != "its own":
        succeed(fresh, other)
    before = fresh.image(held.task_id)
    found = fresh.refused("wait_for_task", **states.of(held).arguments(), waits_for=other)
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "waits_for")
    assert fresh.image(held.task_id) == before


def test_an_unknown_task_is_not_waited_for(fresh: Queue, held: Row) -> None:
    before, unknown = fresh.image(held.task_id), uuid4()
    found = fresh.refused("wait_for_task", **states.of(held).arguments(), waits_for=unknown)
    assert (found.sqlstate, found.detail["task_id"]) == ("SK001", str(unknown))
    assert fresh.image(held.task_id) == before


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_nobody_waits_under_an_old_snapshot(
    fresh: Queue, another: Another, held: Row, isolation: str
) -> None:
    child = child_of(fresh, held)
    caller = another(autocommit=False)
    caller.execute(f"set transaction isolation level {isolation}")
    found = caller.refused("wait_for_task", **states.of(held).arguments(), waits_for=child)
    assert found.sqlstate == "25001"


# As a verb of a batch


def settle(queue: Queue, held: Row, arg: Any) -> Row:
    return queue.one(
        "settle_tasks", pid=held.pid, task_ids=[held.task_id], tokens=[held.token],
        verbs=["wait"], args=[Jsonb(arg)],
    )  # fmt: skip


def test_waiting_is_a_verb_of_a_batch(fresh: Queue, held: Row) -> None:
    child = child_of(fresh, held)
    found = settle(fresh, held, str(child))
    assert (found.verdict, found.detail["status"]) == ("ok", "snoozed")
    succeed(fresh, child)
    again = fresh.reserve("p")
    assert settle(fresh, again, str(child)).detail["status"] == "starting"


@pytest.mark.parametrize("bad", [None, 7, "x", {}, [], True], ids=str)
def test_a_member_that_waits_for_nothing_is_refused_alone(
    fresh: Queue, held: Row, bad: Any
) -> None:
    other, before = fresh.leased("q"), fresh.image(held.task_id)
    found = fresh.call(
        "settle_tasks", pid="w1", task_ids=[held.task_id, other.task_id],
        tokens=[held.token, other.token], verbs=["wait", "fail"],
        args=[Jsonb(bad), Jsonb(ERROR)],
    )  # fmt: skip
    assert {row.ord: row.verdict for row in found} == {1: "22023", 2: "ok"}
    assert fresh.image(held.task_id) == before


def test_a_worker_that_waits_takes_the_next_task_with_one_call(fresh: Queue, held: Row) -> None:
    child = child_of(fresh, held)
    verdict, leased = fresh.call(
        "settle_and_reserve", pid="w1", task_ids=[held.task_id], tokens=[held.token],
        verbs=["wait"], args=[Jsonb(str(child))], topics=["c"], max_tasks=1,
    )  # fmt: skip
    assert (verdict.verdict, leased.verdict, leased.task_id) == ("ok", "reserved", child)

"""Cancelling a task cancels what is live below it; any other end leaves that alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue, Row
from tests.sql.joining import children, fan_out, join, lease, proof, statuses, succeed, sweep_all
from tests.sql.states import ERROR

Another = Callable[..., Queue]


def below(queue: Queue, parent: UUID, topic: str = "c") -> UUID:
    return queue.create(topic, parent_task_id=parent)


def code(queue: Queue, task_id: UUID) -> str | None:
    found: str | None = (queue.row(task_id).error or {}).get("code")
    return found


def live(queue: Queue) -> int:
    return int(queue.value("select count(*) from sokka.tasks where status <> 'running'"))


def asked(queue: Queue) -> int:
    return int(
        queue.value("select count(*) from sokka.tasks where cancel_requested_at is not null")
    )


def test_a_cancel_goes_down_to_the_last_level(fresh: Queue) -> None:
    chain = [fresh.create("t")]
    for _ in range(10):
        chain.append(below(fresh, chain[-1]))
    aside = below(fresh, fresh.create("t"))
    fresh.one("cancel_task", task_id=chain[0], reason="all of it")
    assert [code(fresh, task_id) for task_id in chain] == ["cancelled"] * 11
    assert fresh.row(chain[0]).error["reason"] == "all of it"
    assert fresh.row(aside).status == "starting"


def test_a_cancel_in_the_middle_leaves_what_is_above_and_beside(fresh: Queue) -> None:
    top = fresh.create("t")
    one, two = below(fresh, top), below(fresh, top)
    deep = below(fresh, one)
    fresh.one("cancel_task", task_id=one)
    assert [code(fresh, task_id) for task_id in (top, one, two, deep)] == [
        None, "cancelled", None, "cancelled",
    ]  # fmt: skip


def test_children_in_every_state_are_reached(fresh: Queue) -> None:
    top = fresh.create("t")
    ready, asleep, running, done = (below(fresh, top) for _ in range(4))
    fresh.verb("snooze_task", lease(fresh, asleep), snooze="1 hour")
    held = lease(fresh, running)
    succeed(fresh, done)
    fresh.one("cancel_task", task_id=top)
    assert [code(fresh, task_id) for task_id in (ready, asleep, running, done)] == [
        "cancelled", "cancelled", None, None,
    ]  # fmt: skip
    row = fresh.row(running)
    assert (row.status, row.cancel_requested_at is not None) == ("running", True)
    assert row.cancel_reason
    assert fresh.events(running)[-1] == "cancel_requested"
    assert fresh.verb("extend_lease", held).cancel_requested is True
    fresh.verb("release_lease", held)
    assert code(fresh, running) == "cancelled"


def test_a_running_child_that_is_asked_is_asked_once_and_hears_of_it(
    fresh: Queue, another: Another
) -> None:
    listener = another()
    listener.execute("listen sokka")
    top = fresh.create("t")
    held = lease(fresh, below(fresh, top))
    fresh.one("cancel_task", task_id=held.task_id, reason="first")
    before = fresh.image(held.task_id)
    (notice,) = listener.connection.notifies(timeout=20, stop_after=1)
    fresh.one("cancel_task", task_id=top)
    assert fresh.image(held.task_id) == before
    other = fresh.create("t")
    lease(fresh, below(fresh, other, "d"))
    fresh.one("cancel_task", task_id=other)
    (second,) = listener.connection.notifies(timeout=20, stop_after=1)
    sounds = [fresh.value("select 'c' || sokka.topic_hash(%s)", t) for t in ("c", "d")]
    assert [notice.payload, second.payload] == sounds


def test_what_is_below_a_running_child_goes_when_that_ends_cancelled(fresh: Queue) -> None:
    top = fresh.create("t")
    held = lease(fresh, below(fresh, top))
    deep = below(fresh, held.task_id)
    fresh.one("cancel_task", task_id=top)
    assert fresh.row(deep).status == "starting"
    fresh.verb("snooze_task", held, snooze="1 s")
    assert (code(fresh, held.task_id), code(fresh, deep)) == ("cancelled", "cancelled")


def run_out(queue: Queue, clock: Clock, held: Row) -> None:
    clock.advance("2 hours")
    queue.one("sweep")


def revoke(queue: Queue, clock: Clock, held: Row) -> None:
    version = queue.row(held.task_id).record_ver
    queue.one("revoke_lease", task_id=held.task_id, record_ver=version)


CANCELLED_ENDS: dict[str, Callable[[Queue, Clock, Row], object]] = {
    "release": lambda queue, clock, held: queue.verb("release_lease", held),
    "retry": lambda queue, clock, held: queue.verb("retry_task", held, error=ERROR),
    "its own word": lambda queue, clock, held: queue.verb(
        "fail_task", held, error={"code": "cancelled"}
    ),
    "lost lease": run_out,
    "revoke": revoke,
}


@pytest.mark.parametrize("how", CANCELLED_ENDS)
def test_a_running_task_takes_its_children_along_when_it_ends_cancelled(
    fresh: Queue, clock: Clock, how: str
) -> None:
    held = fresh.leased("t", max_attempts=5)
    child = below(fresh, held.task_id)
    join_id = fan_out(fresh, 2, **proof(held))
    fresh.one("cancel_task", task_id=held.task_id)
    assert [fresh.row(task_id).status for task_id in (child, join_id)] == ["starting", "snoozed"]
    CANCELLED_ENDS[how](fresh, clock, held)
    assert code(fresh, held.task_id) == "cancelled"
    assert [code(fresh, task_id) for task_id in (child, join_id, *children(fresh, join_id))] == [
        "cancelled"
    ] * 4
    sweep_all(fresh)
    assert join(fresh, join_id).state == "closed"


@pytest.mark.parametrize("how", ["terminate", "fail", "expire", "lost"])
def test_any_other_end_leaves_children_alone(fresh: Queue, clock: Clock, how: str) -> None:
    task_id = fresh.create("t", max_losses=0)
    child = below(fresh, task_id)
    if how == "terminate":
        succeed(fresh, task_id)
    elif how == "fail":
        fresh.verb("fail_task", lease(fresh, task_id), error=ERROR)
    elif how == "expire":
        fresh.execute(
            "update sokka.tasks set expires_at = sokka.clock() where task_id = %s", task_id
        )
        clock.advance("1 s")
        fresh.one("sweep")
    else:
        lease(fresh, task_id, span="1 s")
        clock.advance("1 s")
        fresh.one("sweep")
    assert fresh.row(task_id).finished_at is not None
    sweep_all(fresh)
    assert fresh.row(child).status == "starting"


# More than one call may touch


@pytest.mark.parametrize("kind", ["join", "plain"])
def test_a_thousand_go_at_once_and_the_sweep_has_the_rest(fresh: Queue, kind: str) -> None:
    if kind == "join":
        top = fan_out(fresh, 3_500)
    else:
        top = fresh.create("t")
        spec = {"topic": "c", "parent_task_id": str(top)}
        fresh.call("create_tasks", specs=Jsonb([spec] * 3_500))
    fresh.one("cancel_task", task_id=top)
    left = [live(fresh)]
    while left[-1]:
        report = fresh.one("sweep")
        left.append(live(fresh))
        assert report.next_due_at is not None or left[-1] == 0
        assert len(left) < 20
    assert left[0] >= 2_500
    assert all(0 < before - after <= 1_000 for before, after in pairwise(left))
    sweep_all(fresh)
    assert fresh.value("select count(*) from sokka.finished_tasks") == 3_501
    if kind == "join":
        assert join(fresh, top).state == "closed"
    assert fresh.one("sweep").next_due_at is None


def test_a_wide_tree_is_cancelled_to_its_last_leaf(fresh: Queue) -> None:
    held = fresh.leased("t")
    joins = [fan_out(fresh, 700, **proof(held)) for _ in range(3)]
    below_one = lease(fresh, children(fresh, joins[0])[0])
    joins.append(fan_out(fresh, 700, **proof(below_one)))
    fresh.verb("release_lease", below_one)
    fresh.verb("release_lease", held)
    fresh.one("cancel_task", task_id=held.task_id)
    assert live(fresh) >= 4 * 701 - 1_000
    sweep_all(fresh)
    assert live(fresh) == 0
    assert {join(fresh, join_id).state for join_id in joins} == {"closed"}
    assert fresh.value("select count(*) from sokka.finished_tasks") == 4 * 701 + 1


def test_more_than_a_thousand_running_children_are_all_asked(fresh: Queue) -> None:
    top = fan_out(fresh, 2_500)
    for _ in range(3):
        fresh.call("reserve_tasks", topics=["c"], pid="w1", max_tasks=1_000)
    fresh.one("cancel_task", task_id=top)
    assert 0 < asked(fresh) <= 1_000
    sweep_all(fresh)
    assert asked(fresh) == 2_500
    assert join(fresh, top).state == "decided"


def test_a_join_that_is_decided_early_cancels_thousands_by_and_by(fresh: Queue) -> None:
    top = fan_out(fresh, 3_000, policy="first_success", max_running=10)
    succeed(fresh, children(fresh, top)[0])
    assert fresh.row(top).status == "terminated"
    assert 0 < live(fresh) < 3_000
    sweep_all(fresh)
    found = join(fresh, top)
    assert (found.state, found.done, found.late, found.failed) == ("closed", 3_000, 0, 0)


# Rows that others hold


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_a_child_that_somebody_holds_is_not_waited_for_and_reached_later(
    fresh: Queue, another: Another, state: str
) -> None:
    join_id = fan_out(fresh, 2)
    one, two = children(fresh, join_id)
    if state == "running":
        lease(fresh, one)
    holder = another(autocommit=False)
    holder.rows("select from sokka.tasks where task_id = %s for update", (one,))
    fresh.execute("set statement_timeout = '10 s'")
    fresh.one("cancel_task", task_id=join_id)
    assert code(fresh, two) == "cancelled"
    swept = fresh.one("sweep")
    assert swept.next_due_at is not None
    assert fresh.row(one).cancel_requested_at is None
    holder.connection.rollback()
    sweep_all(fresh)
    if state == "running":
        assert fresh.row(one).cancel_requested_at is not None
    else:
        assert code(fresh, one) == "cancelled"


# Isolation


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_cancel_under_an_old_snapshot_leaves_the_children_to_the_sweep(
    fresh: Queue, another: Another, isolation: str
) -> None:
    parent = fresh.create("t")
    child, join_id = below(fresh, parent), fan_out(fresh, 2)
    for task_id in (parent, join_id):
        caller = another(autocommit=False)
        caller.execute(f"set transaction isolation level {isolation}")
        assert caller.one("cancel_task", task_id=task_id).outcome == "cancelled"
        caller.connection.commit()
    sweep_all(fresh)
    assert code(fresh, child) == "cancelled"
    assert join(fresh, join_id).outcome == "cancelled"
    assert statuses(fresh, join_id) == ["failed"] * 2


def test_a_cancel_that_rolls_back_cancels_nobody(fresh: Queue) -> None:
    top = fan_out(fresh, 2)
    with fresh.connection.transaction(force_rollback=True):
        fresh.one("cancel_task", task_id=top)
        assert live(fresh) == 0
    assert statuses(fresh, top) == ["starting"] * 2
    assert join(fresh, top).state == "open"

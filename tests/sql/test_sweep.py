"""sweep: wakes, takes back, ends, and says when to look again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.sql.calling import Clock, Queue
from tests.sql.states import ERROR

NOTHING = {"woken": 0, "taken_back": 0, "expired": 0, "failed_lost": 0}


def counts(queue: Queue, **options: Any) -> dict[str, int]:
    """What a sweep did, without the zeros."""
    found = vars(queue.one("sweep", **options))
    del found["next_due_at"]
    return {name: count for name, count in found.items() if count}


def test_an_idle_queue_gives_the_sweep_nothing_to_do_and_nothing_to_wait_for(
    fresh: Queue,
) -> None:
    assert vars(fresh.one("sweep")) == NOTHING | {"next_due_at": None}
    fresh.create("t")
    assert fresh.one("sweep").next_due_at is None


def test_one_sweep_does_all_that_is_due(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    fresh.create("later", run_at=now + timedelta(seconds=1))
    fresh.verb("snooze_task", fresh.leased("snoozed"), snooze="1 s")
    retried = fresh.leased("retried", max_attempts=2)
    fresh.verb("retry_task", retried, error=ERROR, delay="1 s")
    fresh.leased("lost", lease="1 s")
    fresh.leased("poison", lease="1 s", max_losses=0)
    fresh.create("expired", expires_at=now + timedelta(seconds=1))
    assert counts(fresh) == {}
    clock.advance("0.999999 s")
    assert counts(fresh) == {}
    clock.advance("0.000001 s")  # at exactly that instant
    assert counts(fresh) == {"woken": 3, "taken_back": 1, "expired": 1, "failed_lost": 1}
    assert counts(fresh) == {}
    left = {row.topic: row.status for row in fresh.rows("select * from sokka.all_tasks")}
    assert left == dict.fromkeys(("later", "snoozed", "retried", "lost"), "starting") | {
        "poison": "failed", "expired": "failed",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["snoozed", "leased", "deadline"])
def test_the_next_sweep_is_due_when_the_next_thing_is(
    fresh: Queue, clock: Clock, kind: str
) -> None:
    now = clock.stop()
    for seconds in (30, 10, 20):
        at = now + timedelta(seconds=seconds)
        if kind == "snoozed":
            fresh.create("t", run_at=at)
        elif kind == "leased":
            fresh.leased(f"t{seconds}", lease=f"{seconds} s")
        else:
            fresh.create("t", expires_at=at)
    assert fresh.one("sweep").next_due_at == now + timedelta(seconds=10)
    clock.advance("10 s")
    assert fresh.one("sweep").next_due_at == now + timedelta(seconds=20)


def test_a_lease_that_was_extended_is_due_at_its_new_end(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    lease = fresh.leased("t", lease="10 s")
    fresh.one("sweep")
    fresh.verb("extend_lease", lease, lease="1 minute")
    assert fresh.one("sweep").next_due_at == now + timedelta(minutes=1)


def test_what_does_not_fit_into_one_sweep_makes_the_next_one_due_at_once(
    fresh: Queue, clock: Clock
) -> None:
    now = clock.stop()
    for _ in range(3):
        fresh.leased("t", lease="1 s")
    fresh.leased("far", lease="1 hour")
    clock.advance("1 s")
    for _ in range(2):
        swept = fresh.one("sweep", max_tasks=1)
        assert swept.taken_back == 1
        assert swept.next_due_at <= now + timedelta(seconds=2)
    assert fresh.one("sweep", max_tasks=1).taken_back == 1


@pytest.mark.parametrize("kind", ["woken", "taken_back", "expired"])
def test_a_sweep_is_bounded_and_the_rest_is_done_by_the_next(
    fresh: Queue, clock: Clock, kind: str
) -> None:
    now = clock.stop()
    for _ in range(5):
        if kind == "woken":
            fresh.create("t", run_at=now + timedelta(seconds=1))
        elif kind == "expired":
            fresh.create("t", expires_at=now + timedelta(seconds=1))
        else:
            fresh.leased("t", lease="1 s")
    clock.advance("1 s")
    assert [counts(fresh, max_tasks=2).get(kind, 0) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("kind", ["woken", "taken_back", "expired"])
def test_what_committed_late_is_swept_within_a_second(
    fresh: Queue, clock: Clock, another: Callable[..., Queue], kind: str
) -> None:
    """It lies before the place where this session's last sweep stopped."""
    now = clock.stop()
    late = another(autocommit=False)
    if kind == "woken":
        late.create("t", run_at=now + timedelta(seconds=1))
    elif kind == "expired":
        late.create("t", expires_at=now + timedelta(seconds=1))
    else:
        fresh.create("t")
        late.reserve("t", lease="1 s")
    for _ in range(3):
        fresh.create("later", run_at=now + timedelta(hours=1), expires_at=now + timedelta(hours=2))
        fresh.leased("held", lease="2 hours")
    fresh.one("sweep")
    late.connection.commit()
    clock.advance("2 s")
    done = counts(fresh)
    if not done:
        clock.advance("1.001 s")
        done = counts(fresh)
    assert done == {kind: 1}


@pytest.mark.parametrize(("late_s", "by_the_next"), [(0.15, True), (0.3, False)])
def test_a_task_that_was_due_when_it_was_committed_is_woken_by_the_next_sweep(
    fresh: Queue, clock: Clock, another: Callable[..., Queue], late_s: float, by_the_next: bool
) -> None:
    """As where hundreds of retries are settled at once; a look sees such a task too."""
    now = clock.stop()
    late = another(autocommit=False)
    late.create("t", run_at=now + timedelta(seconds=1 - late_s))
    clock.advance("1 s")
    assert fresh.one("sweep").woken == 0
    late.connection.commit()
    clock.advance("0.05 s")
    with fresh.connection.transaction(force_rollback=True):
        look = fresh.one("look_around", topics=["t"], within="1 hour")
        assert (look.swept, look.ready) == (by_the_next, by_the_next)
    assert fresh.one("sweep").woken == by_the_next
    clock.advance("1 s")
    assert fresh.one("sweep").woken == (not by_the_next)


def test_a_due_task_that_somebody_holds_is_passed_by_and_does_not_make_the_sweep_spin(
    fresh: Queue, clock: Clock, another: Callable[..., Queue]
) -> None:
    now = clock.stop()
    task_id = fresh.create("t", run_at=now + timedelta(seconds=1))
    other = fresh.create("t", run_at=now + timedelta(seconds=1))
    holder = another(autocommit=False)
    holder.rows("select from sokka.tasks where task_id = %s for update", (task_id,))
    clock.advance("1 s")
    swept = fresh.one("sweep")
    assert swept.woken == 1
    assert swept.next_due_at is None or swept.next_due_at >= clock.now() + timedelta(
        milliseconds=50
    )
    assert fresh.row(other).status == "starting"
    holder.connection.rollback()
    clock.advance("1.001 s")
    assert fresh.one("sweep").woken == 1


def test_a_running_task_outlives_its_deadline_and_a_waiting_one_does_not(
    fresh: Queue, clock: Clock
) -> None:
    now = clock.stop()
    lease = fresh.leased("t", expires_at=now + timedelta(seconds=1), lease="1 hour")
    clock.advance("2 s")
    assert counts(fresh) == {}
    fresh.verb("release_lease", lease)
    clock.advance("1.001 s")
    assert counts(fresh) == {"expired": 1}
    row = fresh.row(lease.task_id)
    assert (row.status, row.error["code"], row.pid) == ("failed", "expired", None)
    assert fresh.events(lease.task_id) == ["created", "reserved", "released", "failed"]


def test_a_snoozed_task_past_its_deadline_is_not_woken(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    at = now + timedelta(seconds=5)
    fresh.create("t", run_at=at, expires_at=at)
    clock.advance("5 s")
    assert counts(fresh) == {"expired": 1}


def test_waiting_longer_than_a_lease_is_no_loss(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    lease = fresh.leased("t", lease="1 s")
    fresh.verb("snooze_task", lease, snooze="10 s")
    for _ in range(9):
        clock.advance("1 s")
        assert counts(fresh) == {}
        assert fresh.call("reserve_task", topic="t", pid="w2") == []
    row = fresh.row(lease.task_id)
    assert (row.losses, row.token, row.lease_expires_at, row.attempt) == (0, None, None, 0)
    clock.advance("1 s")
    assert counts(fresh) == {"woken": 1}
    again = fresh.reserve("t")
    assert (again.attempt, again.losses) == (1, 0)

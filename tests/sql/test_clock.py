"""One clock decides, and at exactly its instant a lease is over."""

from __future__ import annotations

import pytest

from tests.sql import states
from tests.sql.calling import Clock, Queue
from tests.sql.states import LEASE_VERBS


@pytest.mark.parametrize("verb", LEASE_VERBS)
def test_a_lease_is_over_at_exactly_its_end(fresh: Queue, clock: Clock, verb: str) -> None:
    clock.stop()
    in_time, late = fresh.leased("t", lease="1 s"), fresh.leased("t", lease="1 s")
    clock.advance("0.999999 s")
    fresh.verb(verb, in_time, **LEASE_VERBS[verb])
    clock.advance("0.000001 s")
    before = fresh.image(late.task_id)
    found = fresh.refused(verb, **states.of(late).arguments(), **LEASE_VERBS[verb])
    assert found.sqlstate == "SK004"
    assert fresh.image(late.task_id) == before


@pytest.mark.parametrize("function", ["extend_leases", "terminate_tasks"])
def test_a_batch_is_late_at_exactly_the_end_too(
    fresh: Queue, clock: Clock, function: str
) -> None:
    clock.stop()
    lease = fresh.leased("t", lease="1 s")
    clock.advance("1 s")
    row = fresh.one(function, pid="w1", task_ids=[lease.task_id], tokens=[lease.token])
    assert row.verdict == "SK004"


def test_an_expired_lease_may_be_acquired_at_exactly_its_end(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    lease = fresh.leased("t", lease="1 s")
    clock.advance("0.999999 s")
    assert fresh.refused("acquire_lease", task_id=lease.task_id, pid="w2").sqlstate == "SK009"
    clock.advance("0.000001 s")
    assert fresh.one("acquire_lease", task_id=lease.task_id, pid="w2").token > lease.token


def test_extending_counts_from_the_call_and_never_shortens(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    lease = fresh.leased("t", lease="10 s")
    clock.advance("5 s")
    state = fresh.verb("extend_lease", lease, lease="1 s")
    assert (state.lease_expires_at - now).total_seconds() == 10
    state = fresh.verb("extend_lease", lease, lease="10 s")
    assert (state.lease_expires_at - now).total_seconds() == 15
    state = fresh.verb("renew_lease", lease, lease="1 s")
    assert (state.lease_expires_at - now).total_seconds() == 6
    assert state.record_ver == fresh.row(lease.task_id).record_ver


def test_a_lease_counts_from_its_grant_not_from_the_start_of_the_transaction(
    queue: Queue, topic: str
) -> None:
    queue.create(topic)
    with queue.connection.transaction():
        queue.value("select now()")
        queue.until("select clock_timestamp() > now() + interval '60 milliseconds'")
        before = queue.value("select clock_timestamp()")
        lease = queue.reserve(topic, lease="50 ms")
        assert lease.leased_at >= before
        assert (lease.lease_expires_at - lease.leased_at).total_seconds() == 0.05
        still = "select %s > now() + interval '100 milliseconds'"
        assert queue.value(still, lease.lease_expires_at)


def test_times_in_one_transaction_follow_the_clock(queue: Queue, topic: str) -> None:
    with queue.connection.transaction():
        first = queue.one("create_task", topic=topic)
        queue.until("select clock_timestamp() > %s + interval '1 millisecond'", first.created_at)
        assert queue.one("create_task", topic=topic).created_at > first.created_at


def test_no_function_reads_another_clock(queue: Queue) -> None:
    """now() stands still in a transaction; clock_timestamp() cannot be replaced."""
    standing = queue.rows(
        "select proname from pg_proc where pronamespace = 'sokka'::regnamespace and prosrc ~*"
        r" '\m(now\(\)|current_timestamp|localtimestamp|transaction_timestamp|statement_timestamp)'"
    )
    assert standing == []
    running = queue.rows(
        "select proname from pg_proc where pronamespace = 'sokka'::regnamespace"
        " and prosrc ~ 'clock_timestamp'"
    )
    # Tokens and ids need a clock that nobody replaces; a fence stands alone.
    assert {row.proname for row in running} <= {
        "clock", "lift_tokens", "new_task_id", "advance_fence",
    }  # fmt: skip

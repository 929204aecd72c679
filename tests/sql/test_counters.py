"""attempt, failures and losses: what counts, what is given back, and where they end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.sql.calling import Clock, Queue, Row
from tests.sql.states import ERROR

MOST = 2147483647


def lose(queue: Queue, clock: Clock, topic: str) -> Row:
    lease = queue.reserve(topic, lease="1 s")
    clock.advance("1 s")
    queue.call("sweep")
    return queue.row(lease.task_id)


def test_a_poison_task_is_started_once_more_than_it_may_be_lost(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop()
    fresh.create("t", max_losses=2)
    assert [(row.status, row.losses) for row in (lose(fresh, clock, "t") for _ in range(3))] == [
        ("starting", 1), ("starting", 2), ("failed", 3),
    ]  # fmt: skip
    (row,) = fresh.rows("select * from sokka.all_tasks")
    assert (row.attempt, row.failures, row.error["code"]) == (3, 0, "lease_lost")
    assert fresh.call("reserve_task", topic="t", pid="w1") == []


def test_losses_start_anew_with_an_accepted_snooze_or_retry(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    fresh.create("t", max_losses=2, max_attempts=5)
    for verb, options in (("snooze_task", {"snooze": "0"}),
                          ("retry_task", {"error": ERROR, "delay": "0"})):  # fmt: skip
        for losses in (1, 2):
            assert lose(fresh, clock, "t").losses == losses
        fresh.verb(verb, fresh.reserve("t"), **options)
        (row,) = fresh.rows("select * from sokka.tasks")
        assert (row.status, row.losses) == ("starting", 0)


def test_a_release_and_a_revoke_are_no_losses(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    fresh.create("t", max_losses=1)
    assert lose(fresh, clock, "t").losses == 1
    fresh.verb("release_lease", fresh.reserve("t"))
    lease = fresh.reserve("t")
    fresh.one("revoke_lease", task_id=lease.task_id, record_ver=lease.record_ver)
    row = fresh.row(lease.task_id)
    assert (row.status, row.losses, row.attempt) == ("starting", 1, 2)


@pytest.mark.parametrize(("limit", "runs"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_attempts_are_counted_with_the_first(fresh: Queue, limit: int, runs: int) -> None:
    fresh.create("t", max_attempts=limit)
    for number in range(1, runs + 1):
        lease = fresh.reserve("t")
        assert lease.attempt == number
        answer = fresh.verb("retry_task", lease, error=ERROR, delay="0")
        row = fresh.row(lease.task_id)
        assert answer.record_ver == row.record_ver
        assert row.failures == number
    assert (row.status, row.error) == ("failed", ERROR)


def test_a_delay_replaces_the_wait_and_not_the_limit(fresh: Queue) -> None:
    fresh.create("t", max_attempts=2, retry={"initial": 100, "max": 100})
    lease = fresh.reserve("t")
    fresh.verb("retry_task", lease, error=ERROR, delay="0")
    lease = fresh.reserve("t")
    assert fresh.verb("retry_task", lease, error=ERROR, delay="0").status == "failed"


def test_a_policys_wait_grows_up_to_its_most(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    fresh.create("t", max_attempts=9, retry={"initial": 1, "multiplier": 2, "max": 60})
    waits = []
    for _ in range(8):
        lease = fresh.reserve("t")
        fresh.verb("retry_task", lease, error=ERROR)
        row = fresh.row(lease.task_id)
        waits.append((row.run_at - clock.now()).total_seconds())
        fresh.one("revoke_lease", task_id=row.task_id, record_ver=row.record_ver)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


WAITS = "select sokka.retry_wait(%s::jsonb, n) as wait from generate_series(1, 1100) n"


def test_a_thousand_failures_do_not_overflow_the_wait(queue: Queue) -> None:
    policy = '{"initial": 1, "multiplier": 2, "max": 60, "jitter": 0}'
    waits = [row.wait.total_seconds() for row in queue.rows(WAITS, (policy,))]
    assert waits == [1, 2, 4, 8, 16, 32] + [60] * 1094


@pytest.mark.parametrize(
    "policy",
    [
        '{"initial": 0, "max": 0}', '{"initial": 0, "max": 60, "multiplier": 1000}',
        '{"initial": 315576000, "max": 315576000, "multiplier": 1000, "jitter": 1}',
        '{"initial": 1e-300, "max": 315576000, "multiplier": 1000}',
        '{"initial": 5, "max": 5, "multiplier": 1}', "{}", None,
    ],
)  # fmt: skip
def test_no_policy_leads_to_a_wait_that_cannot_be_kept(queue: Queue, policy: str | None) -> None:
    waits = [row.wait for row in queue.rows(WAITS, (policy,))]
    assert timedelta(0) <= min(waits)
    assert max(waits) <= timedelta(days=2 * 3653)


def test_jitter_spreads_the_wait_around_it(queue: Queue) -> None:
    waits = queue.rows(WAITS, ('{"initial": 100, "max": 100, "jitter": 0.5}',))
    seconds = [row.wait.total_seconds() for row in waits]
    assert 50 <= min(seconds) < 75
    assert 125 < max(seconds) <= 150


@pytest.mark.parametrize("count", [32766, 32767, MOST - 1, MOST])
def test_counters_at_their_limits_stop_nothing(fresh: Queue, clock: Clock, count: int) -> None:
    clock.stop()

    def set_counters(**counters: int) -> Row:
        fresh.create("t", max_attempts=MOST, max_losses=MOST)
        assignments = ", ".join(f"{name} = {value}" for name, value in counters.items())
        fresh.execute(f"update sokka.tasks set {assignments} where status = 'starting'")
        return fresh.reserve("t", lease="1 s")

    lease = set_counters(attempt=count)
    fresh.verb("snooze_task", lease, snooze="0")
    lease = fresh.reserve("t")
    fresh.verb("retry_task", lease, error=ERROR, delay="0")
    fresh.verb("terminate_task", fresh.reserve("t"))

    lease = set_counters(attempt=count, failures=count)
    fresh.verb("retry_task", lease, error=ERROR, delay="0")
    row = fresh.row(lease.task_id)
    assert row.status in ("starting", "failed")
    assert row.failures >= count
    if row.status == "starting":
        fresh.one("cancel_task", task_id=row.task_id)

    lease = set_counters(losses=count)
    clock.advance("1 s")
    fresh.call("sweep")
    row = fresh.row(lease.task_id)
    assert row.status in ("starting", "failed")
    assert row.losses >= count


def test_one_counter_at_its_limit_does_not_stop_the_sweep_of_others(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop()
    fresh.create("t", max_losses=MOST)
    fresh.execute(f"update sokka.tasks set losses = {MOST}")
    fresh.reserve("t", lease="1 s")
    other = fresh.leased("u", lease="1 s")
    clock.advance("1 s")
    assert fresh.refusal("sweep") is None
    assert fresh.row(other.task_id).status == "starting"


def test_a_lost_lease_keeps_the_attempt_and_acquiring_counts_it_too(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop()
    lease = fresh.leased("t", lease="1 s", max_losses=1)
    clock.advance("1 s")
    again = fresh.one("acquire_lease", task_id=lease.task_id, pid="w2", lease="1 s")
    assert (again.attempt, again.losses) == (2, 1)
    clock.advance("1 s")
    # Its losses are spent: nobody gets it again, and the sweep ends it.
    found = fresh.refused("acquire_lease", task_id=lease.task_id, pid="w3")
    assert (found.sqlstate, found.detail["error_code"]) == ("SK002", "lease_lost")
    assert fresh.one("sweep").failed_lost == 1
    assert fresh.row(lease.task_id).error["code"] == "lease_lost"

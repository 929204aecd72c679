"""The hint where a session's last claim stopped: it costs time at most, never a task."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue, go_on_at_every_glance
from tests.sql.test_reserve import fill, take

Another = Callable[..., Queue]


def drain(queue: Queue, topic: str, batch: int, *, calls: int) -> list[Any]:
    """Take all there is, within so many calls; the payloads in order."""
    got: list[Any] = []
    for _ in range(calls):
        leases = take(queue, [topic], batch)
        got += [lease.data for lease in leases]
        if not leases:
            return got
    raise AssertionError(f"after {calls} calls there still was something: {len(got)}")


def test_a_late_urgent_task_waits_a_second_at_most(
    fresh: Queue, clock: Clock, another: Another
) -> None:
    """It commits to the left of the hint, behind a stream of others that fills every claim."""
    clock.stop()
    late = another(autocommit=False)
    late.create("t", data=Jsonb("urgent"), priority=0)
    fill(fresh, "t", 100, priority=5)
    # The second claim goes by the hint of the first, and finds the other priorities empty.
    for first in (0, 10):
        got = [lease.data for lease in take(fresh, ["t"], 10)]
        assert got == list(range(first, first + 10))
    late.connection.commit()
    clock.advance("0.999 s")
    take(fresh, ["t"], 10)
    clock.advance("0.001 s")
    assert "urgent" in {lease.data for lease in take(fresh, ["t"], 10)}


@pytest.mark.parametrize("claimers", [1, 3])
def test_a_task_that_committed_late_is_found_when_nothing_else_is_left(
    fresh: Queue, clock: Clock, another: Another, claimers: int
) -> None:
    clock.stop()
    late = another(autocommit=False)
    late.create("t", data=Jsonb("late"))
    workers = [another() for _ in range(claimers)]
    fill(fresh, "t", 3 * claimers)
    for worker in workers:
        assert len(take(worker, ["t"], 3)) == 3
    late.connection.commit()
    got = [lease.data for worker in workers for lease in take(worker, ["t"], 3)]
    assert got == ["late"]


def test_a_crowd_that_committed_late_is_served_at_full_speed(
    fresh: Queue, clock: Clock, another: Another
) -> None:
    clock.stop()
    late = another(autocommit=False)
    fill(late, "t", 400)
    fill(fresh, "t", 200)
    assert len(take(fresh, ["t"], 50)) == 50
    late.connection.commit()
    clock.advance("1 s")
    got = drain(fresh, "t", 50, calls=14)
    assert len(got) == 550


@pytest.mark.parametrize("how", ["transaction", "savepoint"])
def test_a_claim_that_was_rolled_back_is_made_again(fresh: Queue, clock: Clock, how: str) -> None:
    clock.stop()
    fill(fresh, "t", 20)
    take(fresh, ["t"], 2)
    outer = fresh.connection.transaction()
    if how == "savepoint":
        outer.__enter__()
    with fresh.connection.transaction(force_rollback=True):
        assert [lease.data for lease in take(fresh, ["t"], 3)] == [2, 3, 4]
    assert [lease.data for lease in take(fresh, ["t"], 3)] == [2, 3, 4]
    if how == "savepoint":
        outer.__exit__(None, None, None)


def test_what_another_session_rolled_back_is_not_lost(
    fresh: Queue, clock: Clock, another: Another
) -> None:
    clock.stop()
    fill(fresh, "t", 20)
    other = another(autocommit=False)
    take(other, ["t"], 5)
    assert [lease.data for lease in take(fresh, ["t"], 5)] == [5, 6, 7, 8, 9]
    other.connection.rollback()
    clock.advance("1 s")
    assert [lease.data for lease in take(fresh, ["t"], 5)] == [0, 1, 2, 3, 4]


def test_every_priority_has_its_own_place(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    for number in range(40):
        fresh.create("t", data=Jsonb([number % 4, number]), priority=number % 4)
    got: list[Any] = []
    for size in (1, 7, 3, 11, 5, 13):
        got += [lease.data for lease in take(fresh, ["t"], size)]
        # What becomes ready again must not be lost by a hint of its priority.
        again = take(fresh, ["t"], 1)
        for lease in again:
            fresh.verb("release_lease", lease)
    got += drain(fresh, "t", 10, calls=10)
    assert sorted(got) == sorted([n % 4, n] for n in range(40))


def test_more_topics_than_hints_fit_are_all_served(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    for number in range(40):
        fill(fresh, f"t{number}", 3)
    for _ in range(3):
        for number in range(40):
            assert len(take(fresh, [f"t{number}"], 1)) == 1
    assert take(fresh, [f"t{number}" for number in range(40)], 5) == []


def hinted(queue: Queue, topic: str) -> bool:
    return queue.value("select sokka.scan_hint(sokka.topic_hash(%s)) is not null", topic) is True


def test_only_a_topic_with_more_than_was_wanted_is_remembered(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    fill(fresh, "t", 5)
    assert len(take(fresh, ["t"], 6)) == 5
    assert not hinted(fresh, "t")
    fill(fresh, "t", 5)
    assert len(take(fresh, ["t"], 4)) == 4
    assert hinted(fresh, "t")
    assert len(take(fresh, ["t"], 4)) == 1
    assert not hinted(fresh, "t"), "the whole topic was looked through, quickly"


@pytest.mark.parametrize(("step", "noted"), [("2 ms", True), ("1 us", False)])
def test_a_slow_claim_is_remembered_though_it_took_all(
    fresh: Queue, step: str, noted: bool
) -> None:
    fill(fresh, "t", 2)
    go_on_at_every_glance(fresh, step)
    for _ in range(2):
        take(fresh, ["t"], 4)
        assert hinted(fresh, "t") == noted


@pytest.mark.parametrize("garbage", ["", "x", "{", "[1]", "7", "null", '"text"', '{"a": 1}'])
def test_a_hint_that_cannot_be_read_is_no_hint(fresh: Queue, garbage: str) -> None:
    fill(fresh, "t", 3)
    take(fresh, ["t"], 1)
    fresh.value("select set_config('skpg_hint.sokka', %s, false)", garbage)
    assert [lease.data for lease in take(fresh, ["t"], 2)] == [1, 2]
    assert fresh.call("sweep")[0].taken_back == 0


@pytest.mark.parametrize("turn", ["x", "-1", "99999999999", ""])
def test_a_turn_that_cannot_be_read_is_no_turn(fresh: Queue, turn: str) -> None:
    fill(fresh, "a", 2)
    fill(fresh, "b", 2)
    fresh.value("select set_config('skpg_turn.sokka', %s, false)", turn)
    assert len(take(fresh, ["a", "b"], 4)) == 4


def test_claimers_at_once_take_each_task_once(fresh: Queue, another: Another) -> None:
    fill(fresh, "t", 1200)
    workers = [another() for _ in range(4)]
    got: list[list[int]] = [[] for _ in workers]

    def work(number: int) -> None:
        while leases := take(workers[number], ["t"], 20):
            got[number] += [lease.data for lease in leases]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n for numbers in got for n in numbers) == list(range(1200))


def read_entries(queue: Queue) -> int:
    """Entries of the ready index that this transaction has read."""
    return int(
        queue.value("select pg_stat_get_xact_tuples_returned('sokka.tasks_ready'::regclass)")
    )


def test_behind_a_pinned_snapshot_a_claim_reads_little_more_than_it_takes(
    fresh: Queue, clock: Clock, another: Another
) -> None:
    """Entries of tasks that have gone stay in the index as long as the snapshot lives."""
    clock.stop()
    fill(fresh, "t", 1000)
    old = another(autocommit=False)
    old.execute("set transaction isolation level repeatable read")
    old.value("select count(*) from sokka.tasks")
    for _ in range(18):
        leases = take(fresh, ["t"], 50)
        fresh.call(
            "terminate_tasks", pid="w1", task_ids=[lease.task_id for lease in leases],
            tokens=[lease.token for lease in leases],
        )  # fmt: skip
    with fresh.connection.transaction():
        before = read_entries(fresh)
        assert len(take(fresh, ["t"], 50)) == 50
        assert read_entries(fresh) - before <= 100


def test_heartbeats_touch_no_index(fresh: Queue) -> None:
    lease = fresh.leased("t")
    counters = "select pg_stat_get_xact_tuples_{}('sokka.tasks'::regclass)"
    with fresh.connection.transaction():
        updated = -fresh.value(counters.format("updated"))
        hot = -fresh.value(counters.format("hot_updated"))
        for _ in range(10):
            fresh.verb("extend_lease", lease, lease="2 hours")
            fresh.verb("report_progress", lease, progress=Jsonb(1))
            fresh.verb("save_checkpoint", lease, checkpoint=Jsonb(1))
        fresh.call("extend_leases", pid="w1", task_ids=[lease.task_id], tokens=[lease.token])
        updated += fresh.value(counters.format("updated"))
        hot += fresh.value(counters.format("hot_updated"))
    # A page may fill up within one transaction, where nothing can be pruned.
    assert (updated, hot >= 30) == (31, True)

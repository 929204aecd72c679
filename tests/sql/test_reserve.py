"""reserve_task and reserve_tasks: what is handed out, in which order, to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue, Row


def fill(queue: Queue, topic: str, count: int, **spec: Any) -> None:
    queue.call(
        "create_tasks", specs=Jsonb([{"topic": topic, "data": n} | spec for n in range(count)])
    )


def take(queue: Queue, topics: list[str], count: int, **options: Any) -> list[Row]:
    return queue.call("reserve_tasks", topics=topics, pid="w1", max_tasks=count, **options)


def names(leases: list[Row]) -> dict[str, int]:
    return dict(Counter(lease.topic for lease in leases))


def test_a_lease_says_all_that_a_worker_needs(queue: Queue, topic: str) -> None:
    task_id = queue.create(topic, data={"a": 1}, max_attempts=3)
    before = queue.value("select clock_timestamp()")
    lease = queue.reserve(topic, "w1", "90 s")
    row = queue.row(task_id)
    for column in vars(lease):
        assert getattr(lease, column) == getattr(row, column), column
    assert (lease.task_id, lease.pid, lease.attempt, lease.record_ver) == (task_id, "w1", 1, 2)
    assert lease.leased_at >= before
    assert (lease.lease_expires_at - lease.leased_at).total_seconds() == 90
    assert row.status == "running"


def test_an_empty_topic_gives_no_row(queue: Queue, topic: str) -> None:
    assert queue.call("reserve_task", topic=topic, pid="w1") == []
    assert take(queue, [topic], 5) == []


def test_nobody_gets_what_another_has(queue: Queue, topic: str) -> None:
    queue.leased(topic, "w1")
    assert queue.call("reserve_task", topic=topic, pid="w2") == []
    assert queue.call("reserve_task", topic=topic, pid="w1") == []


def test_tasks_come_by_priority_then_by_arrival(queue: Queue, topic: str) -> None:
    priorities = [5, 0, 9, 5, 1, 0, 9, 3]
    for number, priority in enumerate(priorities):
        queue.create(topic, data=Jsonb(number), priority=priority)
    wanted = sorted(range(len(priorities)), key=lambda n: (priorities[n], n))
    assert [lease.data for lease in take(queue, [topic], 5)] == wanted[:5]
    assert [queue.reserve(topic).data for _ in range(3)] == wanted[5:]


def test_a_released_task_queues_up_again_at_the_end(queue: Queue, topic: str) -> None:
    fill(queue, topic, 3)
    queue.verb("release_lease", queue.reserve(topic))
    assert [lease.data for lease in take(queue, [topic], 3)] == [1, 2, 0]


def test_the_default_lease_is_the_topics_then_the_installations(fresh: Queue) -> None:
    def seconds(topic: str, **lease: Any) -> float:
        fresh.create(topic)
        got = fresh.one("reserve_task", topic=topic, pid="w1", **lease)
        return float((got.lease_expires_at - got.leased_at).total_seconds())

    assert (seconds("a"), seconds("a", lease=None)) == (30, 30)
    fresh.execute("update sokka.settings set default_lease = '7 s'")
    assert seconds("a") == 7
    fresh.call("set_topic", topic="a", lease="11 s")
    assert (seconds("a"), seconds("b"), seconds("a", lease="2 s")) == (11, 7, 2)
    fresh.call("set_topic", topic="a")
    assert seconds("a") == 7


def test_a_paused_topic_gives_nothing_and_the_others_go_on(queue: Queue, topic: str) -> None:
    other = topic + " too"
    fill(queue, topic, 4)
    fill(queue, other, 4)
    queue.call("pause_topic", topic=topic)
    assert queue.call("reserve_task", topic=topic, pid="w1") == []
    assert names(take(queue, [topic, other], 8)) == {other: 4}
    queue.call("resume_topic", topic=topic)
    assert names(take(queue, [topic, other], 8)) == {topic: 4}


def test_each_topic_gets_an_equal_share(queue: Queue, topic: str) -> None:
    topics = [f"{topic} {n}" for n in range(3)]
    for name in topics:
        fill(queue, name, 10)
    assert names(take(queue, topics, 6)) == dict.fromkeys(topics, 2)
    assert sorted(names(take(queue, topics, 7)).values()) == [2, 2, 3]


def test_what_a_topic_leaves_over_goes_to_the_others(queue: Queue, topic: str) -> None:
    topics = [f"{topic} {n}" for n in range(3)]
    fill(queue, topics[1], 10)
    for _ in range(3):
        assert len(take(queue, topics, 3)) == 3
    fill(queue, topics[2], 5)
    assert names(take(queue, topics, 6)) == {topics[1]: 1, topics[2]: 5}


def test_single_tasks_are_taken_from_the_topics_in_turn(queue: Queue, topic: str) -> None:
    topics = [f"{topic} {n}" for n in range(3)]
    for name in topics:
        fill(queue, name, 5)
    got = [take(queue, topics, 1)[0] for _ in range(9)]
    assert names(got) == dict.fromkeys(topics, 3)


def test_a_busy_topic_does_not_starve_another_of_lower_priority_tasks(
    queue: Queue, topic: str
) -> None:
    other = topic + " too"
    fill(queue, topic, 20, priority=0)
    fill(queue, other, 5, priority=9)
    got = [take(queue, [topic, other], 1)[0] for _ in range(10)]
    assert names(got) == {topic: 5, other: 5}


def test_a_topic_named_twice_gives_each_task_once(queue: Queue, topic: str) -> None:
    fill(queue, topic, 6)
    got = take(queue, [topic, topic], 10)
    assert len({lease.task_id for lease in got}) == len(got) == 6


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [([2, 3], {0: 2, 1: 3}), ([0, 10], {1: 10}), ([None, 1], {0: 10, 1: 1}), ([0, 0], {})],
)
def test_of_each_topic_at_most_its_limit_is_taken(
    queue: Queue, topic: str, limits: list[int | None], wanted: dict[int, int]
) -> None:
    topics = [f"{topic} {n}" for n in range(2)]
    for name in topics:
        fill(queue, name, 10)
    got = names(take(queue, topics, 20, limits=limits))
    assert got == {topics[n]: count for n, count in wanted.items()}


def test_a_limit_holds_over_the_sweep_that_a_short_reserve_makes(fresh: Queue) -> None:
    for _ in range(2):
        lease = fresh.leased("t")
        fresh.verb("snooze_task", lease, snooze="1 ms")
        fresh.until("select run_at <= clock_timestamp() from sokka.tasks where task_id = %s",
                    lease.task_id)  # fmt: skip
    fresh.create("t")
    assert len(take(fresh, ["t"], 10, limits=[1])) == 1


@pytest.mark.parametrize("topics", [["due"], ["due", "other"]], ids=["one", "several"])
@pytest.mark.parametrize("limits", [None, "as wanted"])
def test_a_short_reserve_sweeps_and_takes_what_is_due_as_well(
    fresh: Queue, clock: Clock, topics: list[str], limits: str | None
) -> None:
    """A worker, which sweeps by itself, gets what there is at once."""
    clock.stop()
    snoozed, ready = fresh.leased("due"), fresh.create("due")
    fresh.verb("snooze_task", snoozed, snooze="10 s")
    clock.advance("10 s")
    given = {"limits": [2] * len(topics)} if limits else {}
    with fresh.connection.transaction(force_rollback=True):
        got = fresh.call("exchange_work", pid="w1", task_ids=None, tokens=None, verbs=None,
                         args=None, topics=topics, max_tasks=2, **given)  # fmt: skip
        assert [lease.task_id for lease in got] == [ready]
        again = fresh.call("exchange_work", pid="w1", task_ids=None, tokens=None, verbs=None,
                           args=None, topics=topics, max_tasks=2, **given)  # fmt: skip
        assert [lease.task_id for lease in again] == [snoozed.task_id]
    clock.advance("1 s")  # what it noted of its sweep is not undone
    got = take(fresh, topics, 2, **given)
    assert [lease.task_id for lease in got] == [ready, snoozed.task_id]


def test_a_short_reserve_takes_no_more_than_was_asked_for(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    held = [fresh.leased("t") for _ in range(5)]
    for lease in held:
        fresh.verb("snooze_task", lease, snooze="10 s")
    fresh.create("t")
    clock.advance("10 s")
    assert len(take(fresh, ["t"], 4)) == 4
    clock.advance("1 s")
    assert len(take(fresh, ["t"], 4)) == 2


def test_a_lone_caller_gets_due_and_expired_tasks(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    snoozed = fresh.leased("snoozed")
    fresh.verb("snooze_task", snoozed, snooze="10 s")
    lost = fresh.leased("lost", "dead", "10 s")
    clock.advance("9.999 s")
    assert take(fresh, ["snoozed", "lost"], 5) == []
    clock.advance("0.001 s")
    # At most one such sweep per half second in the installation.
    assert take(fresh, ["snoozed", "lost"], 5) == []
    clock.advance("0.499 s")
    got = {lease.task_id: lease for lease in take(fresh, ["snoozed", "lost"], 5)}
    assert set(got) == {snoozed.task_id, lost.task_id}
    assert got[lost.task_id].token > lost.token
    assert (got[lost.task_id].losses, got[lost.task_id].attempt) == (1, 2)


def test_a_sweep_on_the_way_survives_a_clock_that_was_set_back(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop()
    assert take(fresh, ["t"], 1) == []
    lease = fresh.leased("t", lease="1 ms")
    clock.advance("-1 hour")
    snoozed = fresh.leased("u")
    fresh.verb("snooze_task", snoozed, snooze="1 s")
    clock.advance("1 s")
    assert take(fresh, ["t", "u"], 5)[0].task_id == snoozed.task_id
    clock.advance("1 hour")
    assert take(fresh, ["t"], 5)[0].task_id == lease.task_id


def test_a_task_past_its_deadline_is_never_reserved(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    in_time = fresh.create("t", expires_at=now.replace(year=now.year + 1))
    late = fresh.create("t", expires_at=now, priority=0)
    assert [lease.task_id for lease in take(fresh, ["t"], 5)] == [in_time]
    row = fresh.row(late)
    assert (row.status, row.error["code"], row.attempt) == ("failed", "expired", 0)


OFF = ["indexscan", "bitmapscan", "indexonlyscan", "nestloop", "hashjoin", "mergejoin", "sort",
       "seqscan", "material", "hashagg"]  # fmt: skip
PLANS = {
    "no index": ["indexscan", "bitmapscan", "indexonlyscan"],
    "no nested loop": ["nestloop"],
    "no hash or merge": ["hashjoin", "mergejoin", "hashagg"],
    "no order": ["sort"],
    "nothing": OFF,
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("statistics", ["stale", "fresh"])
def test_under_no_plan_is_more_locked_than_handed_out(
    fresh: Queue, another: Callable[..., Queue], plan: str, statistics: str
) -> None:
    if statistics == "stale":
        fresh.execute("analyze sokka.tasks")  # while it is empty
    for topic in ("a", "b"):
        fill(fresh, topic, 300)
    if statistics == "fresh":
        fresh.execute("analyze sokka.tasks")
    worker = another(autocommit=False)
    for name in PLANS[plan]:
        worker.execute(f"set enable_{name} = off")
    worker.execute("set random_page_cost = 1000")
    worker.connection.commit()
    got = take(worker, ["a", "b"], 7)
    assert [lease.data for lease in got if lease.topic == "a"] in ([0, 1, 2], [0, 1, 2, 3])
    assert len(got) == 7
    free = fresh.rows("select from sokka.tasks where status = 'starting' for update skip locked")
    assert len(free) == 593
    worker.connection.commit()
    assert fresh.value("select count(*) from sokka.tasks where status = 'running'") == 7
    assert [lease.data for lease in take(worker, ["a"], 2)] in ([3, 4], [4, 5])


def test_tasks_that_another_is_claiming_are_passed_by(
    fresh: Queue, clock: Clock, another: Callable[..., Queue]
) -> None:
    clock.stop()  # the last full scan took no time, so the next may follow at once
    fill(fresh, "t", 6)
    slow = another(autocommit=False)
    first = [lease.data for lease in take(slow, ["t"], 2)]
    assert [lease.data for lease in take(fresh, ["t"], 2)] == [2, 3]
    slow.connection.rollback()
    assert first == [0, 1]
    assert [lease.data for lease in take(fresh, ["t"], 6)] == [0, 1, 4, 5]

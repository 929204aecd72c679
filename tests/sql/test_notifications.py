"""Who sleeps is woken; who does not, costs no notification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue, go_on_at_every_glance
from tests.sql.states import ERROR

Another = Callable[..., Queue]


@pytest.fixture
def listener(another: Another) -> Iterator[Queue]:
    found = another()
    found.execute("listen sokka")
    yield found


def heard(queue: Queue, listener: Queue) -> list[str]:
    """All that was notified until now: a last one of our own marks the end."""
    queue.execute("select pg_notify('sokka', 'end')")
    found: list[str] = []
    for notice in listener.connection.notifies(timeout=20):
        if notice.payload == "end":
            break
        found.append(notice.payload)
    return found


def idle(queue: Queue, *topics: str, pid: str = "sleeper", span: str = "1 minute") -> Any:
    return queue.value("select sokka.mark_idle(%s, %s, %s)", list(topics), pid, span)


def sound(queue: Queue, topic: str) -> str:
    return "t" + str(queue.value("select sokka.topic_hash(%s)", topic))


def test_a_new_task_wakes_whoever_sleeps_on_its_topic(fresh: Queue, listener: Queue) -> None:
    fresh.create("a")
    assert heard(fresh, listener) == []
    assert idle(fresh, "a", "b") is True
    fresh.create("c")
    assert heard(fresh, listener) == []
    fresh.create("a")
    assert heard(fresh, listener) == [sound(fresh, "a")]


def test_one_transaction_says_a_topic_once(fresh: Queue, listener: Queue) -> None:
    idle(fresh, "a", "b")
    with fresh.connection.transaction():
        for _ in range(5):
            fresh.create("a")
        fresh.call("create_tasks", specs=Jsonb([{"topic": "a"}, {"topic": "b"}] * 5))
    assert sorted(heard(fresh, listener)) == sorted([sound(fresh, "a"), sound(fresh, "b")])


def test_what_rolls_back_is_not_said(fresh: Queue, listener: Queue) -> None:
    idle(fresh, "a")
    with fresh.connection.transaction(force_rollback=True):
        fresh.create("a")
    assert heard(fresh, listener) == []


def test_nobody_is_notified_where_it_is_switched_off(fresh: Queue, listener: Queue) -> None:
    idle(fresh, "a")
    fresh.execute("update sokka.settings set notify = false")
    lease = fresh.leased("a")
    fresh.one("cancel_task", task_id=lease.task_id)
    assert heard(fresh, listener) == []


def test_a_mark_that_is_over_or_taken_back_wakes_nobody(
    fresh: Queue, listener: Queue, clock: Clock
) -> None:
    clock.stop()
    idle(fresh, "a", span="1 s")
    clock.advance("1 s")
    fresh.create("a")
    idle(fresh, "a", span="1 hour")
    fresh.call("clear_idle", pid="sleeper")
    fresh.create("a")
    assert heard(fresh, listener) == []


@pytest.mark.parametrize("how", ["release", "revoke", "sweep", "resume", "snooze 0", "retry 0"])
def test_a_task_that_becomes_ready_again_wakes_a_sleeper(
    fresh: Queue, listener: Queue, clock: Clock, how: str
) -> None:
    clock.stop()
    lease = fresh.leased("a", lease="1 s", max_attempts=5)
    idle(fresh, "a")
    if how == "release":
        fresh.verb("release_lease", lease)
    elif how == "revoke":
        fresh.one("revoke_lease", task_id=lease.task_id, record_ver=lease.record_ver)
    elif how == "sweep":
        clock.advance("1 s")
        fresh.one("sweep")
    elif how == "resume":
        fresh.one("resume_topic", topic="a")
    elif how == "snooze 0":
        fresh.verb("snooze_task", lease, snooze="0")
    else:
        fresh.verb("retry_task", lease, error=ERROR, delay="0")
    assert heard(fresh, listener) == [sound(fresh, "a")]


def test_a_due_task_wakes_a_sleeper(fresh: Queue, listener: Queue, clock: Clock) -> None:
    clock.stop()
    fresh.verb("snooze_task", fresh.leased("a"), snooze="1 s")
    idle(fresh, "a")
    clock.advance("1 s")
    fresh.one("sweep")
    assert heard(fresh, listener) == [sound(fresh, "a")]


def test_a_cancel_request_is_said_to_the_running_once(fresh: Queue, listener: Queue) -> None:
    lease = fresh.leased("a")
    waiting = fresh.create("a")
    for task_id in (lease.task_id, lease.task_id, waiting):
        fresh.one("cancel_task", task_id=task_id)
    assert heard(fresh, listener) == ["c" + sound(fresh, "a")[1:]]


def test_a_notification_says_no_more_than_a_hash_of_the_topic(
    fresh: Queue, listener: Queue
) -> None:
    secret = "é" * 200
    idle(fresh, secret)
    fresh.create(secret, data=Jsonb("x" * 500_000))
    (said,) = heard(fresh, listener)
    assert len(said) == 9


SWEEPS = {
    "sweep": "select from sokka.sweep()",
    "look_around": "select from sokka.look_around(array['other'], '1 ms')",
    "reserve_tasks": "select from sokka.reserve_tasks(array['other'], 'w', 1)",
}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_sweep_tells_who_sleeps_on_a_topic_with_a_task(
    fresh: Queue, listener: Queue, clock: Clock, sweep: str
) -> None:
    """Of which nobody was told, or one who has died since."""
    clock.stop()
    for topic in ("ready", "paused", "nobody_sleeps"):
        fresh.create(topic)
    fresh.call("pause_topic", topic="paused")
    idle(fresh, "ready", "paused", "nothing_there")
    clock.advance("1 s")
    fresh.execute(SWEEPS[sweep])
    assert heard(fresh, listener) == [sound(fresh, "ready")]
    clock.advance("0.1 s")  # so often at the most, however often somebody sweeps
    for _ in range(3):
        fresh.execute(SWEEPS["sweep"])
    assert heard(fresh, listener) == [sound(fresh, "ready")]
    clock.advance("1 minute")
    fresh.execute(SWEEPS[sweep])
    assert heard(fresh, listener) == []


def test_a_sweep_that_is_held_up_by_sleepers_goes_on_behind_them_the_next_time(
    fresh: Queue, listener: Queue, clock: Clock
) -> None:
    clock.stop()
    topics = [f"t{n}" for n in range(5)]
    for topic in topics:
        fresh.create(topic)
    go_on_at_every_glance(fresh, "7 ms")
    idle(fresh, *topics)
    found = []
    for _ in range(12):
        fresh.execute("select from sokka.tell_sleepers()")
        said = heard(fresh, listener)
        assert len(said) < len(topics)
        found += said
    assert set(found) == {sound(fresh, topic) for topic in topics}
    assert max(map(found.count, found)) <= 1 + min(map(found.count, found))


def test_a_worker_does_not_fall_asleep_while_somebody_enqueues(
    fresh: Queue, another: Another
) -> None:
    producer = another(autocommit=False)
    producer.create("a")
    assert idle(fresh, "a") is False
    assert idle(fresh, "b") is True
    producer.connection.commit()
    assert idle(fresh, "a") is True


def test_a_worker_that_is_about_to_sleep_is_notified_unseen(
    fresh: Queue, another: Another, listener: Queue
) -> None:
    """Else the producer sees no mark, the worker sees no task, and both go on."""
    sleeper = another(autocommit=False)
    idle(sleeper, "a")
    fresh.create("a")
    assert heard(fresh, listener) == [sound(fresh, "a")]
    sleeper.connection.rollback()
    fresh.create("a")
    assert heard(fresh, listener) == []


def test_tasks_that_are_alike_wake_who_sleeps_on_their_topic(
    fresh: Queue, another: Another, listener: Queue
) -> None:
    idle(another(), "a")
    fresh.call("create_tasks_like", spec=Jsonb({"topic": "a"}), data=Jsonb([1, 2]))
    assert heard(fresh, listener) == [sound(fresh, "a")]
    fresh.call("create_tasks_like", spec=Jsonb({"topic": "b"}), data=Jsonb([1, 2]))
    assert heard(fresh, listener) == []


def test_a_bulk_call_over_ten_thousand_topics_takes_a_bounded_number_of_locks(
    queue: Queue, another: Another
) -> None:
    caller = another(autocommit=False)
    specs = [{"topic": f"{n}"} for n in range(10_000)]
    assert len(caller.call("create_tasks", specs=Jsonb(specs))) == 10_000
    held = caller.value(
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
    )
    assert 0 < held <= 512
    caller.connection.rollback()

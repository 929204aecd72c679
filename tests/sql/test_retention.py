"""apply_retention: what is over goes, what is kept stays whole, nobody is held up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue, Row
from tests.sql.test_partitions import LARGE


def apply(queue: Queue, **options: int) -> list[Row]:
    """All steps until there is nothing more to do."""
    steps: list[Row] = []
    for _ in range(100):
        step = queue.call("apply_retention", **options)
        steps += step
        if all(row.action == "busy" for row in step):
            return steps
    raise AssertionError(f"no end to it: {steps[-3:]}")


def finished(queue: Queue, topic: str, **options: object) -> UUID:
    """A task with a past lease that has finished."""
    lease = queue.leased(topic, **options)
    queue.verb("release_lease", lease)
    queue.verb("terminate_task", queue.reserve(topic))
    return UUID(str(lease.task_id))


def known(queue: Queue, task_id: UUID) -> bool:
    return bool(queue.call("get_task", task_id=task_id))


def test_nothing_goes_before_its_time(fresh: Queue, clock: Clock) -> None:
    task_id = finished(fresh, "t")
    before = fresh.image(task_id)
    for _ in range(4):
        assert apply(fresh) == []
        clock.advance("7 days")
        fresh.one("sweep")
    assert fresh.image(task_id) == before


def test_what_is_over_goes_whole_with_its_history_and_payload(fresh: Queue, clock: Clock) -> None:
    task_id = finished(fresh, "t", data=LARGE)
    clock.advance("38 days")
    fresh.one("sweep")
    steps = apply(fresh)
    assert {row.action for row in steps} == {"dropped"}
    assert not known(fresh, task_id)
    assert fresh.events(task_id) == []
    image = fresh.image(task_id)
    assert (image["payloads"], image["past"], image["finished"]) == (None, None, None)


@pytest.mark.parametrize("longer", [True, False], ids=["longer", "shorter"])
def test_a_topic_may_be_kept_longer_or_shorter_than_the_rest(
    fresh: Queue, clock: Clock, longer: bool
) -> None:
    fresh.call("set_topic", topic="own", retention="90 days" if longer else "1 day")
    own, rest = finished(fresh, "own", data=LARGE), finished(fresh, "rest", data=LARGE)
    kept, gone, wait = (own, rest, "38 days") if longer else (rest, own, "9 days")
    clock.advance(wait)
    fresh.one("sweep")
    before = fresh.image(kept)
    assert "rows deleted" in {row.action for row in apply(fresh)}
    assert (known(fresh, kept), known(fresh, gone)) == (True, False)
    assert fresh.image(kept) == before
    assert fresh.row(kept).data == LARGE.obj
    assert fresh.events(kept)[-1] == "terminated"
    assert fresh.events(gone) in ([], ["reserved", "released"])
    clock.advance("100 days")
    fresh.one("sweep")
    assert "dropped" in {row.action for row in apply(fresh)}
    assert not known(fresh, kept)


def test_a_step_deletes_no_more_rows_than_asked(fresh: Queue, clock: Clock) -> None:
    fresh.call("set_topic", topic="short", retention="1 hour")
    finished(fresh, "long")
    for _ in range(5):
        finished(fresh, "short")
    clock.advance("8 days")
    steps = [row for row in apply(fresh, max_rows=2) if row.action == "rows deleted"]
    assert [row.rows for row in steps] == [2, 2, 1]


@pytest.mark.parametrize("state", ["live", "kept"])
def test_the_history_of_a_task_that_is_kept_is_kept(
    fresh: Queue, clock: Clock, state: str
) -> None:
    """Its past leases and payload are older than the retention; the task is not over."""
    lease = fresh.leased("t", data=LARGE)
    fresh.verb("release_lease", lease)
    clock.advance("60 days")
    fresh.one("sweep")
    if state == "kept":
        fresh.verb("terminate_task", fresh.reserve("t"))
    before, events = fresh.image(lease.task_id), fresh.events(lease.task_id)
    apply(fresh)
    assert fresh.image(lease.task_id) == before
    assert fresh.events(lease.task_id) == events
    assert fresh.row(lease.task_id).data == LARGE.obj


def test_a_given_id_is_free_again_when_its_task_is_forgotten(fresh: Queue, clock: Clock) -> None:
    task_id = uuid4()
    finished(fresh, "t", task_id=task_id)
    clock.advance("20 days")
    fresh.one("sweep")
    apply(fresh)
    assert fresh.refused("create_task", topic="t", task_id=task_id).sqlstate == "SK008"
    clock.advance("20 days")
    fresh.one("sweep")
    steps = apply(fresh, max_rows=1)
    assert "ids forgotten" in {row.action for row in steps}
    assert fresh.create("t", task_id=task_id) == task_id
    assert fresh.events(task_id) == ["created"]


def test_the_given_id_of_a_live_task_is_never_forgotten(fresh: Queue, clock: Clock) -> None:
    task_id = fresh.create("t", task_id=uuid4())
    clock.advance("1000 days")
    apply(fresh)
    assert fresh.refused("create_task", topic="t", task_id=task_id).sqlstate == "SK008"


def test_an_id_is_in_use_as_long_as_the_history_knows_it(fresh: Queue, clock: Clock) -> None:
    """Its past leases stay beside those of a task kept longer: a new one would inherit them."""
    fresh.call("set_topic", topic="short", retention="1 day")
    task_id = uuid4()
    finished(fresh, "short", task_id=task_id)
    finished(fresh, "long")
    clock.advance("9 days")
    apply(fresh)
    assert not known(fresh, task_id)
    assert fresh.refused("create_task", topic="short", task_id=task_id).sqlstate == "SK008"
    clock.advance("60 days")
    fresh.one("sweep")
    apply(fresh)
    assert fresh.create("short", task_id=task_id) == task_id
    assert fresh.events(task_id) == ["created"]


def test_a_partition_that_somebody_reads_is_told_busy_and_dropped_later(
    fresh: Queue, another: Callable[..., Queue], clock: Clock
) -> None:
    task_id = finished(fresh, "t")
    clock.advance("38 days")
    fresh.one("sweep")
    reader = another(autocommit=False)
    reader.rows("select from sokka.all_tasks")
    assert "busy" in {row.action for row in apply(fresh)}
    assert known(fresh, task_id)
    reader.connection.rollback()
    assert "dropped" in {row.action for row in apply(fresh)}
    assert not known(fresh, task_id)


def test_tasks_finish_while_retention_waits_for_a_reader(
    fresh: Queue, another: Callable[..., Queue], clock: Clock
) -> None:
    finished(fresh, "t")
    clock.advance("38 days")
    fresh.one("sweep")
    fresh.call("create_tasks", specs=Jsonb([{"topic": "u"}] * 20))
    reader, worker, operator = another(autocommit=False), another(), another()
    reader.rows("select from sokka.all_tasks")
    with ThreadPoolExecutor(1) as pool:
        applying = [pool.submit(operator.call, "apply_retention") for _ in range(5)]
        for _ in range(20):
            worker.verb("terminate_task", worker.reserve("u"))
        steps = [row for call in applying for row in call.result(timeout=20)]
    read = {row.action for row in steps if row.partition.startswith("finished_tasks")}
    assert read == {"busy"}
    assert fresh.value("select count(*) from sokka.finished_tasks where topic = 'u'") == 20


def test_a_live_task_is_never_touched(fresh: Queue, clock: Clock) -> None:
    lease = fresh.leased("t", lease="1 year")
    waiting = fresh.create("u", data=LARGE)
    before = fresh.image(lease.task_id), fresh.image(waiting)
    clock.advance("300 days")
    apply(fresh)
    assert (fresh.image(lease.task_id), fresh.image(waiting)) == before
    fresh.verb("terminate_task", lease)

"""Streams: in order, bounded, read from anywhere, ended with their producer."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from sokka_pg import SyncTaskContext
from sokka_pg.errors import BadArgument, LeaseLost, NoTaskFound, TaskCancelled, TaskFailed
from sokka_pg.workload import AsyncWorkloadScheduler, TaskSubmission
from tests.faults.waiting import until
from tests.workload.faces import TOPIC, Crew, Face


def counting(context: Any) -> Iterator[int]:
    yield from range(context.task.data)


def producing(face: Face, count: int, **bounds: Any) -> Any:
    if face.kind == "sync":
        return face(lambda s: s.stream(TaskSubmission(payload=count), counting, **bounds))

    async def counting_async(context: Any) -> Any:
        for number in range(context.task.data):
            yield number

    return face(lambda s: s.stream(TaskSubmission(payload=count), counting_async, **bounds))


def test_items_come_in_order_and_then_the_end(face: Face) -> None:
    handle = producing(face, 250)
    assert face.all(lambda s: handle) == list(range(250))
    assert handle.position == 250
    assert face.all(lambda s: handle) == []
    assert face(lambda s: handle.status()).succeeded


def test_a_stream_without_items_ends(face: Face) -> None:
    handle = producing(face, 0)
    assert face.all(lambda s: handle) == []


def test_a_task_that_never_streamed_has_no_items(face: Face) -> None:
    task = face(lambda s: s.submit(TaskSubmission()))
    lease = face(lambda s: s.acquire_lease(task.task_id, "ann", 60))
    face(lambda s: s.complete(lease.task_id, lease.owner, lease.token))
    assert face.all(lambda s: s.attach_stream(task.task_id)) == []


def test_a_producer_that_emits_does_so_too(face: Face) -> None:
    if face.kind == "sync":

        def emits(context: Any) -> str:
            context.emit_many(["a", "b"])
            context.emit("c")
            return "result"

        handle = face(lambda s: s.stream(TaskSubmission(), emits))
    else:

        async def emits_async(context: Any) -> str:
            await context.emit_many(["a", "b"])
            await context.emit("c")
            return "result"

        handle = face(lambda s: s.stream(TaskSubmission(), emits_async))
    assert face.all(lambda s: handle) == ["a", "b", "c"]
    assert face(lambda s: handle.status()).result == "result"


def test_a_producer_waits_for_its_reader(face: Face, conn: psycopg.Connection) -> None:
    handle = producing(face, 30, max_items=4)

    def state() -> tuple[int, int]:
        found = conn.execute("select last_seq, max_items from sokka.streams").fetchone()
        return found or (0, 0)

    until(lambda: state() == (4, 4))
    for expected in range(30):
        assert face(lambda s: handle.next(20)) == expected
        written, bound = state()
        # what was handed out last is not yet acknowledged
        assert written <= expected + 1 + 2 * bound
    assert face.all(lambda s: handle) == []


def test_bytes_are_bounded_too(face: Face, conn: psycopg.Connection) -> None:
    handle = producing(face, 1000, max_bytes=1024)
    state = "select pending_bytes, max_bytes, last_seq from sokka.streams"
    until(lambda: (conn.execute(state).fetchone() or (0,))[0] > 900)
    pending, most, written = conn.execute(state).fetchone() or (0, 0, 0)
    assert pending <= most == 1024
    assert written < 1000
    face(lambda s: handle.close())


def test_a_failed_producer_ends_its_stream_with_the_failure(face: Face) -> None:
    def breaks(context: Any) -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("out of paper")

    handle = face(lambda s: s.stream(TaskSubmission(), breaks))
    assert face(lambda s: handle.next(20)) == 1
    assert face(lambda s: handle.next(20)) == 2
    with pytest.raises(TaskFailed, match="out of paper"):
        face(lambda s: handle.next(20))


def test_closing_a_stream_cancels_its_producer(face: Face) -> None:
    handle = producing(face, 1000, max_items=2)
    assert face(lambda s: handle.next(20)) == 0
    face(lambda s: handle.close())
    face(lambda s: handle.close())
    with pytest.raises(TaskCancelled):
        face(lambda s: s.attach(handle.task_id).result(20))


def test_a_block_closes_its_stream(faces: Callable[..., Face]) -> None:
    scheduler = faces().scheduler
    with scheduler.stream(TaskSubmission(payload=1000), counting, max_items=2) as handle:
        assert next(handle) == 0
    with pytest.raises(TaskCancelled):
        scheduler.attach(handle.task_id).result(20)


def test_another_reader_goes_on_after_the_last_number(
    face: Face, faces: Callable[..., Face]
) -> None:
    handle = producing(face, 20)
    assert [face(lambda s: handle.next(20)) for _ in range(5)] == [0, 1, 2, 3, 4]
    elsewhere = faces().scheduler.attach_stream(handle.task_id, after=handle.position)
    assert list(elsewhere) == list(range(5, 20))


def test_a_reader_that_knows_no_number_goes_on_after_what_was_acknowledged(
    face: Face, faces: Callable[..., Face]
) -> None:
    handle = producing(face, 20, max_items=3)
    seen = [face(lambda s: handle.next(20)) for _ in range(7)]
    rest = list(faces().scheduler.attach_stream(handle.task_id))
    # items that were handed out and not acknowledged come again; none is missed
    assert rest[-1] == 19
    assert set(seen) | set(rest) == set(range(20))
    assert rest == list(range(rest[0], 20))


def test_a_reader_may_wait_for_a_stream_that_is_not_there_yet(
    face: Face, faces: Callable[..., Face], db: str
) -> None:
    def produce(context: SyncTaskContext) -> None:
        context.emit_many([1, 2])

    task = face(lambda s: s.submit(TaskSubmission(kind="produce", topic=TOPIC)))
    found: list[Any] = []
    reading = threading.Thread(
        target=lambda: found.extend(face.all(lambda s: s.attach_stream(task.task_id)))
    )
    reading.start()
    crew = Crew(db, {"produce": produce})
    try:
        reading.join(20)
    finally:
        crew.close()
    assert found == [1, 2]


def test_a_workers_handler_produces_within_the_bounds_it_finds(
    face: Face, db: str, conn: psycopg.Connection
) -> None:
    def produce(context: SyncTaskContext) -> None:
        for number in range(12):
            context.emit(number)

    submission = TaskSubmission(kind="produce", topic=TOPIC)
    handle = face(lambda s: s.open_stream(submission, max_items=3))
    crew = Crew(db, {"produce": produce})
    try:
        assert face.all(lambda s: handle) == list(range(12))
    finally:
        crew.close()
    found = conn.execute("select max_items from sokka.streams").fetchone()
    assert found == (3,)


def test_a_taken_over_producer_goes_on_and_the_ghost_is_refused(face: Face) -> None:
    handle = face(lambda s: s.open_stream(TaskSubmission()))
    ghost = face(lambda s: s.acquire_lease(handle.task_id, "ghost", 60))
    proof = (ghost.task_id, ghost.owner, ghost.token)
    face(lambda s: s.append_stream(*proof, ["a", "b"], after=0))
    face(lambda s: s.release_lease(*proof))
    heir = face(lambda s: s.acquire_lease(handle.task_id, "heir", 60))
    with pytest.raises(LeaseLost):
        face(lambda s: s.append_stream(*proof, ["ghostly"], after=2))
    proof = (heir.task_id, heir.owner, heir.token)
    face(lambda s: s.append_stream(*proof, ["c"], after=2))
    face(lambda s: s.complete(*proof))
    assert face.all(lambda s: handle) == ["a", "b", "c"]


def test_a_producer_that_starts_anew_goes_on_after_what_was_taken(
    faces: Callable[..., Face], conn: psycopg.Connection
) -> None:
    stopped = threading.Event()

    def produce(context: SyncTaskContext) -> Iterator[int]:
        for number in range(context.stream_position(), 6):
            if number == 3 and not stopped.is_set():
                stopped.set()
                context.stop_requested.wait(20)
                return
            yield number

    first = faces(scheduler_id="press")
    submission = TaskSubmission(kind="print")
    handle = first.scheduler.stream(submission, produce)
    assert [handle.next(20) for _ in range(3)] == [0, 1, 2]
    assert stopped.wait(20)
    first.scheduler.close()
    second = faces(scheduler_id="press")
    other = second.scheduler.stream(submission, produce)
    assert list(other) == list(range(6))
    assert list(second.scheduler.attach_stream(handle.task_id, after=3)) == [3, 4, 5]


def test_a_caller_may_stop_waiting_for_an_item(face: Face) -> None:
    handle = face(lambda s: s.open_stream(TaskSubmission()))
    with pytest.raises(TimeoutError):
        face(lambda s: handle.next(0.05))
    lease = face(lambda s: s.acquire_lease(handle.task_id, "ann", 60))
    face(lambda s: s.append_stream(lease.task_id, lease.owner, lease.token, ["late"]))
    assert face(lambda s: handle.next(20)) == "late"


async def test_a_reader_that_is_cancelled_misses_nothing(db: str) -> None:
    async def count(context: Any) -> Any:
        for number in range(100):
            yield number

    found: list[int] = []
    async with AsyncWorkloadScheduler(db) as scheduler:
        handle = await scheduler.stream(TaskSubmission(), count, max_items=3)
        with contextlib.suppress(StopAsyncIteration):
            while True:
                with contextlib.suppress(TimeoutError):
                    # about as long as it takes, so that some are cut off at the last moment
                    patience_s = random.uniform(0.001, 0.03)
                    found.append(await asyncio.wait_for(handle.next(), patience_s))
    assert found == list(range(100))


def test_an_unknown_stream_is_an_error(face: Face) -> None:
    handle = face.scheduler.attach_stream("0190a0a0-0000-7000-8000-000000000009")
    with pytest.raises(NoTaskFound):
        face(lambda s: handle.next(20))


@pytest.mark.parametrize("bounds", [{"max_items": 0}, {"max_bytes": True}, {"max_items": "3"}])
def test_bounds_are_checked(face: Face, bounds: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=next(iter(bounds))):
        producing(face, 1, **bounds)
    with pytest.raises(BadArgument, match=next(iter(bounds))):
        face(lambda s: s.open_stream(TaskSubmission(), **bounds))


def test_a_producer_that_cannot_be_called_is_refused(face: Face) -> None:
    with pytest.raises(BadArgument, match="producer: must take the context"):
        face(lambda s: s.stream(TaskSubmission(), lambda: None))

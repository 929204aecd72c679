"""Many wait, one looks: connections and queries do not grow with the handles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from sokka_pg.connections import ConnectionOptions
from sokka_pg.store import PgTaskStore
from sokka_pg.workload import (
    AsyncWorkloadScheduler,
    TaskSubmission,
    WorkloadScheduler,
    watching,
)
from tests.faults.waiting import until, until_async
from tests.workload.faces import Face

HANDLES = 1_000


@pytest.fixture
def counted(conn: psycopg.Connection) -> Callable[[str], int]:
    """How often a function of the queue was called, in sessions that begin later."""
    name = conn.info.dbname
    conn.execute(f'alter database "{name}" set track_functions = \'all\'')  # type: ignore[arg-type]

    def count(function: str) -> int:
        conn.execute("select pg_stat_clear_snapshot()")
        found = conn.execute(
            "select coalesce(sum(calls), 0) from pg_stat_user_functions where funcname = %s",
            (function,),
        ).fetchone()
        assert found is not None
        return int(found[0])

    return count


def sessions(conn: psycopg.Connection, query: str = "%") -> int:
    found = conn.execute(
        "select count(*) from pg_stat_activity where application_name = 'watched'"
        " and query ilike %s",
        (query,),
    ).fetchone()
    assert found is not None
    return int(found[0])


def made(db: str, count: int = HANDLES) -> list[Any]:
    with PgTaskStore(db) as store:
        return [each.task_id for each in store.create_tasks([{"topic": "t"}] * count)]


async def test_a_thousand_handles_share_one_listener_and_one_look(
    db: str, conn: psycopg.Connection, counted: Callable[[str], int]
) -> None:
    ids = await asyncio.to_thread(made, db)
    options = ConnectionOptions(application_name="watched", max_size=3)
    async with (
        AsyncWorkloadScheduler(db, connections=options, poll=0.2) as scheduler,
        AsyncWorkloadScheduler(db, connections=options, poll=0.2) as other,
    ):
        waits = [
            asyncio.create_task((scheduler, other)[n % 2].attach(task_id).result())
            for n, task_id in enumerate(ids)
        ]
        await until_async(lambda: scheduler._core is not None and scheduler._core._watcher)
        watcher = scheduler._core._watcher  # type: ignore[union-attr]
        assert watcher is not None
        await until_async(lambda: len(watcher) == HANDLES)
        looks = watcher.looks
        await until_async(lambda: watcher.looks >= looks + 5)
        assert sessions(conn, "listen %") == 1
        # the listener and the one who looks: no handle has one of its own
        assert sessions(conn) == 2
        assert watcher.looks < 100
        conn.execute(
            "select sokka.terminate_task(t.task_id, 'ann', t.token, '\"done\"')"
            " from sokka.reserve_tasks(array['t'], 'ann', 1000, '1 minute') t"
        )
        assert await asyncio.gather(*waits) == ["done"] * HANDLES
        assert sessions(conn) <= 2 + 2 * 3
        assert len(watcher) == 0
        looks = watcher.looks
    until(lambda: sessions(conn) == 0)
    # the count is reported when a session ends
    until(lambda: counted("peek_tasks") == looks)


def test_nobody_looks_while_nobody_waits(faces: Callable[..., Face]) -> None:
    scheduler = faces(poll=0.02).scheduler
    handle = scheduler.submit(TaskSubmission())
    with pytest.raises(TimeoutError):
        handle.result(0.2)
    watcher = scheduler._core._watcher
    lease = scheduler.acquire_lease(handle.task_id, "ann")
    looks = watcher.looks
    for _ in range(20):
        scheduler.renew_lease(handle.task_id, lease.owner, lease.token)
    assert watcher.looks == looks


def test_polling_is_enough_without_notifications(faces: Callable[..., Face]) -> None:
    scheduler = faces(connections=ConnectionOptions(pooler=True), poll=0.05).scheduler
    handle = scheduler.submit_async(TaskSubmission(payload=1), lambda ctx: ctx.task.data)
    assert handle.result(20) == 1


def test_waiting_outlasts_a_cut_connection(
    faces: Callable[..., Face], conn: psycopg.Connection
) -> None:
    options = ConnectionOptions(application_name="watched")
    scheduler: WorkloadScheduler = faces(connections=options, poll=0.2).scheduler
    handle = scheduler.submit(TaskSubmission())
    lease = scheduler.acquire_lease(handle.task_id, "ann", 60)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.result)
        until(lambda: sessions(conn, "listen %") == 1)
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'watched'"
        )
        until(lambda: sessions(conn, "listen %") == 1)
        scheduler.complete(handle.task_id, lease.owner, lease.token, "there")
        assert waiting.result(20) == "there"


def test_several_wait_for_one_task(face: Face) -> None:
    handle = face(lambda s: s.submit(TaskSubmission()))
    lease = face(lambda s: s.acquire_lease(handle.task_id, "ann", 60))
    with ThreadPoolExecutor(5) as pool:
        waits = [pool.submit(face, lambda s: handle.result(20)) for _ in range(5)]
        face(lambda s: s.complete(lease.task_id, lease.owner, lease.token, 3))
        assert [wait.result(20) for wait in waits] == [3] * 5


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_news_come_long_before_the_poll(
    faces: Callable[..., Face], conn: psycopg.Connection, kind: str
) -> None:
    face = faces(kind, poll=3600, progress_every=0)
    handle = face(lambda s: s.open_stream(TaskSubmission()))
    lease = face(lambda s: s.acquire_lease(handle.task_id, "ann", 600))
    proof = (lease.task_id, lease.owner, lease.token)

    def waiting() -> int:
        marks = conn.execute("select count(*) from sokka.watched_tasks").fetchone()
        return len(face.scheduler._core._watcher) if marks == (1,) else 0

    with ThreadPoolExecutor(3) as pool:
        result = pool.submit(face, lambda s: s.attach(handle.task_id).result(60))
        until(lambda: waiting() == 1)
        item = pool.submit(face, lambda s: handle.next(60))
        # the mark of the first tells of both
        until(lambda: waiting() == 2)
        face(lambda s: s.append_stream(*proof, ["item"]))
        assert item.result(20) == "item"
        face(lambda s: s.complete(*proof, "done"))
        assert result.result(20) == "done"


async def test_marks_are_renewed_while_somebody_waits(
    db: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "REMARK_S", 0.1)
    async with AsyncWorkloadScheduler(db, poll=3600) as scheduler:
        handle = await scheduler.submit(TaskSubmission())
        waiting = asyncio.create_task(handle.result())

        def until_when() -> Any:
            found = conn.execute("select max(watched_until) from sokka.watched_tasks").fetchone()
            assert found is not None
            return found[0]

        first = await until_async(until_when)
        await until_async(lambda: until_when() > first)
        looks = scheduler._core._watcher.looks  # type: ignore[union-attr]
        await until_async(lambda: until_when() > first)
        lease = await scheduler.acquire_lease(handle.task_id, "ann")
        await scheduler.complete(handle.task_id, "ann", lease.token, 1)
        assert await waiting == 1
        assert looks < 1000


async def test_without_a_listener_nothing_spins(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "REMARK_S", 0.05)
    options = ConnectionOptions(pooler=True)
    async with AsyncWorkloadScheduler(db, poll=0.1, connections=options) as scheduler:
        handle = await scheduler.submit(TaskSubmission())
        with pytest.raises(TimeoutError):
            await handle.result(1.0)
        # ten polls, and a few more where a look is owed
        assert scheduler._core._watcher.looks < 30  # type: ignore[union-attr]

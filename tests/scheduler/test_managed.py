"""Managed jobs: kept by the database, delivered to one replica for each tick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from sokka_pg import Sokka, SyncTaskContext, TaskContext, WorkerOptions
from sokka_pg.errors import NoScheduleFound, ScheduleExists
from sokka_pg.model import RetryPolicy, ScheduleRow
from sokka_pg.retry import MOST_ATTEMPTS, policy_from
from sokka_pg.scheduler import (
    DeliveryFailureMode,
    DeliveryFailurePolicy,
    HandlerExists,
    InvalidJob,
    ManagedJob,
    TriggerEvent,
)
from sokka_pg.schedules import upcoming
from tests.scheduler.conftest import until

CONSTANT, DROP = DeliveryFailureMode.CONSTANT, DeliveryFailureMode.DROP
SOON = timedelta(minutes=1)


class Face:
    """A runtime of either kind, awaited."""

    def __init__(self, app: Sokka, asynchronous: bool) -> None:
        self.app = app
        self.runtime: Any = app.runtime_async if asynchronous else app.runtime
        self._async = asynchronous

    def register(self, name: str, handler: Any) -> None:
        self.runtime.register_handler(name, handler)

    async def schedule(self, job: Any) -> None:
        await self._call(self.runtime.schedule, job)

    async def get(self, name: str) -> ManagedJob:
        found: ManagedJob = await self._call(self.runtime.get, name)
        return found

    async def delete(self, name: str) -> None:
        await self._call(self.runtime.delete, name)

    def row(self, name: str) -> ScheduleRow:
        found = self.app.store.schedule(name)
        assert found is not None
        return found

    async def _call(self, verb: Any, *arguments: Any) -> Any:
        return await verb(*arguments) if self._async else await asyncio.to_thread(verb, *arguments)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
async def face(request: pytest.FixtureRequest, db: str) -> AsyncIterator[Face]:
    app = Sokka(db)
    yield Face(app, request.param)
    app.store.close()
    await app.async_store.close()


@asynccontextmanager
async def working(app: Sokka, topics: Any = None, **options: Any) -> AsyncIterator[None]:
    worker = app.worker(topics, options=WorkerOptions(**{"poll": 0.05, "grace": 0, **options}))
    run = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await run


def tasks(conn: psycopg.Connection, *columns: str) -> list[Any]:
    query = f"select {', '.join(columns)} from sokka.all_tasks order by headers ->> 'sokka-fire-at'"
    return conn.execute(query.encode()).fetchall()


# keeping


async def test_a_job_comes_back_as_it_was_given(face: Face) -> None:
    job = ManagedJob(
        "report", "0 30 9 * * 1-5", due_time="2h", repeats=7, ttl="720h", data=b"\x00\xff{}",
        data_type_url="type.example.org/Report",
        failure_policy=DeliveryFailurePolicy(CONSTANT, 5, timedelta(seconds=61.5)),
    )  # fmt: skip
    await face.schedule(job)
    assert await face.get("report") == job
    dropping = DeliveryFailurePolicy(DROP, None, timedelta(0))
    drop = ManagedJob("dropped", "@daily", failure_policy=dropping)
    await face.schedule(drop)
    assert await face.get("dropped") == drop
    plain = ManagedJob("plain", due_time="1h", overwrite=True)
    await face.schedule(plain)
    # Whether it was to replace another is no part of a job.
    assert await face.get("plain") == replace(plain, overwrite=False)


async def test_what_is_not_there_is_not_found_and_may_be_deleted(face: Face) -> None:
    with pytest.raises(NoScheduleFound):
        await face.get("nothing")
    await face.delete("nothing")
    await face.schedule(ManagedJob("job", "@daily"))
    await face.delete("job")
    await face.delete("job")
    with pytest.raises(NoScheduleFound):
        await face.get("job")


async def test_a_name_is_taken_once_unless_it_is_overwritten(face: Face) -> None:
    first = ManagedJob("job", "@every 5m", data=b"1")
    await face.schedule(first)
    for other in (first, replace(first, data=b"2")):
        with pytest.raises(ScheduleExists):
            await face.schedule(other)
    before = face.row("job")
    # Word for word the same: a replica that starts keeps nobody from the next tick.
    await face.schedule(replace(first, overwrite=True))
    assert face.row("job") == before
    await face.schedule(replace(first, data=b"2", overwrite=True))
    after = face.row("job")
    assert (after.generation, after.runs) == (2, 0)
    assert before.next_at is not None and after.next_at is not None
    assert after.next_at > before.next_at


async def test_the_same_job_with_a_relative_end_is_the_same(face: Face) -> None:
    job = ManagedJob("job", "@every 5m", due_time="1h", ttl="2h", overwrite=True)
    await face.schedule(job)
    before = face.row("job")
    await face.schedule(job)
    assert face.row("job") == before


async def test_schedules_of_others_are_no_jobs(face: Face) -> None:
    spec = {"schedule": "@daily", "next_at": datetime.now(UTC) + SOON, "task": {"topic": "t"}}
    face.app.store.put_schedule("theirs", spec)
    with pytest.raises(NoScheduleFound):
        await face.get("theirs")
    with pytest.raises(ScheduleExists):
        await face.schedule(ManagedJob("theirs", "@daily", overwrite=True))
    await face.delete("theirs")
    assert face.row("theirs").source == "sql"


# when


def clock(face: Face) -> datetime:
    return face.app.store.clock()


@pytest.mark.parametrize(
    ("job", "first_s", "second_s"),
    [
        (ManagedJob("job", "@every 90s"), 90, 180),
        (ManagedJob("job", "@every 90s", due_time="10s"), 10, 100),
        (ManagedJob("job", "@every 90s", due_time="2020-01-01T00:00:00Z"), 0, 90),
        (ManagedJob("job", "@every 250ms"), 0.25, 0.5),
        (ManagedJob("job", due_time="1h30m"), 5_400, None),
        (ManagedJob("job", due_time="0s"), 0, None),
    ],
    ids=lambda value: f"{value.schedule} {value.due_time}" if isinstance(value, ManagedJob) else "",
)
async def test_the_first_tick_is_the_due_time_or_an_interval_from_now(
    face: Face, job: ManagedJob, first_s: float, second_s: float | None
) -> None:
    before = clock(face)
    await face.schedule(job)
    late = clock(face) - before
    row = face.row("job")
    assert row.next_at is not None
    assert timedelta(0) <= row.next_at - before - timedelta(seconds=first_s) <= late
    found = [each.at - row.next_at for each in upcoming(row, 2)]
    second = [] if second_s is None else [timedelta(seconds=second_s - first_s)]
    assert found == [timedelta(0), *second]


async def test_a_cron_job_starts_at_its_due_time_and_goes_on_by_the_clock(face: Face) -> None:
    job = ManagedJob("job", "0 0 3 * * *", due_time="2030-01-01T12:34:56+02:00")
    await face.schedule(job)
    row = face.row("job")
    assert [each.at for each in upcoming(row, 2)] == [
        datetime(2030, 1, 1, 10, 34, 56, tzinfo=UTC), datetime(2030, 1, 2, 3, tzinfo=UTC),
    ]  # fmt: skip


async def test_the_end_counts_from_the_due_time_or_from_now(face: Face) -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    for name, ttl in (("a", "1h"), ("b", "2030-01-01T01:00:00Z")):
        await face.schedule(ManagedJob(name, "@daily", due_time="2030-01-01T00:00:00Z", ttl=ttl))
        assert face.row(name).expires_at == due + timedelta(hours=1)
    before = clock(face)
    await face.schedule(ManagedJob("c", "@every 1m", ttl="1h"))
    ends = face.row("c").expires_at
    assert ends is not None
    assert before + timedelta(hours=1) <= ends <= clock(face) + timedelta(hours=1)
    # The last tick may be at the very end.
    same = "2030-01-01T00:00:00Z"
    await face.schedule(ManagedJob("d", "@daily", due_time=same, ttl=same))


# rules


@pytest.mark.parametrize(
    "broken",
    [
        {}, {"schedule": " "}, {"name": "", "schedule": "@daily"}, {"name": " ", "due_time": "1h"},
        {"schedule": "@every 0s"}, {"schedule": "@every -5m"}, {"schedule": "0 0 30 2 *"},
        {"schedule": "nonsense"}, {"schedule": "@at 2020-01-01T00:00:00Z"},
        {"due_time": "tomorrow"}, {"due_time": "-1h"}, {"due_time": "2026-03-08 02:30:00Z"},
        {"due_time": "2026-03-08T02:30:00"}, {"due_time": "99999999h"},
        {"due_time": "1h", "ttl": "2h"}, {"schedule": "@daily", "ttl": "now"},
        {"schedule": "@daily", "due_time": "2030-01-02T00:00:00Z", "ttl": "2030-01-01T00:00:00Z"},
        {"schedule": "@daily", "ttl": "2020-01-01T00:00:00Z"},
        {"schedule": "@daily", "repeats": 0}, {"schedule": "@daily", "repeats": -1},
        {"schedule": "@daily", "repeats": 2**32}, {"due_time": "1h", "repeats": 2},
        {"schedule": "@daily", "data": "text"}, {"schedule": "@daily", "overwrite": 1},
        {"schedule": 5}, {"schedule": "@daily", "failure_policy": "drop"},
        {"schedule": "@daily", "failure_policy": DeliveryFailurePolicy("")},
        {"schedule": "@daily", "failure_policy": DeliveryFailurePolicy("retry")},
        {"schedule": "@daily", "failure_policy": DeliveryFailurePolicy(CONSTANT, 3, -1)},
        {"schedule": "@daily", "failure_policy": DeliveryFailurePolicy(CONSTANT, -1, 1)},
        {"schedule": "@daily", "failure_policy": DeliveryFailurePolicy(CONSTANT, 1, "1 s")},
        {"schedule": "@daily", "failure_policy": DeliveryFailurePolicy(DROP, 3)},
        {"schedule": "@daily", "failure_policy": DeliveryFailurePolicy(DROP, None, 1)},
    ],
)  # fmt: skip
async def test_a_job_that_breaks_a_rule_is_refused_and_leaves_nothing(
    face: Face, broken: dict[str, Any]
) -> None:
    with pytest.raises(InvalidJob):
        await face.schedule(ManagedJob(**{"name": "job", **broken}))
    assert face.app.store.list_schedules().items == []


async def test_rules_that_need_no_clock_are_checked_without_a_database() -> None:
    ManagedJob("job", "@daily", ttl="1h", repeats=3).validate()
    with pytest.raises(InvalidJob):
        ManagedJob("job").validate()
    DeliveryFailurePolicy(CONSTANT).validate()
    DeliveryFailurePolicy("drop").validate()
    with pytest.raises(InvalidJob):
        DeliveryFailurePolicy("constant", interval=-1).validate()


async def test_what_is_no_job_is_refused(face: Face) -> None:
    with pytest.raises(InvalidJob):
        await face.schedule(ManagedJob(5, "@daily"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "handler"),
    [("", print), (" ", print), (5, print), ("job", None), ("job", 5), ("job", lambda: None),
     ("job", lambda a, b, c: None)],
)  # fmt: skip
async def test_a_handler_that_cannot_be_called_is_refused(
    face: Face, name: Any, handler: Any
) -> None:
    with pytest.raises(InvalidJob):
        face.register(name, handler)


async def test_a_name_has_one_handler(face: Face) -> None:
    face.register("job", lambda event: None)
    with pytest.raises(HandlerExists):
        face.register("job", lambda event: None)

    @face.app.task
    def mine() -> None: ...

    with pytest.raises(HandlerExists):
        face.register("mine", lambda event: None)


# delivery


async def test_a_tick_is_delivered_with_its_data_and_its_instant(face: Face) -> None:
    got: list[TriggerEvent] = []
    face.register("job", got.append)
    await face.schedule(
        ManagedJob("job", "@every 100ms", data=b"\xfe", data_type_url="u", repeats=3)
    )
    first = face.row("job").next_at
    assert first is not None
    async with working(face.app):
        await until(lambda: len(got) == 3)
    step = timedelta(milliseconds=100)
    assert got == [TriggerEvent("job", b"\xfe", "u", first + n * step) for n in range(3)]
    with pytest.raises(NoScheduleFound):
        await face.get("job")


async def test_plain_and_async_handlers_may_ask_for_the_context(face: Face) -> None:
    got: list[Any] = []

    def plain(context: SyncTaskContext, event: TriggerEvent) -> None:
        got.append((event.name, context.task.kind, context.fire_at == event.fire_at))

    async def loop(context: TaskContext, event: TriggerEvent) -> None:
        got.append((event.name, context.task.kind, context.fire_at == event.fire_at))

    class Callable_:
        async def __call__(self, event: TriggerEvent) -> None:
            got.append((event.name, "object", True))

    for name, handler in (("plain", plain), ("loop", loop), ("object", Callable_())):
        face.register(name, handler)
        await face.schedule(ManagedJob(name, due_time="0s"))
    async with working(face.app):
        await until(lambda: len(got) == 3)
    assert sorted(got) == [(name, name, True) for name in ("loop", "object", "plain")]


async def test_missed_ticks_are_delivered_one_after_another(
    face: Face, conn: psycopg.Connection
) -> None:
    going: list[int] = [0, 0]
    got: list[datetime] = []

    async def handler(event: TriggerEvent) -> None:
        going[0] += 1
        going[1] = max(going)
        await asyncio.sleep(0)
        got.append(event.fire_at)
        going[0] -= 1

    face.register("job", handler)
    await face.schedule(ManagedJob("job", "@every 1s", repeats=3))
    conn.execute(
        "update sokka.schedules set next_at = next_at - interval '1 h', anchor_at = anchor_at"
        " - interval '1 h', look_at = look_at - interval '1 h'"
    )
    first = face.row("job").next_at
    assert first is not None
    async with working(face.app):
        await until(lambda: len(got) == 3)
    assert got == [first + timedelta(seconds=n) for n in range(3)]
    assert going == [0, 1]


@pytest.mark.parametrize(
    ("policy", "deliveries"),
    [
        (DeliveryFailurePolicy(CONSTANT, 2, 0), 3), (DeliveryFailurePolicy(CONSTANT, 0, 0), 1),
        (DeliveryFailurePolicy(DROP), 1), (DeliveryFailurePolicy("constant", 1, "10ms"), 2),
    ],
)  # fmt: skip
async def test_a_failed_delivery_is_tried_again_as_the_policy_says(
    face: Face, conn: psycopg.Connection, policy: DeliveryFailurePolicy, deliveries: int
) -> None:
    def fail(event: TriggerEvent) -> None:
        raise RuntimeError("no")

    face.register("job", fail)
    await face.schedule(ManagedJob("job", due_time="0s", failure_policy=policy))
    async with working(face.app):
        await until(lambda: tasks(conn, "status") == [("failed",)])
    assert tasks(conn, "attempt") == [(deliveries,)]
    # The tick was counted, whatever became of it.
    assert face.row("job").runs == 1


async def test_without_a_policy_there_are_four_deliveries_a_second_apart(face: Face) -> None:
    await face.schedule(ManagedJob("job", due_time="1h"))
    assert policy_from(face.row("job").task["retry"]) == RetryPolicy(
        4, timedelta(seconds=1), timedelta(seconds=1), multiplier=1.0
    )
    for_ever = DeliveryFailurePolicy(CONSTANT)
    await face.schedule(ManagedJob("ever", due_time="1h", failure_policy=for_ever))
    assert face.row("ever").task["retry"]["max_attempts"] == MOST_ATTEMPTS


async def test_a_tick_without_a_handler_waits_and_costs_no_attempt(
    face: Face, db: str, conn: psycopg.Connection
) -> None:
    await face.schedule(ManagedJob("job", due_time="0s"))
    other = Sokka(db)
    other.runtime.register_handler("another", lambda event: None)
    try:
        async with working(other):
            await until(lambda: tasks(conn, "status") == [("snoozed",)])
        assert tasks(conn, "attempt", "failures") == [(0, 0)]
        got: list[TriggerEvent] = []
        face.register("job", got.append)
        conn.execute("update sokka.tasks set run_at = now()")
        async with working(face.app):
            await until(lambda: got)
    finally:
        other.store.close()
        await other.async_store.close()
    assert tasks(conn, "status", "attempt") == [("terminated", 1)]


async def test_each_tick_goes_to_one_of_several_replicas(
    face: Face, db: str, conn: psycopg.Connection
) -> None:
    got: list[TriggerEvent] = []
    apps = [face.app, Sokka(db), Sokka(db)]
    for app in apps:
        app.runtime.register_handler("job", got.append)
    await face.schedule(ManagedJob("job", "@every 50ms", repeats=10))
    async with working(apps[0]), working(apps[1]), working(apps[2]):
        await until(lambda: len(tasks(conn, "status")) == 10 and len(got) >= 10)
    for app in apps[1:]:
        app.store.close()
        await app.async_store.close()
    assert len({event.fire_at for event in got}) == len(got) == 10

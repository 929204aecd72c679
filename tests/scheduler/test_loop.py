"""The loop fires what is due, once, whoever else does, and outlives its database."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from sokka_pg import events
from sokka_pg.errors import BadArgument, DatabaseUnavailable, UsageError
from sokka_pg.model import NextLook
from sokka_pg.scheduler import ScheduleLoop
from sokka_pg.store_async import AsyncPgTaskStore
from tests.scheduler.conftest import until

KILL_ALL = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


class Noticed:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def notice(self, event: events.Event) -> None:
        self.events.append(event)

    def all(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Counted:
    """A store that notes which verbs it is asked for, and may be told to fail."""

    def __init__(self, store: AsyncPgTaskStore) -> None:
        self._store = store
        self.asked: list[str] = []
        self.faults: list[Exception] = []

    def __getattr__(self, verb: str) -> Any:
        async def ask(*args: Any, **options: Any) -> Any:
            self.asked.append(verb)
            if self.faults:
                raise self.faults.pop()
            return await getattr(self._store, verb)(*args, **options)

        return ask


@pytest.fixture
async def store(db: str) -> AsyncIterator[AsyncPgTaskStore]:
    made = AsyncPgTaskStore(db)
    yield made
    await made.close()


@asynccontextmanager
async def looping(store: Any, **options: Any) -> AsyncIterator[ScheduleLoop]:
    """A loop that runs beside the test."""
    loop = ScheduleLoop(store, **{"poll": 0.05, **options})
    run = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        loop.stop()
        await run


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


async def put(store: AsyncPgTaskStore, name: str, next_at: datetime, **more: Any) -> None:
    spec = {"schedule": "@every 1h", "next_at": next_at, "anchor_at": next_at}
    await store.put_schedule(name, spec | {"task": {"topic": "t"}} | more)


Ticks = Callable[[], list[tuple[str, datetime]]]


@pytest.fixture
def ticks(conn: psycopg.Connection) -> Ticks:
    """The ticks that became tasks, each by name and instant, as often as there are tasks."""
    query = """
        select f.name, f.fire_at from sokka.fired_ticks f
          join sokka.all_tasks t on t.headers ->> 'sokka-schedule' = f.name
           and (t.headers ->> 'sokka-fire-at')::timestamptz = f.fire_at
         order by 1, 2
    """

    def read() -> list[tuple[str, datetime]]:
        return [(name, at) for name, at in conn.execute(query)]

    return read


async def test_what_is_due_becomes_tasks_and_what_is_not_waits(
    store: AsyncPgTaskStore, ticks: Ticks
) -> None:
    start = ago(10)
    await put(store, "due", start)
    await put(store, "all", start, schedule="@every 4s", missed="all")
    await put(store, "later", ago(-3600))
    loop = ScheduleLoop(store)
    wait_s = await loop.look()
    assert 0 < wait_s <= 1
    every_4_s = [("all", start + timedelta(seconds=n)) for n in (0, 4, 8)]
    assert ticks() == [*every_4_s, ("due", start)]
    row = await store.schedule("due")
    assert row is not None and row.next_at == start + timedelta(hours=1)


async def test_what_has_fired_its_last_tick_is_finished(
    store: AsyncPgTaskStore, ticks: Ticks
) -> None:
    start = ago(10)
    await put(store, "once", start, schedule=f"@at {start.isoformat()}")
    await put(store, "ends", start, schedule="@every 8s", expires_at=start + timedelta(seconds=9))
    await ScheduleLoop(store).look()
    assert ticks() == [("ends", start + timedelta(seconds=8)), ("once", start)]
    for name in ("once", "ends"):
        row = await store.schedule(name)
        assert row is not None and (row.state, row.next_at) == ("finished", None)


async def test_an_idle_loop_asks_one_question_and_no_other(store: AsyncPgTaskStore) -> None:
    await put(store, "later", ago(-3600))
    counted = Counted(store)
    async with looping(counted, poll=0.01):
        await until(lambda: len(counted.asked) >= 20)
    assert set(counted.asked) == {"next_schedule_at"}


async def test_it_sleeps_until_the_next_tick_but_never_longer_than_its_poll() -> None:
    now = ago(0)

    class Stub:
        look_at = now

        async def next_schedule_at(self) -> NextLook:
            return NextLook(self.look_at, now)

    stub = Stub()
    loop = ScheduleLoop(stub, poll=1)  # type: ignore[arg-type]
    for ahead_s, wait_s in ((0.25, 0.25), (30, 1)):
        stub.look_at = now + timedelta(seconds=ahead_s)
        assert await loop.look() == wait_s


async def test_a_tick_that_falls_due_fires_in_its_loop(
    store: AsyncPgTaskStore, ticks: Ticks
) -> None:
    async with looping(store):
        await put(store, "soon", ago(-0.2), schedule="@every 200ms", missed="all", repeats=5)
        await until(lambda: len(ticks()) == 5)
        row = await store.schedule("soon")
    assert row is not None and (row.state, row.runs) == ("finished", 5)
    found = [at for _, at in ticks()]
    assert [later - at for at, later in itertools.pairwise(found)] == [
        timedelta(milliseconds=200)
    ] * 4


async def test_three_loops_fire_each_tick_once(store: AsyncPgTaskStore, ticks: Ticks) -> None:
    start = ago(10.5)
    names = [f"s{n:03}" for n in range(60)]
    for name in names:
        await put(store, name, start, schedule="@every 1s", missed="all", repeats=10)
    async with looping(store, batch=7), looping(store, batch=7), looping(store, batch=7):
        await until(lambda: len(ticks()) >= 600)
    second = timedelta(seconds=1)
    assert ticks() == [(name, start + n * second) for name in names for n in range(10)]


async def test_a_schedule_that_nobody_understands_holds_up_no_other(
    store: AsyncPgTaskStore, ticks: Ticks
) -> None:
    start = ago(10)
    await put(store, "a", start, schedule="when the cows come home")
    await put(store, "b", start)
    await ScheduleLoop(store).look()
    assert ticks() == [("b", start)]
    row = await store.schedule("a")
    assert row is not None and row.state == "failing" and row.next_at == start
    assert row.error is not None and row.error.startswith("BadArgument")


async def test_a_task_that_cannot_be_made_holds_up_no_other(
    store: AsyncPgTaskStore, conn: psycopg.Connection, ticks: Ticks
) -> None:
    start = ago(10)
    for name in "abc":
        await put(store, name, start)
    conn.execute(
        "update sokka.schedules set task = %s where name = 'b'", (Jsonb({"topic": "", "x": 1}),)
    )
    await ScheduleLoop(store).look()
    assert ticks() == [("a", start), ("c", start)]
    row = await store.schedule("b")
    assert row is not None and (row.state, row.next_at) == ("failing", start)
    # Mended, it makes up for it.
    conn.execute("""update sokka.schedules set task = '{"topic": "t"}', look_at = next_at""")
    await ScheduleLoop(store).look()
    assert ("b", start) in ticks()


async def test_a_serial_tick_waits_for_the_end_of_the_one_before(
    store: AsyncPgTaskStore, conn: psycopg.Connection, ticks: Ticks
) -> None:
    start = ago(2.5)
    await put(
        store, "s", start, schedule="@every 1s", missed="all", serial=True, repeats=3
    )
    for count in (1, 2, 3):
        # It looks again in a second: here that has passed.
        conn.execute("update sokka.schedules set look_at = next_at where next_at is not null")
        await ScheduleLoop(store).look()
        assert len(ticks()) == count
        task = await store.reserve_task("t", "p")
        assert task is not None
        conn.execute("update sokka.schedules set look_at = next_at where next_at is not null")
        await ScheduleLoop(store).look()
        assert len(ticks()) == count
        await store.terminate(task)
    assert [at for _, at in ticks()] == [start + timedelta(seconds=n) for n in range(3)]


async def test_a_tick_is_told_with_how_late_it_was(store: AsyncPgTaskStore) -> None:
    start = ago(10)
    await put(store, "s", start)
    seen = Noticed()
    async with looping(store, observers=[seen]):
        await until(lambda: seen.all(events.Fired))
    (fired,) = seen.all(events.Fired)
    row = await store.schedule("s")
    assert row is not None
    assert (fired.name, fired.fire_at, fired.task_id) == ("s", start, row.last_task_id)
    assert 10 <= fired.late_s < 60


async def test_it_outlives_the_loss_of_its_connections(
    store: AsyncPgTaskStore, conn: psycopg.Connection, ticks: Ticks
) -> None:
    async with looping(store):
        await put(store, "s", ago(0), schedule="@every 20ms", missed="all", repeats=100)
        for count in (1, 30, 60):
            await until(lambda count=count: len(ticks()) >= count)
            conn.execute(KILL_ALL)
        await until(lambda: len(ticks()) == 100)
    found = [at for _, at in ticks()]
    assert len(set(found)) == 100


async def test_an_outage_is_told_once_and_so_is_its_end(store: AsyncPgTaskStore) -> None:
    counted, seen = Counted(store), Noticed()
    counted.faults = [
        DatabaseUnavailable("away"), RuntimeError("a fault of ours"), DatabaseUnavailable("away"),
    ]  # fmt: skip
    async with looping(counted, observers=[seen]):
        await until(lambda: seen.all(events.Reconnected))
    assert [event.part for event in seen.all(events.Disconnected)] == ["schedules"]
    assert [event.part for event in seen.all(events.Reconnected)] == ["schedules"]


async def test_it_is_stopped_from_any_thread_and_runs_once(store: AsyncPgTaskStore) -> None:
    loop = ScheduleLoop(store, poll=60)
    run = asyncio.create_task(loop.run())
    await asyncio.sleep(0)
    threading.Thread(target=loop.stop).start()
    await asyncio.wait_for(run, 30)
    with pytest.raises(UsageError):
        await loop.run()
    # Stopped before it began.
    early = ScheduleLoop(store, poll=60)
    early.stop()
    await asyncio.wait_for(early.run(), 30)


@pytest.mark.parametrize(
    "options", [{"poll": 0}, {"poll": 61}, {"poll": "1s"}, {"batch": 0}, {"batch": 10_001}]
)
async def test_an_option_that_cannot_work_is_refused(
    store: AsyncPgTaskStore, options: dict[str, Any]
) -> None:
    with pytest.raises(BadArgument):
        ScheduleLoop(store, **options)

"""Periodic tasks: declared in code, kept in the database, one for all processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from sokka_pg import Sokka, SyncTaskContext, TaskContext, WorkerOptions
from sokka_pg.errors import BadArgument, UsageError
from sokka_pg.model import ScheduleRow
from sokka_pg.scheduler import SyncReport
from sokka_pg.scheduler.periodic import Periodic
from sokka_pg.schedules import every, schedule_func
from tests.scheduler.conftest import until


class Apps:
    """Apps as several programs declare them, in one database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.made: list[Sokka] = []

    def __call__(self, name: str | None = "shop", **schedules: str) -> Sokka:
        """An app with a periodic task for each of ``schedules``."""
        app = Sokka(self._url, name=name)
        for task, schedule in schedules.items():
            app.periodic(schedule, kind=task, topic="t")(_nothing())
        self.made.append(app)
        return app


def _nothing() -> Any:
    def nothing() -> None: ...

    return nothing


@pytest.fixture
def apps(db: str) -> Iterator[Apps]:
    made = Apps(db)
    yield made
    for app in made.made:
        app.store.close()


@asynccontextmanager
async def working(app: Sokka, **options: Any) -> AsyncIterator[None]:
    worker = app.worker(options=WorkerOptions(**{"poll": 0.05, "grace": 0, **options}))
    run = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await run
        await app.async_store.close()


def row(app: Sokka, name: str) -> ScheduleRow:
    found = app.store.schedule(name)
    assert found is not None
    return found


def names(app: Sokka) -> list[str]:
    return [each.name for each in app.store.list_schedules().items]


def test_what_is_declared_is_put_with_its_task(apps: Apps) -> None:
    app = apps()

    @app.periodic(
        "0 30 9 * * 1-5", tz="Europe/Berlin", args=(3,), kwargs={"text": "x"}, topic="mail",
        retry=4, timeout=5, priority=2, missed="all", max_catch_up=7, serial=True, repeats=9,
        expires_at=datetime(2040, 1, 1, tzinfo=UTC), description="why",
    )  # fmt: skip
    def send(ctx: SyncTaskContext, count: int, text: str) -> None: ...

    before = app.store.clock()
    assert app.sync_schedules() == SyncReport(created=("send",))
    found = row(app, "send")
    assert found.schedule == "TZ=Europe/Berlin 0 30 9 * * 1-5"
    assert found.next_at is not None and found.next_at > before
    assert (found.topic, found.kind, found.source) == ("mail", "send", "app:shop")
    assert found.task["data"] == {"count": 3, "text": "x"}
    assert int(found.task["priority"]) == 2 and found.task["retry"]["max_attempts"] == 4
    assert (found.missed, found.max_catch_up, found.serial) == ("all", 7, True)
    assert (found.repeats, found.description) == (9, "why")
    assert found.expires_at == datetime(2040, 1, 1, tzinfo=UTC)
    # A task like any other besides.
    assert send.enqueue(1, text="y").task.topic == "mail"


def test_a_task_may_have_several_schedules_under_names_of_their_own(apps: Apps) -> None:
    app = apps()

    @app.task(topic="t")
    def tidy(deep: bool = False) -> None: ...

    tidy.periodic("@hourly")
    tidy.periodic(every("24h"), name="tidy deeply", kwargs={"deep": True})
    with pytest.raises(UsageError, match="tidy deeply"):
        tidy.periodic("@weekly", name="tidy deeply")
    assert [each.name for each in app.periodic_tasks] == ["tidy", "tidy deeply"]
    assert app.sync_schedules().created == ("tidy", "tidy deeply")
    assert row(app, "tidy deeply").task["data"] == {"deep": True}


def test_intervals_are_counted_from_when_they_were_put(apps: Apps) -> None:
    app = apps(a="@every 10m")
    before = app.store.clock()
    app.sync_schedules()
    found = row(app, "a")
    assert found.next_at is not None
    wait = found.next_at - before - timedelta(minutes=10)
    assert timedelta(0) <= wait <= app.store.clock() - before
    assert found.anchor_at == found.next_at
    grid = apps("other", b="@every 7m from 2026-01-01T00:00:00Z")
    grid.sync_schedules()
    tick = row(grid, "b").next_at
    assert tick is not None
    assert (tick - datetime(2026, 1, 1, tzinfo=UTC)) % timedelta(minutes=7) == timedelta(0)


def test_a_restart_changes_nothing_and_a_new_version_what_it_says(apps: Apps) -> None:
    app = apps(a="@every 10m", b="@daily")
    app.sync_schedules()
    before = row(app, "a"), row(app, "b")
    again = apps(a="@every 10m", b="@daily")
    assert again.sync_schedules() == SyncReport(unchanged=("a", "b"))
    assert (row(app, "a"), row(app, "b")) == before
    changed = apps(a="@every 5m", b="@daily")
    assert changed.sync_schedules() == SyncReport(changed=("a",), unchanged=("b",))
    assert (row(app, "a").generation, row(app, "b").generation) == (2, 1)


def test_only_prune_deletes_and_only_what_the_same_app_declared(apps: Apps) -> None:
    ours = apps(a="@daily", b="@daily", c="@daily")
    theirs = apps("bank", d="@daily")
    for app in (ours, theirs):
        app.sync_schedules()
    far = datetime(2040, 1, 1, tzinfo=UTC)
    by_hand = {"schedule": "@daily", "next_at": far, "task": {"topic": "t"}}
    ours.store.put_schedule("by hand", by_hand)
    # A process that declares fewer, or none, deletes nothing by starting.
    assert apps().sync_schedules() == SyncReport()
    assert apps(a="@daily", b="@daily").sync_schedules() == SyncReport(unchanged=("a", "b"))
    assert names(ours) == ["a", "b", "by hand", "c", "d"]
    pruned = apps(a="@daily").sync_schedules(prune=True)
    assert pruned == SyncReport(unchanged=("a",), deleted=("b", "c"))
    assert names(ours) == ["a", "by hand", "d"]


def test_prune_needs_a_name_for_whose_they_are(apps: Apps) -> None:
    app = apps(None, a="@daily")
    with pytest.raises(UsageError, match="name"):
        app.sync_schedules(prune=True)
    assert app.sync_schedules().created == ("a",)


def test_many_are_pruned_page_by_page(apps: Apps) -> None:
    app = apps(**{f"n{i:04}": "@daily" for i in range(1_005)})
    app.sync_schedules()
    assert len(apps(n0003="@daily").sync_schedules(prune=True).deleted) == 1_004
    assert names(app) == ["n0003"]


def test_a_name_that_another_app_declared_is_left_to_it(apps: Apps) -> None:
    first = apps(a="@daily")
    first.sync_schedules()
    assert apps("bank", a="@hourly", b="@hourly").sync_schedules() == SyncReport(
        created=("b",), taken=("a",)
    )
    assert row(first, "a").source == "app:shop"


async def test_the_async_twin_does_the_same(apps: Apps) -> None:
    app = apps(a="@daily", b="@daily")
    assert await app.sync_schedules_async() == SyncReport(created=("a", "b"))
    fewer = apps(a="@daily")
    report = await fewer.sync_schedules_async(prune=True)
    assert report == SyncReport(unchanged=("a",), deleted=("b",))
    await app.async_store.close()
    await fewer.async_store.close()


def test_what_has_no_tick_any_more_is_not_put(apps: Apps) -> None:
    app = apps(a="@at 2020-01-01T00:00:00Z")
    app.task(kind="b")(_nothing()).periodic("@yearly", expires_at=datetime(2021, 1, 1, tzinfo=UTC))
    assert app.sync_schedules() == SyncReport(over=("a", "b"))
    assert names(app) == []


def test_what_ended_does_not_begin_anew_with_every_restart(
    apps: Apps, conn: psycopg.Connection
) -> None:
    def one() -> Sokka:
        app = apps()
        app.task(kind="a", retry=3, timeout=60)(_nothing()).periodic(
            "@hourly", repeats=2, grace=90, missed="skip", description="twice"
        )
        return app

    one().sync_schedules()
    conn.execute("update sokka.schedules set finished_at = now(), next_at = null, look_at = null")
    assert one().sync_schedules() == SyncReport(over=("a",))
    # Another declaration is another schedule.
    assert apps(a="@hourly").sync_schedules() == SyncReport(created=("a",))


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedule": "nonsense"}, {"schedule": "0 0 30 2 *"}, {"tz": "Mars/X"},
        {"schedule": schedule_func(lambda after: None)}, {"name": ""}, {"name": "a\x00"},
        {"missed": "never"}, {"max_catch_up": 0}, {"grace": -1}, {"repeats": 0}, {"serial": 1},
        {"expires_at": datetime(2040, 1, 1)}, {"description": "x" * 2_001}, {"nonsense": 1},
        {"args": (1, 2)}, {"kwargs": {"other": 1}},
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_work_is_refused_at_once(
    apps: Apps, wrong: dict[str, Any]
) -> None:
    app = apps()

    @app.task
    def one(count: int = 1) -> None: ...

    with pytest.raises(BadArgument):
        one.periodic(**{"schedule": "@daily", **wrong})
    assert app.periodic_tasks == ()


async def test_a_worker_puts_and_fires_and_the_handler_knows_its_tick(apps: Apps) -> None:
    app = apps()
    got: list[Any] = []

    @app.periodic("@every 100ms", args=("x",), topic="t", repeats=3, missed="all")
    async def tick(ctx: TaskContext, text: str) -> None:
        got.append((ctx.fire_at, text))

    async with working(app):
        await until(lambda: len(got) == 3)
    first = got[0][0]
    step = timedelta(milliseconds=100)
    assert sorted(got) == [(first + n * step, "x") for n in range(3)]
    assert tick.enqueue("y").created


async def test_no_other_task_has_a_tick(apps: Apps) -> None:
    app = apps()
    got: list[Any] = []

    @app.task(topic="t")
    def plain(ctx: SyncTaskContext) -> None:
        got.append(ctx.fire_at)

    plain.enqueue()
    plain.configure(headers={"sokka-fire-at": "soon"}).enqueue()
    async with working(app):
        await until(lambda: len(got) == 2)
    assert got == [None, None]


async def test_a_worker_told_not_to_leaves_schedules_to_others(
    apps: Apps, conn: psycopg.Connection
) -> None:
    app = apps(a="@every 1ms")
    done: list[int] = []

    @app.task(topic="t")
    def other() -> None:
        done.append(1)

    async with working(app, schedules=False):
        other.enqueue()
        await until(lambda: done)
    assert names(app) == []
    # Put by somebody: it is not fired either.
    app.sync_schedules()
    other.enqueue()
    again = apps()
    again.task(topic="t", kind="other")(lambda: done.append(2))
    async with working(again, schedules=False):
        await until(lambda: len(done) == 2)
    assert conn.execute("select count(*) from sokka.fired_ticks").fetchone() == (0,)


async def test_a_loop_of_the_app_puts_and_fires_without_working_anything_off(
    apps: Apps, conn: psycopg.Connection
) -> None:
    app = apps(a="@every 10ms")
    loop = app.schedule_loop()
    run = asyncio.create_task(loop.run())
    await until(lambda: conn.execute("select from sokka.tasks").rowcount >= 3)
    loop.stop()
    await run
    assert conn.execute("select distinct status from sokka.all_tasks").fetchall() == [("starting",)]


def test_a_declaration_is_a_value(apps: Apps) -> None:
    app = apps()

    @app.task
    def one() -> None: ...

    declared = one.periodic("@daily", tz="Europe/Berlin")
    assert isinstance(declared, Periodic)
    assert declared.schedule.text == "TZ=Europe/Berlin 0 0 0 * * *"
    assert app.periodic_tasks == (declared,)

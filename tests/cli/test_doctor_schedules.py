"""The doctor sees ticks that nobody fires, and schedules that cannot be fired."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from sokka_pg.doctor import Level
from sokka_pg.scheduler import ScheduleLoop
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore
from tests.cli.conftest import Look, set_clock, worst

LATER = "clock_timestamp() + interval '{}'"


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as found:
        yield found


def put(store: PgTaskStore, name: str, schedule: str = "@every 1h") -> None:
    next_at = datetime.now(UTC) + timedelta(seconds=30)
    spec = {"schedule": schedule, "next_at": next_at, "task": {"topic": "t"}}
    store.put_schedule(name, spec)


def fire(url: str) -> None:
    async def look() -> None:
        store = AsyncPgTaskStore(url)
        await ScheduleLoop(store).look()
        await store.close()

    asyncio.run(look())


def test_schedules_that_go_on_are_only_counted(look: Look, store: PgTaskStore) -> None:
    for name in "abc":
        put(store, name)
    store.pause_schedule("c")
    (found,) = look("schedules")
    assert (found.level, found.what) == ("ok", "2 go on, 1 are paused")


def test_ticks_that_nobody_fires_are_told(
    look: Look, store: PgTaskStore, conn: psycopg.Connection, db: str
) -> None:
    put(store, "a")
    put(store, "b")
    set_clock(conn, LATER.format("35 seconds"))
    assert worst(look("schedules")) is Level.OK
    set_clock(conn, LATER.format("50 seconds"))
    assert worst(look("schedules")) is Level.WARN
    set_clock(conn, LATER.format("5 minutes"))
    found = look("schedules")[-1]
    assert (found.level, "2 are due and nobody fires them" in found.what) == ("fail", True)
    fire(db)
    assert worst(look("schedules")) is Level.OK


def test_a_schedule_that_cannot_be_fired_is_told_with_the_reason(
    look: Look, store: PgTaskStore, conn: psycopg.Connection, db: str
) -> None:
    put(store, "odd", "when it suits")
    set_clock(conn, LATER.format("35 seconds"))
    fire(db)
    found = look("schedules")[-1]
    assert found.level == "warn"
    assert "odd" in found.what and "BadArgument" in found.what
    set_clock(conn, LATER.format("2 hours"))
    assert worst(look("schedules")) is Level.FAIL
    store.pause_schedule("odd")
    assert worst(look("schedules")) is Level.OK

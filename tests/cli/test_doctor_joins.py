"""The doctor sees fan-outs and streams that wait for what does not come."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from sokka_pg.doctor import Level
from sokka_pg.store import PgTaskStore
from tests.cli.conftest import Look, set_clock, worst

LATER = "clock_timestamp() + interval '{}'"


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as found:
        yield found


def test_fan_outs_that_go_on_are_only_counted(look: Look, store: PgTaskStore) -> None:
    store.fan_out([{"topic": "parts"}] * 3, deadline=60)
    store.fan_out([{"topic": "parts"}] * 2)
    store.fan_out([])
    (found,) = look("joins")
    assert (found.level, found.what) == ("ok", "2 open")


def test_a_deadline_that_no_sweep_saw_is_told(
    look: Look, store: PgTaskStore, conn: psycopg.Connection
) -> None:
    store.fan_out([{"topic": "parts"}], deadline=60)
    store.reserve_task("parts", "worker-1", 3600)
    set_clock(conn, LATER.format("65 seconds"))
    assert worst(look("joins")) is Level.OK
    set_clock(conn, LATER.format("90 seconds"))
    assert worst(look("joins")) is Level.WARN
    set_clock(conn, LATER.format("5 minutes"))
    found = look("joins")[-1]
    assert (found.level, "1 are past their deadline" in found.what) == ("fail", True)
    conn.execute("select from sokka.sweep()")
    assert worst(look("joins")) is Level.OK


def test_fan_outs_in_a_paused_topic_are_told_at_once(look: Look, store: PgTaskStore) -> None:
    store.fan_out([{"topic": "parts"}, {"topic": "others"}])
    store.pause_topic("parts")
    found = look("joins")[-1]
    assert (found.level, "topic parts, which is paused" in found.what) == ("warn", True)
    store.resume_topic("parts")
    assert worst(look("joins")) is Level.OK


def test_a_topic_that_nobody_reserves_from_is_told_after_a_while(
    look: Look, store: PgTaskStore, conn: psycopg.Connection
) -> None:
    store.fan_out([{"topic": "parts"}] * 2)
    store.fan_out([{"topic": "parts"}])
    assert worst(look("joins")) is Level.OK
    set_clock(conn, LATER.format("10 minutes"))
    found = look("joins")[-1]
    assert found.level == "warn"
    assert "2 wait for tasks of topic parts, which nobody seems to reserve" in found.what
    store.reserve_task("parts", "worker-1", 3600)
    assert worst(look("joins")) is Level.OK


def test_a_stream_whose_consumer_stopped_reading_is_told(
    look: Look, store: PgTaskStore, conn: psycopg.Connection
) -> None:
    task_id = store.create_task("streams").task_id
    leased = store.reserve_task("streams", "worker-1", 7200)
    assert leased is not None
    store.open_stream(task_id, 3)
    store.append_stream(leased, items=[1, 2, 3])
    assert worst(look("streams")) is Level.OK
    set_clock(conn, LATER.format("1 hour"))
    (found,) = look("streams")
    assert (found.level, str(task_id) in found.what) == ("warn", True)
    assert "full for 60 min: 3 items of 3" in found.what
    store.read_stream(task_id, 2)
    assert worst(look("streams")) is Level.OK


def test_a_stream_that_is_full_of_bytes_is_told_too(
    look: Look, store: PgTaskStore, conn: psycopg.Connection
) -> None:
    task_id = store.create_task("streams").task_id
    leased = store.reserve_task("streams", "worker-1", 7200)
    assert leased is not None
    store.open_stream(task_id, 1_000, 1_024)
    store.append_stream(leased, items=["x" * 950])
    set_clock(conn, LATER.format("1 hour"))
    assert worst(look("streams")) is Level.WARN
    store.terminate(leased)
    assert worst(look("streams")) is Level.OK

"""Schedulers in processes of their own, killed at any moment: no tick is lost or doubled."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from sokka_pg.store import PgTaskStore
from tests.faults.processes import ROOT
from tests.faults.waiting import until

STEP = timedelta(milliseconds=50)
GATE = 4712
KILLS = 20


class Scheduler:
    """``sokka schedule run`` on one database."""

    def __init__(self, url: str, log_path: Path) -> None:
        self.log_path = log_path
        with log_path.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.cli", "schedule", "run"],
                cwd=ROOT, env={**os.environ, "SOKKA_DATABASE_URL": url, "PYTHONPATH": str(ROOT)},
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)
        assert self.process.returncode == -9, self.log_path.read_text()


@pytest.fixture
def start(db: str, tmp_path: Path) -> Iterator[Callable[[], Scheduler]]:
    """Starts a scheduler on the test's database."""
    started: list[Scheduler] = []

    def run() -> Scheduler:
        started.append(Scheduler(db, tmp_path / "log"))
        return started[-1]

    yield run
    for each in started:
        each.process.kill()
        each.process.wait(20)


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as found:
        yield found


def put(store: PgTaskStore, name: str, first: datetime, repeats: int) -> None:
    spec = {
        "schedule": "@every 50ms", "next_at": first, "anchor_at": first, "missed": "all",
        "max_catch_up": 10_000, "repeats": repeats, "task": {"topic": "t"},
    }  # fmt: skip
    store.put_schedule(name, spec)


def expected(names: list[str], first: datetime, count: int) -> Counter[tuple[str, datetime]]:
    return Counter((name, first + n * STEP) for name in names for n in range(count))


def tasks(conn: psycopg.Connection) -> Counter[tuple[str, datetime]]:
    """The tasks that there are, by schedule and tick."""
    query = """
        select headers ->> 'sokka-schedule', (headers ->> 'sokka-fire-at')::timestamptz, count(*)
          from sokka.all_tasks group by 1, 2
    """
    return Counter({(name, at): count for name, at, count in conn.execute(query)})


def test_three_schedulers_killed_at_random_lose_and_double_nothing(
    start: Callable[[], Scheduler], store: PgTaskStore, conn: psycopg.Connection
) -> None:
    first = datetime.now(UTC)
    names = [f"s{n:02}" for n in range(20)]
    for name in names:
        put(store, name, first, 400)
    roll = random.Random()
    running = [start() for _ in range(3)]
    left = "select from sokka.schedules where finished_at is null"
    for _ in range(KILLS):
        time.sleep(roll.uniform(0.1, 0.9))
        victim = roll.randrange(3)
        running[victim].kill()
        running[victim] = start()
    assert conn.execute(left).rowcount, "all was done before the last of them died"
    until(lambda: not conn.execute(left).rowcount, "the end of all schedules", 60)
    found = tasks(conn)
    assert found == expected(names, first, 400)
    ticks = conn.execute("select name, fire_at from sokka.fired_ticks").fetchall()
    assert Counter(map(tuple, ticks)) == found


def test_one_that_dies_between_its_writes_has_written_nothing(
    start: Callable[[], Scheduler], store: PgTaskStore,
    conn: psycopg.Connection, connect: Callable[..., psycopg.Connection],
) -> None:
    # It is met where its task is about to be inserted.
    conn.execute(
        "create function at_the_gate() returns trigger language plpgsql as"
        f" $$ begin perform pg_advisory_xact_lock({GATE}); return new; end $$"
    )
    conn.execute(
        "create trigger gate before insert on sokka.tasks"
        " for each row execute function at_the_gate()"
    )
    holder = connect()
    holder.execute(f"select pg_advisory_lock({GATE})")
    first = datetime.now(UTC) - timedelta(seconds=1)
    put(store, "s", first, 1)
    before = store.schedule("s")
    scheduler = start()
    waiting = "select from pg_locks where locktype = 'advisory' and not granted and objid = %s"
    until(lambda: conn.execute(waiting, (GATE,)).rowcount, "the gate to be reached")
    scheduler.kill()
    holder.execute(f"select pg_advisory_unlock({GATE})")
    until(lambda: not _schedulers(conn), "the end of the session of the dead")
    assert (tasks(conn), store.schedule("s")) == (Counter(), before)
    start()
    until(lambda: tasks(conn), "the tick")
    assert tasks(conn) == expected(["s"], first, 1)


def _schedulers(conn: psycopg.Connection) -> int:
    return conn.execute(
        "select from pg_stat_activity where datname = current_database()"
        " and query ilike '%%fire_schedules%%' and state <> 'idle' and pid <> pg_backend_pid()"
    ).rowcount


def test_ticks_of_a_time_without_any_scheduler_are_made_up_for(
    start: Callable[[], Scheduler], store: PgTaskStore, conn: psycopg.Connection
) -> None:
    first = datetime.now(UTC) - timedelta(minutes=1)
    put(store, "s", first, 1_200)
    start(), start()
    until(lambda: sum(tasks(conn).values()) >= 1_200, "all ticks")
    assert tasks(conn) == expected(["s"], first, 1_200)

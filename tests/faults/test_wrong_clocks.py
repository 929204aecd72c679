"""Worker processes whose wall clocks are minutes off: only the server's clock counts."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from sokka_pg.store import PgTaskStore
from tests.faults import auditing, programs
from tests.faults.processes import WorkerProcess
from tests.faults.waiting import until

Start = Callable[[int], WorkerProcess]

_HELD = "select task_id, token, lease_expires_at from sokka.live_leases where pid = %s"
_EARLY = """
    select h.task_id from sokka.task_history h join given g using (task_id)
     where h.event = 'reserved' and h.at < g.run_at"""
_TAKEN_BACK = """
    select ended_at >= %(expired_at)s from sokka.past_leases
     where task_id = %(task_id)s and token = %(token)s and event = 'lease_lost'"""


def with_clock_off_by(seconds: int) -> dict[str, str]:
    """The environment of a process with such a clock.

    The library alone: the program ``faketime`` stays between, and a kill would
    hit it and not the worker. The monotonic clock is right on a machine whose
    wall clock is wrong.
    """
    faketime = programs.find("faketime")
    assert faketime is not None
    library = subprocess.run(
        [faketime, "-m", "+1 second", "printenv", "LD_PRELOAD"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()
    return {
        "LD_PRELOAD": library, "FAKETIME": f"{seconds:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"
    }


@pytest.fixture
def start(db: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def made(off_by: int) -> WorkerProcess:
            name = f"off{off_by:+d}"
            process = WorkerProcess(
                make_conninfo(db, application_name=name), tmp_path, "--topics", "t:4",
                "--lease", "1s", "--pid", name, "--prefetch", "0", name=name,
                environment=with_clock_off_by(off_by),
            )
            stack.callback(_clear_up_after, process.process.pid)
            stack.callback(process.kill)
            return process

        yield made


def _clear_up_after(pid: int) -> None:
    """The library shares memory by the process's id, and a killed one leaves it."""
    for left in Path("/dev/shm").glob(f"*faketime_*_{pid}"):
        left.unlink(missing_ok=True)


def enqueued(db: str, conn: psycopg.Connection) -> list[Any]:
    """Some to be started now, some later; the table ``given`` remembers when."""
    dice = random.Random(4)
    (now,) = conn.execute("select clock_timestamp()").fetchone() or (None,)
    assert now is not None
    conn.execute("create table given (task_id uuid, run_at timestamptz)")
    made = []
    with PgTaskStore(db) as store:
        for n in range(40):
            later = now + timedelta(seconds=dice.uniform(1, 3)) if n % 2 else now
            task = store.create_task(
                "t", {"seconds": dice.uniform(0, 0.6)}, kind="wait_for", run_at=later
            )
            conn.execute("insert into given values (%s, %s)", (task.task_id, later))
            made.append(task)
    return made


def test_the_clocks_are_off(start: Start) -> None:
    def told(seconds: int) -> float:
        done = subprocess.run(
            ["date", "+%s"], env=with_clock_off_by(seconds), capture_output=True, check=True
        )
        return float(done.stdout)

    assert told(180) - told(-180) >= 300


@pytest.mark.parametrize(("killed", "other"), [(180, -180), (-180, 180)])
def test_workers_whose_clocks_differ_start_nothing_early_and_share_no_lease(
    start: Start, db: str, conn: psycopg.Connection, killed: int, other: int
) -> None:
    workers = {shift: start(shift) for shift in (killed, other)}
    for worker in workers.values():
        worker.serving()
    tasks = enqueued(db, conn)  # now, so that there is work for both
    first, name = workers[killed], f"off{killed:+d}"
    until(lambda: conn.execute(_HELD, (name,)).fetchall(), "a lease of the one to be killed")
    first.kill()
    # what a killed process sent may still be under way; its connections end after it
    until(lambda: not _connected(conn, name), "the end of its connections")
    left = conn.execute(_HELD, (name,)).fetchall()
    until(lambda: conn.execute("select count(*) from sokka.tasks").fetchone() == (0,), "the end")
    for task_id, token, expired_at in left:
        asked = {"task_id": task_id, "token": token, "expired_at": expired_at}
        assert conn.execute(_TAKEN_BACK, asked).fetchall() == [(True,)]
    assert conn.execute(_EARLY).fetchall() == []
    assert auditing.endings(conn) == {"terminated": len(tasks)}
    auditing.check_records(conn)
    auditing.check_leases(conn)


def _connected(conn: psycopg.Connection, name: str) -> bool:
    """Whether the server still hears this worker, which is named like its pid."""
    return bool(
        conn.execute(
            "select from pg_stat_activity"
            " where application_name = %s and datname = current_database()",
            (name,),
        ).fetchall()
    )

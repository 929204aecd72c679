"""``sokka demo`` from outside: what it prints, when it fails, what it leaves."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.acceptance.demos import ENTRY, ROOT, Demo, lives, until

Run = Callable[..., Demo]
SMALL = ("--files", "24", "--json")


def checks(facts: dict[str, Any]) -> dict[str, bool]:
    return {check["check"]: check["ok"] for check in facts["checks"]}


def test_a_small_demo_agrees_with_itself_and_leaves_nothing(run_demo: Run) -> None:
    demo = run_demo(*SMALL)
    demo.wait_for("w2 frozen")
    family = demo.family()

    assert demo.wait() == 0, demo.said

    facts = demo.facts()
    assert facts["ok"] and all(checks(facts).values())
    assert facts["server"]["embedded"]
    assert facts["files"] == facts["tasks"]["terminated"] == facts["rows"]["count"] == 24
    assert facts["rows"]["files_with_exactly_one"] == 24
    assert facts["comparison"]["queue"] == facts["comparison"]["plain"]
    assert {worker["fate"] for worker in facts["workers"]} == {"killed", "frozen", "worked"}
    check_refusals(facts)
    assert not list(demo.temporary.iterdir())
    assert not [process for process in family if lives(process)]


def check_refusals(facts: dict[str, Any]) -> None:
    """The woken worker was refused by newer tokens, and the history says so."""
    lost, events = facts["leases_lost"], facts["history"]["events"]
    refused = [r for r in facts["stale_writes_refused"] if r["worker"].startswith("w2:")]
    assert len(refused) >= 2
    assert all(r["stale_token"] < r["current_token"] for r in refused)
    assert lost["by_the_killed"] >= 2 and lost["by_the_frozen"] >= 2
    reserved = [event for event in events if event["event"] == "reserved"]
    assert events[0]["event"] == "created" and events[-1]["event"] == "terminated"
    assert "lease_lost" in {event["event"] for event in events}
    assert reserved[0]["token"] < reserved[-1]["token"]
    assert reserved[0]["pid"] != reserved[-1]["pid"]


def test_a_tampered_row_and_one_too_many_make_it_exit_1(
    run_demo: Run, db: str, conn: psycopg.Connection
) -> None:
    demo = run_demo(*SMALL, "--database-url", db)
    until(lambda: _rows(conn) > 0 or demo.process.poll() is not None, "a first row")

    conn.execute("set session_replication_role = replica")  # past the guard
    conn.execute("insert into sokka_demo.files select * from sokka_demo.files limit 1")
    conn.execute("update sokka_demo.files set nodes = coalesce(nodes, 0) + 1")

    assert demo.wait() == 1, demo.said
    facts = demo.facts()
    failed = {check for check, ok in checks(facts).items() if not ok}
    assert failed == {"each file has exactly one row", "all counts are those of one plain process"}
    assert not facts["ok"]
    assert len(facts["rows"]["repeated"]) == 1
    assert facts["comparison"]["differing_files"] >= 1


def _rows(conn: psycopg.Connection) -> int:
    found = conn.execute("select to_regclass('sokka_demo.files')").fetchone()
    if found == (None,):
        return 0
    (count,) = conn.execute("select count(*) from sokka_demo.files").fetchone() or (0,)
    return int(count)


def test_a_named_database_is_migrated_and_left_without_the_demos_table(
    run_demo: Run, empty_db: str
) -> None:
    demo = run_demo(*SMALL, "--database-url", empty_db, "--schema", "jobs")

    assert demo.wait() == 0, demo.said
    assert not demo.facts()["server"]["embedded"]
    with psycopg.connect(empty_db) as connection:
        assert connection.execute("select to_regnamespace('sokka_demo')").fetchone() == (None,)
        live = connection.execute("select count(*) from jobs.tasks").fetchone()
        done = connection.execute("select count(*) from jobs.finished_tasks").fetchone()
    assert (live, done) == ((0,), (24,))


def test_a_schema_of_that_name_is_left_alone(
    run_demo: Run, db: str, conn: psycopg.Connection
) -> None:
    conn.execute("create schema sokka_demo")
    conn.execute("create table sokka_demo.files as select 1 as mine")

    demo = run_demo(*SMALL, "--database-url", db)

    assert demo.wait() == 2
    assert "sokka_demo already" in demo.said
    assert conn.execute("select mine from sokka_demo.files").fetchone() == (1,)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, None), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGKILL, -9)],
)
def test_a_demo_that_is_stopped_leaves_no_process_behind(
    run_demo: Run, number: signal.Signals, code: int | None
) -> None:
    demo = run_demo(*SMALL)
    demo.wait_for("w2 frozen")
    family = demo.family()
    folders = {_cluster(process) for process in family} - {None}

    demo.process.send_signal(number)

    ended = demo.wait()
    assert ended == code if code is not None else ended != 0
    until(lambda: not any(map(lives, family)), "an end of every process")
    if number is signal.SIGKILL:  # nobody was there to remove the files
        for folder in folders:
            shutil.rmtree(str(folder), ignore_errors=True)
    else:
        assert not list(demo.temporary.iterdir())
        assert not [folder for folder in folders if Path(str(folder)).exists()]


def _cluster(process: psutil.Process) -> Path | None:
    """The folder of a server's files, where it is one."""
    words = process.cmdline()
    return Path(words[words.index("-D") + 1]).parent if "-D" in words else None


def test_a_worker_that_ends_by_itself_ends_the_demo_and_is_named(run_demo: Run) -> None:
    demo = run_demo(*SMALL)
    demo.wait_for("4 worker processes started")
    family = demo.family()
    (stranger,) = [process for process in family if process.cmdline()[-1:] == ["w3"]]

    stranger.kill()

    assert demo.wait() == 1
    assert "worker w3 ended by itself, with exit code -9" in demo.said
    assert demo.facts()["error"]["type"] == "DemoFailed"
    assert not [process for process in family if lives(process)]


def test_keep_leaves_a_server_to_look_at(run_demo: Run) -> None:
    demo = run_demo(*SMALL, "--keep")
    assert demo.wait() == 0, demo.said

    kept = demo.facts()["kept"]
    with psycopg.connect(kept["url"]) as connection:
        assert connection.execute("select count(*) from sokka_demo.files").fetchone() == (24,)
    stop = [sys.executable, "-c", ENTRY, "pg", "stop", "--dir", kept["folder"]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(stop, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n")
    for folder in kept["remove"]:
        shutil.rmtree(folder)
    assert not list(demo.temporary.iterdir())


def test_an_unreachable_database_is_exit_3(run_demo: Run) -> None:
    demo = run_demo(*SMALL, "--database-url", "postgresql://x:secret@127.0.0.1:1/none")
    assert demo.wait() == 3
    assert demo.facts()["error"]["type"] == "DatabaseUnavailable"
    assert "secret" not in demo.said


def test_too_few_files_are_wrong_usage(run_demo: Run) -> None:
    demo = run_demo("--files", "3")
    assert demo.wait() == 2
    assert "--files" in demo.said

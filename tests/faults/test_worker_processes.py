"""Workers that are paused, killed, cut off and restarted: real processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from sokka_pg import Sokka, embedded
from sokka_pg.store import PgTaskStore
from tests import servers
from tests.faults.processes import WorkerProcess
from tests.faults.waiting import until

Row = Callable[[Any], dict[str, Any]]
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(db: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def made(*arguments: str, url: str = db, name: str = "w") -> WorkerProcess:
            process = WorkerProcess(url, tmp_path, *arguments, name=name)
            stack.callback(process.kill)
            stack.callback(process.resume)
            return process

        yield made


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as made:
        yield made


@pytest.fixture
def lone_server() -> Iterator[embedded.Server]:
    """A server that a test may freeze and crash."""
    with embedded.Server.temporary() as server:
        servers.load_newest(server.url())
        yield server


def ended(row: Row, task: Any) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = row(task)
        return found if found["status"] in ("failed", "terminated") else None

    return until(look, f"the end of {task.task_id}")


def test_a_paused_owner_that_wakes_up_is_refused_everything(
    start: Start, store: PgTaskStore, row: Row
) -> None:
    task = store.create_task("t", kind="hold")
    first = start("--topics", "t", "--lease", "1s", name="w1").serving()
    until(lambda: first.noted("start"))
    first.pause()
    second = start("--topics", "t", "--lease", "1s", name="w2").serving()
    found = ended(row, task)
    assert found["result"] == "B"
    second.kill()
    first.resume()
    until(lambda: first.noted("terminate"))
    verdicts = {
        first.noted(verb)[0][1] for verb in ("progress", "checkpoint", "extend", "terminate")
    }
    assert verdicts <= {"AlreadyDone", "WrongOwner", "StaleToken", "LeaseExpired"}
    later = store.create_task("t", kind="quick")
    assert ended(row, later)["result"] == "quick"
    assert row(task) == found
    assert first.process.poll() is None
    assert first.log.count("lost lease") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_handlers_end_with_their_lease_kept_alive(
    start: Start, store: PgTaskStore, row: Row, number: signal.Signals
) -> None:
    task = store.create_task("t", {"seconds": 2.5}, kind="wait_for")
    worker = start("--topics", "t", "--lease", "0.6s", "--grace", "30s").serving()
    until(lambda: worker.noted("start"))
    worker.process.send_signal(number)
    assert worker.wait() == 0
    assert (row(task)["result"], row(task)["attempt"]) == ("waited", 1)
    assert len(worker.noted("start")) == 1


def test_after_the_grace_period_the_task_goes_back_with_its_attempt(
    start: Start, store: PgTaskStore, row: Row
) -> None:
    task = store.create_task("t", {"seconds": 60}, kind="wait_for")
    first = start("--topics", "t", "--grace", "0.3s", name="w1").serving()
    until(lambda: first.noted("start"))
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 0
    assert (row(task)["status"], row(task)["pid"], row(task)["attempt"]) == ("starting", None, 0)
    assert [words[2] for words in first.noted("cancelled")] == ["stop"]


def test_a_handler_that_takes_no_cancellation_does_not_keep_its_process(
    start: Start, store: PgTaskStore, row: Row
) -> None:
    task = store.create_task("t", kind="deaf")
    stuck = store.create_task("t", kind="deaf_thread")
    worker = start("--topics", "t", "--grace", "0s").serving()
    until(lambda: len(worker.noted("start")) == 2)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert [row(each)["status"] for each in (task, stuck)] == ["starting", "starting"]


def test_a_second_signal_stops_at_once(start: Start, store: PgTaskStore, row: Row) -> None:
    task = store.create_task("t", {"seconds": 60}, kind="wait_for")
    worker = start("--topics", "t", "--grace", "1h").serving()
    until(lambda: worker.noted("start"))
    worker.process.send_signal(signal.SIGINT)
    until(lambda: _reserves_no_more(worker))
    worker.process.send_signal(signal.SIGINT)
    assert worker.wait() == 0
    assert row(task)["status"] == "starting"


def _reserves_no_more(worker: WorkerProcess) -> bool:
    return "stopping" in worker.log


@pytest.mark.parametrize("lease", ["0.5s", "1s"])
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("wait_for", {"seconds": 3}),
        ("block_loop", {"seconds": 1.5, "times": 2}),
        ("burn", {"seconds": 3}),
    ],
)
def test_nothing_a_handler_does_stops_its_heartbeat(
    start: Start, store: PgTaskStore, row: Row, kind: str, data: Any, lease: str
) -> None:
    task = store.create_task("t", data, kind=kind)
    worker = start("--topics", "t:2", "--lease", lease).serving()
    assert ended(row, task)["attempt"] == 1
    assert len(worker.noted("start")) == 1


def test_a_poison_task_is_started_as_often_as_losses_allow_and_never_again(
    start: Start, store: PgTaskStore, row: Row
) -> None:
    task = store.create_task("t", {"seconds": 60}, kind="wait_for", max_losses=2)
    for n in range(3):
        worker = start("--topics", "t", "--lease", "0.3s", name=f"w{n}").serving()
        until(lambda worker=worker, n=n: len(worker.noted("start")) == n + 1)
        worker.kill()
    last = start("--topics", "t", "--lease", "0.3s", name="last").serving()
    found = ended(row, task)
    assert (found["status"], found["error"]["code"]) == ("failed", "lease_lost")
    assert (found["attempt"], found["losses"]) == (3, 3)
    assert len(last.noted("start")) == 3


def test_tasks_of_a_killed_worker_are_recovered_without_anyones_help(
    start: Start, store: PgTaskStore, row: Row, conn: psycopg.Connection
) -> None:
    dice = random.Random(23)
    tasks = [
        store.create_task("t", {"seconds": 0.05}, kind="wait_for", max_losses=50)
        for _ in range(30)
    ]
    for n in range(4):
        worker = start("--topics", "t:5", "--lease", "0.5s", name=f"w{n}").serving()
        wanted = len(worker.noted("end")) + dice.randrange(1, 4)
        until(lambda worker=worker, wanted=wanted: len(worker.noted("end")) >= wanted)
        worker.kill()
    start("--topics", "t:5", "--lease", "0.5s", name="last").serving()
    for task in tasks:
        assert ended(row, task)["status"] == "terminated"
    assert conn.execute("select count(*) from sokka.tasks").fetchone() == (0,)


def test_a_frozen_server_stops_handlers_and_all_ends_well(
    start: Start, lone_server: embedded.Server
) -> None:
    with PgTaskStore(lone_server.url()) as store:
        task = store.create_task("t", {"seconds": 3}, kind="wait_for")
        worker = start("--topics", "t", "--lease", "1s", url=lone_server.url()).serving()
        until(lambda: worker.noted("start"))
        group = _frozen(lone_server)
        try:
            until(lambda: worker.noted("cancelled"), "the watchdog")
        finally:
            for process in group:
                process.resume()
        found = until(lambda: _terminated(store, task), "the end")
        assert found.result == "waited"
        assert worker.noted("cancelled")[0][2] == "lost"
        assert worker.process.poll() is None


def _frozen(server: embedded.Server) -> list[psutil.Process]:
    """Stop the postmaster first: what it forks meanwhile would run on."""
    postmaster = psutil.Process(server.pid)
    postmaster.suspend()
    group = [postmaster, *postmaster.children(recursive=True)]
    for process in group:
        process.suspend()
    return group


def _terminated(store: PgTaskStore, task: Any) -> Any:
    found = store.task(task.task_id)
    return found if found is not None and found.status == "terminated" else None


def test_a_crashed_server_finds_its_worker_alive_under_the_same_pid(
    start: Start, lone_server: embedded.Server
) -> None:
    url = lone_server.url()
    worker = start("--topics", "t", "--lease", "2s", "--pid", "same", url=url).serving()
    with PgTaskStore(url) as store:
        store.create_task("t", kind="quick")
    for _ in range(2):
        lone_server.crash()
        until(lambda: "does not serve" in worker.log)
        lone_server.restart()
        with PgTaskStore(url) as store:
            task = store.create_task("t", kind="quick")
            found = until(lambda store=store, task=task: _terminated(store, task), "the end")
            assert found.pid == "same"
    assert worker.process.poll() is None


def test_a_worker_started_before_its_server_waits_for_it(
    start: Start, lone_server: embedded.Server
) -> None:
    url = lone_server.url()
    lone_server.crash()
    worker = start("--topics", "t", "--startup", "60s", url=url)
    until(lambda: "does not serve" in worker.log)
    lone_server.restart()
    worker.serving()
    with PgTaskStore(url) as store:
        task = store.create_task("t", kind="quick")
        until(lambda: _terminated(store, task), "the end")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--app", "no_colon"], 2, "module:name"),
        (["--app", "no.such.module:app"], 2, "no module"),
        (["--app", "tests.faults.handlers:quick"], 2, "no Sokka app"),
        (["--topics", "t:0"], 2, "topics"),
        (["--lease", "100ms"], 2, "lease"),
        (["--lease", "soon"], 2, "lease"),
        (["--database-url", "postgresql://u:hunter2@127.0.0.1:9/x", "--startup", "0s"], 3, ""),
    ],
)
def test_a_wrong_start_is_one_line_and_an_exit_code(
    start: Start, arguments: list[str], code: int, says: str
) -> None:
    worker = start(*arguments)
    assert worker.wait() == code, worker.log
    assert says in worker.log
    assert "Traceback" not in worker.log
    assert "hunter2" not in worker.log


def test_with_json_every_line_of_the_log_is_an_object(start: Start) -> None:
    worker = start("--topics", "t", "--json").serving()
    worker.process.terminate()
    assert worker.wait() == 0
    lines = [json.loads(line) for line in worker.log.splitlines()]
    assert lines[-1]["stopped"] is True


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, sokka_pg, sokka_pg.errors, sokka_pg.model;"
        "print([m for m in ('psycopg', 'pydantic', 'sqlalchemy', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_application_is_reached_by_its_short_name() -> None:
    import sokka_pg

    assert sokka_pg.Sokka is Sokka
    assert set(sokka_pg.__all__) <= set(dir(sokka_pg))
    with pytest.raises(AttributeError):
        _ = sokka_pg.nothing

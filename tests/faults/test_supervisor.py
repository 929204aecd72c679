"""Several worker processes under one supervisor: real ones, killed and stopped."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from sokka_pg.errors import BadArgument
from sokka_pg.store import PgTaskStore
from sokka_pg.worker import Supervisor
from tests.faults.processes import ROOT, WorkerProcess
from tests.faults.waiting import until

Row = Callable[[Any], dict[str, Any]]


class Group(WorkerProcess):
    """A supervisor and its workers."""

    def serving_all(self, count: int) -> Group:
        until(lambda: self.log.count(" serves ") >= count or self.process.poll() is not None)
        assert self.process.poll() is None, self.log
        return self

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()


@pytest.fixture
def start(db: str, tmp_path: Path) -> Iterator[Callable[..., Group]]:
    with ExitStack() as stack:

        def made(*arguments: str, count: int = 2, url: str = db) -> Group:
            group = Group(url, tmp_path, "--processes", str(count), *arguments)
            stack.callback(group.kill)
            return group

        yield made


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as made:
        yield made


def test_all_work_under_identities_of_their_own_and_one_signal_ends_them(
    start: Callable[..., Group], store: PgTaskStore, row: Row
) -> None:
    group = start("--topics", "t:1", "--pid", "me").serving_all(2)
    tasks = [store.create_task("t", {"seconds": 1}, kind="wait_for") for _ in range(2)]
    until(lambda: len(group.noted("start")) == 2)
    workers = group.workers()
    group.process.send_signal(signal.SIGTERM)
    assert group.wait() == 0
    assert [row(task)["result"] for task in tasks] == ["waited", "waited"]
    assert {row(task)["pid"] for task in tasks} == {"me-1", "me-2"}
    assert not any(each.is_running() for each in workers)
    assert "2 workers stopped" in group.log


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_dies_is_replaced(
    start: Callable[..., Group], store: PgTaskStore, row: Row, number: signal.Signals
) -> None:
    group = start("--topics", "t", "--lease", "0.5s").serving_all(2)
    first = group.workers()
    first[0].send_signal(number)
    group.serving_all(3)
    assert len({*group.workers()} | {*first}) == 3
    said = "SIGKILL" if number is signal.SIGKILL else "exit code 0"
    assert said in group.log
    task = store.create_task("t", kind="quick")
    until(lambda: row(task)["status"] == "terminated")
    group.process.send_signal(signal.SIGTERM)
    assert group.wait() == 0


def test_a_second_signal_stops_all_now(
    start: Callable[..., Group], store: PgTaskStore, row: Row
) -> None:
    group = start("--topics", "t:1", "--grace", "1h").serving_all(2)
    tasks = [store.create_task("t", {"seconds": 60}, kind="wait_for") for _ in range(2)]
    until(lambda: len(group.noted("start")) == 2)
    group.process.send_signal(signal.SIGINT)
    until(lambda: group.log.count(" is stopping") == 2)
    group.process.send_signal(signal.SIGINT)
    assert group.wait() == 0
    assert [row(task)["status"] for task in tasks] == ["starting", "starting"]


def test_ctrl_c_on_a_terminal_counts_once(
    start: Callable[..., Group], store: PgTaskStore, row: Row
) -> None:
    """It goes to the whole process group; the workers stand outside of it."""
    group = start("--topics", "t:1").serving_all(2)
    task = store.create_task("t", {"seconds": 1}, kind="wait_for")
    until(lambda: group.noted("start"))
    os.killpg(group.process.pid, signal.SIGINT)
    assert group.wait() == 0
    assert row(task)["result"] == "waited"
    assert " now" not in group.log


def test_workers_whose_supervisor_is_killed_end_by_themselves_and_give_back(
    start: Callable[..., Group], store: PgTaskStore, row: Row
) -> None:
    group = start("--topics", "t:1", "--grace", "0.2s").serving_all(2)
    task = store.create_task("t", {"seconds": 60}, kind="wait_for")
    until(lambda: group.noted("start"))
    workers = group.workers()
    group.process.kill()
    psutil.wait_procs(workers, timeout=15)
    assert not any(each.is_running() for each in workers)
    assert (row(task)["status"], row(task)["attempt"]) == ("starting", 0)
    assert "the supervisor is gone" in group.log


def test_each_serves_its_metrics_on_a_port_of_its_own(start: Callable[..., Group]) -> None:
    group = start("--topics", "t", "--metrics-port", "0").serving_all(2)
    found = until(lambda: len(said := re.findall(r"metrics at (http://\S+)", group.log)) == 2
                  and said)
    assert len(set(found)) == 2
    for url in found:
        with urlopen(url) as page:
            assert b"sokka_worker_slots" in page.read()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--app", "no_colon"], 2, "module:name"),
        (["--topics", "t:0"], 2, "topics"),
        (["--processes", "0"], 2, "processes"),
        (["--processes", "257"], 2, "processes"),
        (["--metrics-port", "65535"], 2, "metrics_port"),
        (["--database-url", "postgresql://u:hunter2@127.0.0.1:9/x", "--startup", "0s"], 3, ""),
    ],
)
def test_a_wrong_start_ends_with_the_exit_code_of_one_worker(
    start: Callable[..., Group], arguments: list[str], code: int, says: str
) -> None:
    group = start(*arguments)
    assert group.wait() == code, group.log
    assert says in group.log
    assert "Traceback" not in group.log
    assert "hunter2" not in group.log


def test_one_that_dies_at_once_is_started_anew_ever_more_slowly(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    program = f"open({str(starts)!r}, 'a').write('x'); raise SystemExit(1)"
    supervisor = Supervisor([sys.executable, "-c", program], 1)
    begun = time.monotonic()

    def stop_after_three() -> None:
        until(lambda: starts.exists() and len(starts.read_text()) == 3)
        os.kill(os.getpid(), signal.SIGTERM)


    stopper = threading.Thread(target=stop_after_three)
    stopper.start()
    code = supervisor.run()
    stopper.join()
    assert code == 1
    assert time.monotonic() - begun > 0.5


def test_one_that_hears_no_signal_is_killed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sokka_pg.worker.supervisor.KILL_AFTER_S", 0.2)
    ready = tmp_path / "ready"
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"open({str(ready)!r}, 'w'); time.sleep(60)"
    )
    supervisor = Supervisor([sys.executable, "-c", program], 1, grace_s=0)


    def stop() -> None:
        until(ready.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert supervisor.run() == 1
    stopper.join()


@pytest.mark.parametrize("count", [0, -1, 257, True, 1.5, "2"])
def test_a_count_of_processes_that_makes_no_sense_is_refused(count: Any) -> None:
    with pytest.raises(BadArgument, match="processes"):
        Supervisor(["true"], count)


def test_uvloop_is_used_where_it_is_installed_and_can_be_left_out(
    tmp_path: Path, db: str, store: PgTaskStore, row: Row
) -> None:
    """By a module of that name: what it is asked for is asyncio's own loop."""
    (tmp_path / "uvloop.py").write_text(
        "import asyncio, sys\n"
        "def new_event_loop():\n"
        "    print('uvloop was asked', file=sys.stderr)\n"
        "    return asyncio.new_event_loop()\n"
    )
    found = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for arguments, asked in (((), True), (("--no-uvloop",), False)):
        worker = WorkerProcess(
            db, tmp_path, "--topics", "t", *arguments, environment=found, name=str(asked)
        )
        try:
            worker.serving()
            task = store.create_task("t", kind="quick")
            until(lambda task=task: row(task)["status"] == "terminated")
            worker.process.terminate()
            assert worker.wait() == 0
        finally:
            worker.kill()
        assert ("uvloop was asked" in worker.log) is asked

"""``sokka worker --metrics-port``: a worker in a process of its own shows its metrics."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from sokka_pg import PgTaskStore
from sokka_pg.cli.main import app as cli
from tests.faults.processes import ROOT, WorkerProcess
from tests.faults.waiting import until

Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(db: str, tmp_path: Path) -> Iterator[Start]:
    started: list[WorkerProcess] = []

    def worker(*arguments: str) -> WorkerProcess:
        started.append(WorkerProcess(db, tmp_path, *arguments))
        return started[-1].serving()

    yield worker
    for each in started:
        each.kill()


def metrics(worker: WorkerProcess) -> dict[tuple[str, ...], float]:
    """Every sample: its name and the values of its labels, in order of their names."""
    found = re.search(r"metrics at (http://\S+/metrics)", worker.log)
    assert found is not None, worker.log
    with urlopen(found[1]) as answer:
        page = answer.read().decode()
    return {
        (sample.name, *(text for _, text in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page) for sample in family.samples
    }


def test_it_shows_what_it_does_and_the_queue_and_stops_as_ever(db: str, start: Start) -> None:
    worker = start("--metrics-port", "0")
    with PgTaskStore(db) as store:
        store.create_task("t", {"seconds": 0}, kind="wait_for")
        store.create_task("elsewhere")
    ended = ("sokka_attempts_total", "wait_for", "succeeded", "t")
    shown = until(lambda: (found := metrics(worker)).get(ended) == 1 and found)
    assert shown["sokka_worker_slots",] == 10
    assert shown["sokka_part_up", "desk"] == 1
    assert shown["sokka_pickup_seconds_count", "t"] == 1
    assert shown["sokka_queue_up",] == 1
    until(lambda: metrics(worker).get(("sokka_tasks", "starting", "elsewhere")) == 1)
    assert "http://127.0.0.1:" in worker.log
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_without_the_option_nothing_listens(start: Start) -> None:
    worker = start()
    assert "metrics at" not in worker.log
    process = psutil.Process(worker.process.pid)
    connections = getattr(process, "net_connections", None) or process.connections
    assert [each for each in connections("inet") if each.status == psutil.CONN_LISTEN] == []


def test_a_port_that_is_taken_is_a_usage_error(db: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = CliRunner().invoke(cli, [
            "worker", "--app", "tests.faults.handlers:app", "--database-url", db,
            "--metrics-port", str(port),
        ])  # fmt: skip
    assert run.exit_code == 2
    assert f"metrics cannot be served at 127.0.0.1:{port}" in run.stderr


WITHOUT = """
import sys
for name in ("prometheus_client", "opentelemetry"):
    sys.modules[name] = None
import sokka_pg.cli.worker
from sokka_pg import observers
from sokka_pg.errors import UsageError
observers.LogObserver()
for name in ("Export", "OpenTelemetryObserver"):
    try:
        getattr(observers, name)
    except UsageError as error:
        print(error)
"""


def test_what_needs_an_extra_names_it_and_the_rest_works_without() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stdout.splitlines() == [
        "Export needs the extra: pip install 'sokka-pg[metrics]'",
        "OpenTelemetryObserver needs the extra: pip install 'sokka-pg[otel]'",
    ], run.stderr

"""What workers cost the server that do nothing, or wait for tasks that take long."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from tests.bench import idlers
from tests.bench.book import Book
from tests.bench.crew import until
from tests.bench.host import ROOT, Host, Site
from tests.bench.plan import Plan

PROCESSES = 4
_MOST_PERCENT = {"idle workers": 2.0}
_ALL_IDLE = "select count(*) >= %(count)s from sokka.idle_workers"
_ALL_HELD = "select count(*) >= %(count)s from sokka.tasks where status = 'running'"


def run(host: Host, plan: Plan, book: Book) -> None:
    """Idle, and with all slots taken by long tasks. Measured when the first rounds of
    retention, half a minute after the start, are over. The server cannot tell whether a worker
    has a process to itself: a hundred stand in four processes here, to spare this machine's
    memory."""
    workers = plan.idle_workers // PROCESSES * PROCESSES
    states = {"idle workers": 0, "workers with long tasks": workers * idlers.SLOTS}
    costs: dict[str, list[float]] = {}
    with host.site() as site:
        alone = [_percent(host, plan.idle_seconds) for _ in range(plan.rounds)]
        processes = [_start(site, workers // PROCESSES) for _ in range(PROCESSES)]
        try:
            _wait_for(site, _ALL_IDLE, workers)
            for state, tasks in states.items():
                site.fill(idlers.TOPIC, tasks, kind="hold")
                _wait_for(site, _ALL_HELD, tasks)
                time.sleep(5 * plan.idle_seconds)
                costs[state] = [_percent(host, plan.idle_seconds) for _ in range(plan.rounds)]
            connections = host.connections(site.name)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60)
    for percent in alone:
        book.add("idle", "server, no worker", percent, "% of a core")
    for state, found in costs.items():
        for percent in found:
            book.add("idle", f"server, {workers} {state}", percent, "% of a core")
        cost = statistics.median([a - b for a, b in zip(found, alone, strict=True)])
        book.judge("idle", f"{workers} {state}, % of a core", cost, most=_MOST_PERCENT.get(state))
    book.add("idle", "connections of a worker", connections / workers, "")


def _percent(host: Host, seconds: float) -> float:
    spent, begun = host.exact_cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (host.exact_cpu_s() - spent) / (time.monotonic() - begun) * 100


def _start(site: Site, workers: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.idlers", str(workers)],
        cwd=ROOT, env={**os.environ, "SOKKA_DATABASE_URL": site.url, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def _wait_for(site: Site, query: str, count: int) -> None:
    until(lambda: site.ask(query, count=count), f"{count} by: {query}")

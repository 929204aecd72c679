"""What idle workers cost the server."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from tests.bench.book import Book
from tests.bench.crew import until
from tests.bench.host import ROOT, Host, Site
from tests.bench.plan import Plan

PROCESSES = 4
_MOST_PERCENT = 2.0


def run(host: Host, plan: Plan, book: Book) -> None:
    """Measured when the first rounds of retention, half a minute after the start, are over.
    The server cannot tell whether a worker has a process to itself: a hundred stand in
    four processes here, to spare this machine's memory."""
    costs = []
    workers = plan.idle_workers // PROCESSES * PROCESSES
    with host.site() as site:
        alone = [_percent(host, plan.idle_seconds) for _ in range(plan.rounds)]
        processes = [_start(site, workers // PROCESSES) for _ in range(PROCESSES)]
        try:
            _wait_for(site, workers)
            time.sleep(5 * plan.idle_seconds)
            busy = [_percent(host, plan.idle_seconds) for _ in range(plan.rounds)]
            connections = host.connections(site.name)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60)
    for without, with_workers in zip(alone, busy, strict=True):
        book.add("idle", "server, no worker", without, "% of a core")
        book.add("idle", f"server, {workers} idle workers", with_workers, "% of a core")
        costs.append(with_workers - without)
    book.add("idle", "connections of a worker", connections / workers, "")
    cost = statistics.median(costs)
    book.judge("idle", f"{workers} idle workers, % of a core", cost, most=_MOST_PERCENT)


def _percent(host: Host, seconds: float) -> float:
    spent, begun = host.exact_cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (host.exact_cpu_s() - spent) / (time.monotonic() - begun) * 100


def _start(site: Site, workers: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.idlers", str(workers)],
        cwd=ROOT, env={**os.environ, "SOKKA_DATABASE_URL": site.url, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def _wait_for(site: Site, workers: int) -> None:
    query = "select count(*) >= %(workers)s from sokka.idle_workers"
    until(lambda: site.ask(query, workers=workers), "idle workers")

"""What idle workers cost the server."""

from __future__ import annotations

import os
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
    """The server cannot tell whether a worker has a process to itself: a hundred stand in
    four processes here, to spare this machine's memory."""
    with host.site() as site:
        for _ in range(max(1, plan.rounds // 2)):
            alone = _percent(host, plan.idle_seconds)
            processes = [_start(site, plan.idle_workers // PROCESSES) for _ in range(PROCESSES)]
            try:
                _wait_for(site, plan.idle_workers // PROCESSES * PROCESSES)
                time.sleep(min(2.0, plan.idle_seconds))
                busy = _percent(host, plan.idle_seconds)
                connections = host.connections(site.name)
            finally:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.wait(60)
            book.add("idle", "server, no worker", alone, "% of a core")
            name = f"server, {plan.idle_workers} idle workers"
            book.add("idle", name, busy, "% of a core")
            book.add("idle", "connections of a worker", connections / plan.idle_workers, "")
    cost = min(b - a for a, b in zip(
        book.values("idle", "server, no worker"), book.values("idle", name), strict=True
    ))  # fmt: skip
    book.judge("idle", f"{plan.idle_workers} idle workers, % of a core", cost, most=_MOST_PERCENT)


def _percent(host: Host, seconds: float) -> float:
    spent, begun = host.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (host.cpu_s() - spent) / (time.monotonic() - begun) * 100


def _start(site: Site, workers: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.idlers", str(workers)],
        cwd=ROOT, env={**os.environ, "SOKKA_DATABASE_URL": site.url, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def _wait_for(site: Site, workers: int) -> None:
    query = "select count(*) >= %(workers)s from sokka.idle_workers"
    until(lambda: site.ask(query, workers=workers), "idle workers")

"""Worker processes under measure: ``sokka worker`` as a user starts it."""

from __future__ import annotations

import inspect
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from sokka_pg import calls
from sokka_pg.cli import worker
from tests.bench.host import ROOT, Site, tree_cpu_s, tree_rss

PATIENCE_S = 120.0
SLOTS = 100
_SUPERVISED = "processes" in inspect.signature(worker.worker).parameters
_COMMAND = "from sokka_pg.cli.main import run; run()"


class Crew:
    """Some worker processes of one topic; what they print is a queue of lines."""

    def __init__(self, site: Site, topics: str, processes: int, *options: str,
                 url: str | None = None) -> None:
        self.site, self.topics, self.count = site, topics, processes
        self.listens = "--pooler" not in options
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        many = ("--processes", str(processes)) if _SUPERVISED and processes > 1 else ()
        starts = 1 if many else processes
        # Logs go to a file: a pipe that nobody reads would stop the worker.
        self._running = [
            self._start((*many, *options), url or site.url) for _ in range(starts)
        ]

    def _start(self, options: tuple[str, ...], url: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "worker", "--app", "tests.bench.handlers:app",
             "--topics", self.topics, "--no-schedules", "--grace", "0s",
             "--log-level", "error", *options],
            cwd=ROOT, env={**os.environ, "SOKKA_DATABASE_URL": url, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        self._readers.append(reader)
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                self.lines.put(line)

    @property
    def topic(self) -> str:
        """The first of its topics."""
        return re.split("[:,]", self.topics)[0]

    def check(self) -> None:
        for process in self._running:
            if process.poll() is not None:
                raise RuntimeError(f"a worker ended with {process.returncode}")

    def cpu_s(self) -> float:
        return sum(tree_cpu_s(process.pid) for process in self._running)

    def rss(self) -> int:
        return sum(tree_rss(process.pid) for process in self._running)

    def wait_until_idle(self) -> None:
        """All have started and sleep. One that does not listen never says that it is idle:
        it has worked off a task."""
        if self.listens:
            until(
                lambda: self.site.ask(_IDLE, count=self.count, topic=self.topic),
                "idle workers", self.check,
            )  # fmt: skip
            return
        self.site.fill(self.topic, 1)
        until(lambda: self.site.ask(_EMPTY, topic=self.topic), "a first task", self.check)

    def close(self) -> None:
        left = [process for process in self._running if process.poll() is None]
        for process in left:
            process.send_signal(signal.SIGTERM)
        for process in left:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                _end_tree(process)
        for reader in self._readers:
            reader.join(5)


def _end_tree(process: subprocess.Popen[str]) -> None:
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in children:
        if child.is_running():
            child.kill()
    process.wait(15)


@contextmanager
def crew(
    site: Site, topics: str, processes: int = 1, *options: str, url: str | None = None
) -> Iterator[Crew]:
    """Worker processes that run for a block."""
    made = Crew(site, topics, processes, *options, url=url)
    try:
        yield made
    finally:
        made.close()


def until(
    holds: Callable[[], Any], what: str, check: Callable[[], None] | None = None,
    every_s: float = 0.05, patience_s: float = PATIENCE_S,
) -> None:
    give_up_at = time.monotonic() + patience_s
    while not holds():
        if check is not None:
            check()
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"waited {patience_s:.0f} s for {what}")
        time.sleep(every_s)


@dataclass(frozen=True, slots=True)
class Drained:
    """A topic that was worked off. Times of processors are microseconds per task."""

    rate: float
    worker_cpu_us: float
    server_cpu_us: float
    rss_mib: float
    connections: int
    wal_bytes: float
    wal_page_images: float


def drain(
    site: Site, made: Crew, count: int, fill: Callable[[], None], *,
    every_s: float = 0.05, patience_s: float = PATIENCE_S,
) -> Drained:
    """Fill the paused topic of idle workers, let them loose, wait for the last end.

    The rate is the database's: from the first lease to the last record.
    """
    host, topic = site.host, made.topic
    made.wait_until_idle()
    site.line.run(calls.pause_topic(topic))
    since = site.ask("select sokka.clock()")
    fill()
    worker_s, server_s, wal = made.cpu_s(), host.cpu_s(), host.wal()
    site.line.run(calls.resume_topic(topic))
    peak = connections = looks = 0

    def done() -> bool:
        nonlocal peak, connections, looks
        if looks % 8 == 2:  # a look at every process of the machine costs milliseconds
            peak = max(peak, made.rss())
            connections = max(connections, host.connections(site.name))
        looks += 1
        # The ready index first: a look at the whole table reads all rows that are dead.
        return not site.ask(_READY, topic=topic) and bool(site.ask(_EMPTY, topic=topic))

    until(done, f"the end of {topic}", made.check, every_s, patience_s)
    wal_after = host.wal()
    return Drained(
        rate=count / float(site.ask(_SECONDS, topic=topic, since=since)),
        worker_cpu_us=(made.cpu_s() - worker_s) / count * 1e6,
        server_cpu_us=(host.cpu_s() - server_s) / count * 1e6,
        rss_mib=peak / made.count / 2**20,
        connections=connections,
        wal_bytes=(wal_after.bytes - wal.bytes) / count,
        wal_page_images=(wal_after.page_images - wal.page_images) / count,
    )


_IDLE = """
    select count(*) >= %(count)s from sokka.idle_workers
     where topic = %(topic)s and idle_until > sokka.clock()
"""
_READY = "select exists (select from sokka.tasks where status = 'starting' and topic = %(topic)s)"
_EMPTY = "select not exists (select from sokka.tasks where topic = %(topic)s)"
# From the first lease, which a task that was retried has among its past ones.
_SECONDS = """
    select greatest(extract(epoch from max(f.finished_at) - least(min(f.leased_at), (
               select min(p.leased_at) from sokka.past_leases p
                where p.topic = %(topic)s and p.leased_at >= %(since)s))), 0.001)
      from sokka.finished_tasks f where f.topic = %(topic)s and f.created_at >= %(since)s
"""

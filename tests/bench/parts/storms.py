"""Many at once: heartbeats of ten thousand leases, failures, delayed tasks coming due."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sokka_pg import calls
from sokka_pg.bench.ground import Line, pairs
from sokka_pg.model import LeasedTask
from tests.bench.book import Book, Measure
from tests.bench.crew import SLOTS, crew, drain, until
from tests.bench.host import Host, Site
from tests.bench.plan import Plan

_BATCH = 1_000
_BEAT_S = 10.0
_FILLED_PER_S = 25_000


def extends(host: Host, plan: Plan, book: Book) -> None:
    """All leases are extended every ten seconds, as heartbeats of leases of thirty are; and
    as fast as one connection can."""

    def drained(storm: bool) -> float:
        with host.site() as site, crew(site, f"drain:{SLOTS}") as made:
            with _storm(site, plan.leases if storm else 0):
                found = drain(site, made, plan.tasks, lambda: site.fill("drain", plan.tasks))
            return found.rate

    name = f"drain beside {plan.leases:,} live leases"
    book.compare("extend storm", [
        Measure("drain alone", lambda: drained(False)), Measure(name, lambda: drained(True)),
        Measure("extends, one connection", lambda: _extends(host, plan.leases), "extends/s"),
    ])  # fmt: skip
    book.ratio("extend storm", f"{name} / alone", name, "drain alone")


def _lease_many(site: Site, count: int) -> list[list[LeasedTask]]:
    site.fill("held", count)
    return [
        site.line.run(calls.reserve_tasks(["held"], "holder", min(_BATCH, count - first)))
        for first in range(0, count, _BATCH)
    ]


@contextmanager
def _storm(site: Site, count: int) -> Iterator[None]:
    batches = _lease_many(site, count)
    over = threading.Event()

    def beat() -> None:
        line = Line(site.url, site.line.schema)
        for batch in _forever(batches):
            line.run(calls.extend_leases("holder", pairs(batch)))
            if over.wait(_BEAT_S / len(batches)):
                break
        line.close()

    thread = threading.Thread(target=beat) if batches else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread is not None:
            thread.join()


def _forever(batches: list[list[LeasedTask]]) -> Iterator[list[LeasedTask]]:
    while True:
        yield from batches


def _extends(host: Host, count: int) -> float:
    with host.site() as site:
        batches = _lease_many(site, count)
        begun = time.perf_counter()
        for batch in batches:
            site.line.run(calls.extend_leases("holder", pairs(batch)))
        return count / (time.perf_counter() - begun)


def retries(host: Host, plan: Plan, book: Book) -> None:
    """Every task fails twice, at once, and then succeeds: three attempts each."""
    count = max(50, plan.tasks // 5)
    policy = {"max_attempts": 3, "initial": 0.01, "max": 0.01, "jitter": 0}

    def attempts(kind: str, per_task: int) -> float:
        with host.site() as site, crew(site, f"drain:{SLOTS}") as made:
            found = drain(
                site, made, count, lambda: site.fill("drain", count, kind=kind, retry=policy)
            )
            return found.rate * per_task

    failing, easy = "attempts, each task fails twice", "attempts, none fails"
    book.compare("retries storm", [
        Measure(easy, lambda: attempts("no_op", 1), "attempts/s"),
        Measure(failing, lambda: attempts("fail_often", 3), "attempts/s"),
    ])  # fmt: skip
    book.ratio("retries storm", f"{failing} / {easy}", failing, easy)


def delayed(host: Host, plan: Plan, book: Book) -> None:
    """Tasks that all come due at one instant, beside as many that are ready."""
    count = plan.large

    def ready() -> float:
        with host.site() as site, crew(site, f"drain:{SLOTS}") as made:
            return drain(site, made, count, lambda: site.fill("drain", count), every_s=0.2).rate

    def due() -> float:
        with host.site() as site, crew(site, f"drain:{SLOTS}") as made:
            made.wait_until_idle()
            due_at = site.ask(_IN_A_WHILE, seconds=1 + count / _FILLED_PER_S)
            site.fill("drain", count, run_at=due_at)
            filled_at = site.ask("select sokka.clock()")
            until(lambda: site.ask(_NONE_LEFT), "the end", made.check, 0.2)
            return count / float(site.ask(_SINCE, at=max(due_at, filled_at)))

    names = f"{count:,} ready tasks", f"{count:,} delayed tasks, from the instant they are due"
    book.compare("delayed", [Measure(names[0], ready), Measure(names[1], due)], rounds=1)
    book.ratio("delayed", "delayed and due / ready", names[1], names[0])


_IN_A_WHILE = "select sokka.clock() + make_interval(secs => %(seconds)s)"
_NONE_LEFT = "select not exists (select from sokka.tasks)"
_SINCE = "select extract(epoch from max(finished_at) - %(at)s) from sokka.finished_tasks"

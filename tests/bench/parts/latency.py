"""Pickup: from the call that enqueues, its own commit included, to the handler's first line."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from sokka_pg import ConnectionOptions, calls
from sokka_pg.store import PgTaskStore
from tests.bench.book import Book, Curve
from tests.bench.crew import Crew, crew
from tests.bench.host import Host, Site
from tests.bench.plan import Plan

SLOTS, SLEEP_MS = 10, 50.0
PERCENTILES = (50, 95, 99)
_WARM_UP = 5
_PATIENCE_S = 20.0
_WANTED = {50: 3.0, 99: 8.0}


def run(host: Host, plan: Plan, book: Book) -> None:
    """Idle: one worker, a task at a time. Half load: ten slots, handlers of 50 ms, a hundred
    tasks a second from eight connections."""
    found: dict[str, list[float]] = {"idle": [], "half load": []}
    for _ in range(plan.rounds):
        with host.site() as site:
            found["idle"] += _idle(site, plan.samples)
            found["half load"] += _half_load(site, plan.samples * 5)
    for state, values in found.items():
        ordered = sorted(values)
        for percent in PERCENTILES:
            value = percentile(ordered, percent)
            book.add("latency", f"pickup, {state}, p{percent}", value, "ms")
            book.judge("latency", f"pickup, {state}, p{percent}, ms", value,
                       most=_WANTED.get(percent))  # fmt: skip
        shares = [100 * (n + 1) / len(ordered) for n in range(len(ordered))]
        book.curves.append(
            Curve("latency", f"pickup, {state}", ordered, shares, "ms", "percent of the tasks")
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _idle(site: Site, samples: int) -> list[float]:
    sent: dict[int, int] = {}
    with crew(site, f"pickup:{SLOTS}") as made:
        made.wait_until_idle()
        for number in range(samples + _WARM_UP):
            sent[number] = time.monotonic_ns()
            site.line.run(calls.create_task("pickup", _data(number, 0.0), kind="echo"))
            time.sleep(random.uniform(0.03, 0.08))  # it must have gone idle again
        return list(_waits(made, sent, _WARM_UP))


def _half_load(site: Site, samples: int) -> list[float]:
    sent: dict[int, int] = {}
    gap_s = 2 * SLEEP_MS / SLOTS / 1000
    options = ConnectionOptions(max_size=8)
    with (
        crew(site, f"loaded:{SLOTS}") as made, PgTaskStore(site.url, options=options) as store,
        ThreadPoolExecutor(8) as threads,
    ):  # fmt: skip
        made.wait_until_idle()

        def send(number: int) -> None:
            sent[number] = time.monotonic_ns()
            store.create_task("loaded", _data(number, SLEEP_MS), kind="echo")

        due = time.monotonic()
        for number in range(samples + 5 * _WARM_UP):
            due += gap_s
            time.sleep(max(0.0, due - time.monotonic()))
            threads.submit(send, number)
        threads.shutdown()
        return list(_waits(made, sent, 5 * _WARM_UP))


def _data(number: int, sleep_ms: float) -> dict[str, float]:
    return {"number": number, "sleep_ms": sleep_ms}


def _waits(made: Crew, sent: dict[int, int], warm_up: int) -> Iterator[float]:
    """Milliseconds of each task, without those that warmed the worker up."""
    started: dict[int, int] = {}
    deadline = time.monotonic() + _PATIENCE_S
    while len(started) < len(sent):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(sent) - len(started)} tasks were not picked up")
        try:
            number, at_ns = made.lines.get(timeout=1).split()
        except (queue.Empty, ValueError):
            made.check()
            continue
        started.setdefault(int(number), int(at_ns))
    for number, at_ns in started.items():
        if number >= warm_up:
            yield (at_ns - sent[number]) / 1e6

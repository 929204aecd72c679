"""What is measured of every peer, in the same way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.bench.peers.driving import Database, Listening, Mark, PeerFailed

SLOTS, SLEEP_MS = 10, 50.0
"""Half load: ten slots, handlers of 50 ms, so a hundred tasks a second."""
FIFTHS = 5
_SETTLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Size:
    """How long each measure may take. Counts follow a peer's own rate: a slow one is given
    less work, not less time."""

    seconds: float = 1.0
    drain_seconds: float = 1.5
    bulk: int = 60_000
    idle_samples: int = 40
    half_seconds: float = 2.0
    pinned: int = 50_000
    pinned_seconds: float = 10.0


SMOKE = Size(0.3, 0.2, 500, 5, 0.3, 500, 3.0)
LONG = Size(5.0, 5.0, 200_000, 100, 10.0, 1_000_000, 120.0)


def single(database: Database, size: Size, clients: int) -> float:
    found = database.ask("single", clients, size.seconds)
    return float(found["count"] / found["seconds"])


def bulk(database: Database, count: int) -> float:
    found = database.ask("bulk", count)
    return float(found["count"] / found["seconds"])


def drain(database: Database, count: int, processes: int) -> float:
    """Tasks a second from the moment at which all processes have begun to the moment at
    which the database knows that all tasks have ended."""
    database.ask("bulk", count)
    with database.workers(processes, 0, 0, echo=False) as working:
        run = _until_handled(working, processes, count)
        ended_ns = _all_ended(database)
    done = count - run.before
    if done <= 0:
        raise PeerFailed("drain: one process was done before the other had begun")
    return done / ((ended_ns - run.begun_ns) / 1e9)


@dataclass(slots=True)
class _Run:
    """When the last process began, and how many tasks others had run by then."""

    begun_ns: int = 0
    before: int = 0


def _until_handled(working: Listening, processes: int, count: int) -> _Run:
    """Wait until the handlers of all tasks have run."""
    begun: set[int] = set()
    done: dict[int, int] = {}
    run = _Run()
    deadline = time.monotonic() + _SETTLE_S
    while sum(done.values()) < count:
        mark = working.take(deadline)
        if mark is None:
            raise PeerFailed(f"drain: {sum(done.values())} of {count} tasks were run")
        if mark.process not in begun:
            begun.add(mark.process)
            run.begun_ns, run.before = mark.at_ns, sum(done.values())
        done[mark.process] = mark.number
    if len(begun) < processes:
        run.before = count
    return run


def _all_ended(database: Database) -> int:
    """The moment at which the database was asked and said that no task is left."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        asked_ns = time.monotonic_ns()
        if (left := database.remaining()) == 0:
            return asked_ns
        if time.monotonic() > deadline:
            raise PeerFailed(f"drain: {left} tasks are left")
        time.sleep(0.01)


def latencies(database: Database, size: Size, half_load: bool) -> list[float]:
    """Milliseconds from the call that enqueues to the first line of the handler."""
    gap_ms = 2 * SLEEP_MS / SLOTS if half_load else 40.0
    count = int(size.half_seconds * 1000 / gap_ms) if half_load else size.idle_samples
    warm_up = max(3, count // 10)
    slots, sleep_ms = (SLOTS, SLEEP_MS) if half_load else (0, 0.0)
    with database.workers(1, slots, sleep_ms, echo=True) as working:
        _wait_for_first(database, working)
        producer = database.driver.start(
            "produce", database.url, count + warm_up, gap_ms, "steady" if half_load else "gaps"
        )
        asked = _asked(database.driver.hear(producer))
        started = _started(working, len(asked))
    return [
        (started[number] - at) / 1e6
        for number, at in sorted(asked.items())[warm_up:] if number in started
    ]  # fmt: skip


def _wait_for_first(database: Database, working: Listening) -> None:
    """The worker runs a task, then has time to go idle."""
    database.ask("bulk", 1)
    if working.take(time.monotonic() + _SETTLE_S) is None:
        raise PeerFailed("latency: the worker did not begin")
    time.sleep(0.3)


def _asked(said: str) -> dict[int, int]:
    lines = [line.split() for line in said.splitlines() if line.startswith("e ")]
    return {int(number): int(at) for _, number, at in lines}


def _started(working: Listening, count: int) -> dict[int, int]:
    started: dict[int, int] = {}
    deadline = time.monotonic() + 10
    while len(started) < count:
        mark = working.take(deadline)
        if mark is None:
            break
        started.setdefault(mark.number, mark.at_ns)
    return started


@dataclass(frozen=True, slots=True)
class Pinned:
    """Rates of the first and the last fifth of what was done under an old snapshot."""

    done: int
    fifths: list[float]


def pinned(database: Database, size: Size, rate: float) -> Pinned:
    """Two processes, while another session holds an old snapshot."""
    count = max(100, min(size.pinned, int(rate * size.pinned_seconds)))
    database.ask("bulk", count, patience_s=300)
    with database.old_snapshot(), database.workers(2, 0, 0, echo=False) as working:
        marks = _until(working, count, size.pinned_seconds * 1.5)
    return Pinned(*_by_fifths(marks))


def _until(working: Listening, count: int, seconds: float) -> list[Mark]:
    marks: list[Mark] = []
    done: dict[int, int] = {}
    deadline = time.monotonic() + _SETTLE_S
    while sum(done.values()) < count:
        mark = working.take(deadline)
        if mark is None:
            break
        if not marks:
            deadline = time.monotonic() + seconds
        marks.append(mark)
        done[mark.process] = mark.number
    if sum(done.values()) == 0:
        raise PeerFailed("pinned: nothing was done")
    return marks


def _by_fifths(marks: Sequence[Mark]) -> tuple[int, list[float]]:
    points: list[tuple[int, int]] = []
    done: dict[int, int] = {}
    for mark in sorted(marks, key=lambda mark: mark.at_ns):
        done[mark.process] = mark.number
        points.append((mark.at_ns, sum(done.values())))
    total = points[-1][1]
    edges = [_reached(points, total * fifth / FIFTHS) for fifth in range(FIFTHS + 1)]
    spans = [max(1.0, b - a) / 1e9 for a, b in pairwise(edges)]
    return total, [total / FIFTHS / span for span in spans]


def _reached(points: Sequence[tuple[int, int]], count: float) -> float:
    """When so many were done; between two marks they are done at an even rate."""
    before_at, before_done = points[0]
    for at, done in points:
        if done >= count and done > before_done:
            share = (count - before_done) / (done - before_done)
            return before_at + max(0.0, share) * (at - before_at)
        before_at, before_done = at, done
    return points[-1][0]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

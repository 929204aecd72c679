"""``python -m tests.bench.peers``: measure every queue in turn, write JSON and a table."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import psycopg

from tests.bench import host as hosts
from tests.bench import html
from tests.bench.__main__ import OUTPUT, end_in_order
from tests.bench.book import say
from tests.bench.peers import measures, tables
from tests.bench.peers.driving import Database, Driver, PeerFailed
from tests.bench.peers.environments import RECIPES, Missing
from tests.bench.peers.measures import Size

SIZES = {"standard": Size(), "smoke": measures.SMOKE, "long": measures.LONG}
_MOST_WAITING = 60_000
Measure: TypeAlias = "Callable[[Database, Size, Results], None]"


@dataclass(slots=True)
class Results:
    """Values by peer and measure, in order of rounds; what failed, and why."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    pinned: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    samples: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    guesses: dict[tuple[str, str], float] = field(default_factory=dict)

    def add(self, peer: str, measure: str, value: float) -> None:
        self.values.setdefault(peer, {}).setdefault(measure, []).append(value)
        say(f"{peer}: {measure}: {value:,.4g}")

    def rate(self, peer: str, measure: str) -> float:
        """The last value of a measure, or what the calibration guessed."""
        found = self.values.get(peer, {}).get(measure, [])
        return found[-1] if found else self.guesses.get((peer, measure), 500.0)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = ", ".join(recipe.name for recipe in RECIPES)
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument("--peers", help=f"some of: {names}; default: all")
    parser.add_argument("--size", choices=SIZES, default="standard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-rounds", type=int, default=2)
    parser.add_argument("--pinned-rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0,
                        help="no further round is begun after that long")  # fmt: skip
    parser.add_argument("--pg", help="major version of the server, or its folder of programs")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the results")
    return parser.parse_args(arguments)


ONE, EIGHT, BULK = "enqueue, 1 client", "enqueue, 8 clients", "enqueue in bulk"
DRAIN_1, DRAIN_2 = "drain, 1 process", "drain, 2 processes"
LOG = "log, enqueue in bulk to end, bytes per task"
_DRAINS = {1: DRAIN_1, 2: DRAIN_2}


def _calibrate(database: Database, size: Size, results: Results) -> None:
    """Rates by a small load: they only tell how much the measures should do."""
    name = database.driver.name
    results.guesses[name, BULK] = measures.bulk(database, 500)
    results.guesses[name, DRAIN_1] = measures.drain(database, 500, 1)


def _single(clients: int) -> Measure:
    def run(database: Database, size: Size, results: Results) -> None:
        rate = measures.single(database, size, clients)
        results.add(database.driver.name, ONE if clients == 1 else EIGHT, rate)

    return run


def _bulk(database: Database, size: Size, results: Results) -> None:
    name = database.driver.name
    count = min(size.bulk, max(500, int(results.rate(name, BULK) * size.drain_seconds)))
    results.add(name, BULK, measures.bulk(database, count))


def _drain(processes: int) -> Measure:
    def run(database: Database, size: Size, results: Results) -> None:
        name = database.driver.name
        count = int(results.rate(name, DRAIN_1) * size.drain_seconds * (1 + 0.7 * (processes - 1)))
        count = max(200 * processes, min(count, _MOST_WAITING * processes))
        before = database.driver.host.wal().bytes
        results.add(name, _DRAINS[processes], measures.drain(database, count, processes))
        if processes == 1:
            log = database.driver.host.wal().bytes - before
            results.add(name, LOG, log / count)

    return run


def _latency(half_load: bool) -> Measure:
    state = "at half load" if half_load else "idle"

    def run(database: Database, size: Size, results: Results) -> None:
        peer = database.driver.name
        found = measures.latencies(database, size, half_load)
        samples = results.samples.setdefault((peer, state), [])
        samples += found
        # A percentile is taken of all rounds together: one round has too few samples.
        for percent in (50, 95, 99):
            name = f"pickup {state}, p{percent}"
            results.values.setdefault(peer, {})[name] = [measures.percentile(samples, percent)]
        say(f"{peer}: pickup {state}, p50: {measures.percentile(found, 50):.3g} ms")

    return run


def _pinned(database: Database, size: Size, results: Results) -> None:
    name = database.driver.name
    found = measures.pinned(database, size, results.rate(name, DRAIN_1))
    results.pinned.setdefault(name, []).append(asdict(found))
    results.add(name, "pinned, last fifth / first", found.fifths[-1] / found.fifths[0])
    results.add(name, "pinned, last fifth", found.fifths[-1])


_THROUGHPUT = (_single(1), _single(8), _bulk, _drain(1), _drain(2))
_LATENCY = (_latency(False), _latency(True))


def schedule(given: argparse.Namespace) -> list[list[Measure]]:
    """The measures of each round in their order; every peer takes its turn at each."""
    found: list[list[Measure]] = [[_calibrate]]
    rounds = max(given.rounds, given.latency_rounds, given.pinned_rounds)
    for turn in range(rounds):
        todo: list[Measure] = []
        if turn < given.rounds:
            todo += _THROUGHPUT
        if turn < given.latency_rounds:
            todo += _LATENCY
        if turn < given.pinned_rounds:
            todo.append(_pinned)
        found.append(todo)
    return found


def _drivers(host: hosts.Host, names: Sequence[str], cache: Path, results: Results) -> list[Driver]:
    drivers = []
    for recipe in RECIPES:
        if names and recipe.name not in names:
            continue
        try:
            driver = Driver(host, recipe, cache)
            driver.prepare()
            drivers.append(driver)
            say(f"{driver.name}: {driver.about['versions']}")
        except (Missing, PeerFailed) as error:
            results.failed[recipe.name] = str(error)
            say(f"{recipe.name}: not run: {error}")
    return drivers


def measure(
    drivers: Sequence[Driver], todo: Sequence[Measure], size: Size, results: Results
) -> None:
    """Each measure by every peer in turn, another one first each time."""
    for number, run in enumerate(todo):
        shift = number % len(drivers)
        for driver in (*drivers[shift:], *drivers[:shift]):
            try:
                with driver.database() as database:
                    run(database, size, results)
            except (PeerFailed, psycopg.Error, subprocess.SubprocessError) as error:
                said = f"{type(error).__name__}: {error}".strip()
                results.failed.setdefault(driver.name, said)
                say(f"{driver.name}: failed: {said}")


def main(arguments: Sequence[str] | None = None) -> None:
    given = options(arguments)
    names = [name.strip() for name in given.peers.split(",")] if given.peers else []
    results, size = Results(), SIZES[given.size]
    end_in_order()
    with hosts.running(given.pg, tcp=True) as host:
        environment = host.environment({**asdict(size), **{
            name: getattr(given, name) for name in ("rounds", "latency_rounds", "pinned_rounds")
        }})  # fmt: skip
        begun = time.monotonic()
        drivers = _drivers(host, names, given.output, results)
        for turn, todo in enumerate(schedule(given)):
            passed_s = time.monotonic() - begun
            if not drivers or (turn > 1 and passed_s > given.minutes * 60):
                say(f"{passed_s:.0f} s have passed: no round after {turn - 1}")
                break
            measure(drivers, todo, size, results)
        found = {
            "environment": environment, "peers": {each.name: each.about for each in drivers},
            "values": results.values, "pinned": results.pinned, "failed": results.failed,
            "seconds": round(time.monotonic() - begun, 1),
        }  # fmt: skip
    given.output.mkdir(parents=True, exist_ok=True)
    file = given.output / "peers.json"
    file.write_text(json.dumps(found, indent=1, default=str) + "\n")
    table = tables.of_peers(found)
    (given.output / "peers.md").write_text(table)
    (given.output / "peers.html").write_text(html.of_peers(found), encoding="utf-8")
    print(table)
    say(f"written: {file}")


if __name__ == "__main__":
    main()

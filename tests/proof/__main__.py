"""`make simulate`: play interleavings from a seed until one breaks a rule, or all are played.

SEED    the first seed (default: from the time of day; it is printed)
ROUNDS  how many (default: 500, or 1 where a SEED is given)
THEME   what all of them are about (default: each seed's own)
MUTANT  the name of a defect to have in the copy, or `all`: each must be caught
PG      the major of PostgreSQL (default: the newest that is found)
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests import servers

from . import witness
from .checker import check, story
from .history import History
from .mutants import MUTANTS, named
from .simulator import THEMES, Finding, Simulation, Stage, catch, search, theme_of

PROGRESS_EVERY = 100
MUTANT_ROUNDS = 60
MUTANT_SEEDS = (1000, 2000)


@contextmanager
def stage_on(server: servers.Server) -> Iterator[Stage]:
    """A stage in a database of its own, dropped afterwards."""
    name = server.create(server.template())
    try:
        with psycopg.connect(server.url(name), autocommit=True) as connection:
            witness.install(connection)
        stage = Stage(server.url(name))
        try:
            yield stage
        finally:
            stage.close()
    finally:
        server.drop(name)


def play(stage: Stage, first: int, rounds: int, theme: str | None) -> Finding | None:
    began = time.monotonic()
    calls: Counter[str] = Counter()
    found = None
    for n in range(rounds):
        seed = first + n
        history = Simulation(stage, seed, theme).run()
        calls.update(count(history))
        if faults := check(history):
            found = Finding(seed, theme or theme_of(seed), history, faults)
            break
        if (n + 1) % PROGRESS_EVERY == 0:
            print(f"  {n + 1} interleavings, {rate(n + 1, began)} a minute", flush=True)
    print(
        f"{n + 1} interleavings, {rate(n + 1, began)} a minute: {calls['calls']} calls,"
        f" {calls['refused']} refused, {calls['lost']} answers lost, {calls['waits']} waits for"
        f" a lock, {calls['changes']} changes of rows"
    )
    return found


def count(history: History) -> Counter[str]:
    return Counter(
        calls=len(history.calls),
        refused=sum(call.outcome == "fail" for call in history.calls),
        lost=sum(call.outcome == "info" for call in history.calls),
        waits=len(history.waits),
        changes=len(history.changes),
    )


def rate(rounds: int, began: float) -> int:
    return round(rounds * 60 / max(time.monotonic() - began, 0.001))


def verdict(found: Finding | None) -> int:
    if found is None:
        print("PASS: no rule was broken")
        return 0
    print(f"FAIL\n{found}\nIt replays exactly: make simulate SEED={found.seed} THEME={found.theme}")
    return 1


def try_mutants(stage: Stage) -> int:
    missed = 0
    for mutant in MUTANTS:
        for base in MUTANT_SEEDS:
            found = catch(stage, mutant, range(base, base + MUTANT_ROUNDS))
            if found:
                rules = ", ".join(sorted({fault.rule for fault in found.faults}))
                print(
                    f"| {mutant.name} | {mutant.theme} | {found.seed - base + 1} of seed {base}"
                    f" | {rules} |",
                    flush=True,
                )
                break
        else:
            missed += 1
            print(f"| {mutant.name} | {mutant.theme} | MISSED | |", flush=True)
    print(f"{len(MUTANTS) - missed} of {len(MUTANTS)} mutants caught")
    return 1 if missed else 0


def show(stage: Stage, seed: int, theme: str | None) -> None:
    """All of one interleaving, task by task."""
    history = Simulation(stage, seed, theme).run()
    for task in {change.id: None for change in history.changes if change.source != "note"}:
        print(f"\n{task}")
        print("\n".join(f"  {line}" for line in story(history, task)))


def main() -> int:
    said = os.environ
    seed = int(said.get("SEED") or int(time.time()) % 1_000_000_000)
    rounds = int(said.get("ROUNDS") or (1 if said.get("SEED") else 500))
    theme = said.get("THEME") or None
    if theme is not None and theme not in THEMES:
        print(f"THEME is one of {', '.join(THEMES)}", file=sys.stderr)
        return 2
    found = [s for s in servers.find() if said.get("PG") in (None, "", str(s.major))]
    if not found:
        print("no such PostgreSQL was found", file=sys.stderr)
        return 2
    folder = servers.new_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        with found[-1].running(folder) as url:
            server = servers.Server(found[-1].major, url)
            with stage_on(server) as stage:
                print(
                    f"SEED={seed} ROUNDS={rounds} THEME={theme or 'each its own'}"
                    f" on PostgreSQL {server.major}"
                )
                status = run(stage, seed, rounds, theme, said.get("MUTANT") or "")
            server.close()
    finally:
        servers.remove_clusters(folder)
    return status


def run(stage: Stage, seed: int, rounds: int, theme: str | None, mutant: str) -> int:
    if mutant == "all":
        return try_mutants(stage)
    if mutant:
        defect = named(mutant)
        with witness.defect(stage.observer, defect.change):
            return verdict(search(stage, range(seed, seed + rounds), theme or defect.theme))
    if rounds == 1:
        show(stage, seed, theme)
    return verdict(play(stage, seed, rounds, theme))


if __name__ == "__main__":
    sys.exit(main())

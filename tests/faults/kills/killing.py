"""The run: load, kills, the drain, and what is asked afterwards."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import psycopg

from sokka_pg.store import PgTaskStore
from tests.faults.kills import leftovers
from tests.faults.kills.handlers import LOCKS, TABLES
from tests.faults.kills.nursery import Nursery
from tests.faults.waiting import until

WORKERS, APART = 5, 2
TOPICS = "t:4,c:2"
KEYS = tuple(f"k{n}" for n in range(12))
UNFINISHED_MOST = 60
DRAIN_S = 60.0
_UNFINISHED = "select count(*) from sokka.tasks"
_HOLDERS = "select pid, count(*) from sokka.live_leases group by pid"


@dataclass
class Figures:
    """What a run did."""

    kills: int = 0
    """Of workers: alone, or with all that they had started."""
    groups: int = 0
    children: int = 0
    """Of child processes alone: not counted as kills of workers."""
    holding: int = 0
    """Kills whose worker held a lease by the server's clock just before."""
    seconds: float = 0.0
    drained_s: float = 0.0
    tasks: int = 0
    events: Counter[str] = field(default_factory=Counter)
    connections_most: int = 0

    def __str__(self) -> str:
        told = ", ".join(f"{event} {count}" for event, count in sorted(self.events.items()))
        return (
            f"{self.kills} workers killed in {self.seconds:.0f} s ({self.groups} with their "
            f"children, {self.holding} while they held a lease), and {self.children} children "
            f"alone\n{self.tasks} tasks; drained in {self.drained_s:.1f} s; "
            f"{self.connections_most} connections at most\n{told}"
        )


class Killing:
    """Workers on one database, killed and replaced. A ``with`` block."""

    def __init__(self, url: str, folder: Path, seed: int, pause_s: float = 0.5) -> None:
        self.dice = random.Random(seed)
        self.figures = Figures()
        self._url, self._folder, self._pause_s = url, folder, pause_s
        self._run = uuid.uuid4().hex
        self._names = itertools.count(1)
        self._conn = psycopg.connect(url, autocommit=True)
        self._conn.execute(TABLES)
        self._workers: dict[str, int] = {}
        self._apart: set[str] = set()
        self._load = Load(url, random.Random(seed + 1))
        self._nursery = Nursery({leftovers.MARK: self._run, "SOKKA_DATABASE_URL": url})

    def __enter__(self) -> Killing:
        try:
            for n in range(WORKERS):
                self._start(apart=n < APART)
            self._load.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened: no process and no connection is left."""
        self._load.stop()
        self._nursery.close()
        for process in leftovers.of_run(self._run):
            with suppress(psutil.Error):
                process.kill()
        self._conn.close()

    def kill(self, count: int) -> None:
        """Kill this many workers, each at an instant that nothing chose."""
        began = monotonic()
        while self.figures.kills < count:
            # no wait for anything: chance itself
            threading.Event().wait(self.dice.uniform(0, 2 * self._pause_s))
            self._load.check()
            self._count_connections()
            if self.dice.random() < 0.1:
                self._kill_a_child()
                continue
            name = self.dice.choice(sorted(self._workers))
            self.figures.holding += name in {pid for pid, _ in self._holders()}
            self._kill(name, group=self.dice.random() < 0.4)
            self._start(apart=name in self._apart)
        self.figures.seconds = monotonic() - began

    def check(self) -> None:
        """Nothing is stuck or leaked. Stops the load, lets all end, stops the workers."""
        self._load.stop()
        self._load.check()
        self._drain()
        self._check_slots()
        self._stop_workers()
        leftovers.check_connections(self._conn)
        with PgTaskStore(self._url) as store:
            leftovers.check_keys_are_free(store, "t", KEYS)
            leftovers.check_locks_are_free(store)
        leftovers.check_database(self._conn, self._load.known)
        self.figures.tasks = len(self._load.known)
        self.figures.events.update(
            dict(self._conn.execute(
                "select event, count(*) from sokka.task_history group by 1").fetchall())
        )  # fmt: skip

    # --- the workers --------------------------------------------------------

    def _start(self, apart: bool = False) -> None:
        name = f"w{next(self._names)}"
        topics = f"{TOPICS},p:1" if apart else TOPICS
        self._workers[name] = self._nursery.start(
            self._folder / f"{name}.log", "worker", "--app", "tests.faults.kills.handlers:app",
            "--topics", topics, "--lease", "700ms", "--grace", "5s", "--prefetch", "4",
            "--pid", name, "--log-level", "error",
        )  # fmt: skip
        if apart:
            self._apart.add(name)

    def _kill(self, name: str, group: bool) -> None:
        pid = self._workers.pop(name)
        # each leads a session of its own, so the group is its children and no other
        (os.killpg if group else os.kill)(pid, signal.SIGKILL)
        assert self._nursery.wait(pid) == -signal.SIGKILL, self._log(name)
        self.figures.kills += 1
        self.figures.groups += group

    def _kill_a_child(self) -> None:
        """A child process of one worker: the worker stays, and settles its task."""
        for name in self.dice.sample(sorted(self._workers), len(self._workers)):
            with suppress(psutil.Error):
                for child in psutil.Process(self._workers[name]).children():
                    if "spawn_main" in " ".join(child.cmdline()):
                        child.kill()
                        self.figures.children += 1
                        return

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def _count_connections(self) -> None:
        (found,) = self._conn.execute(
            "select count(*) from pg_stat_activity where application_name like 'sokka_pg%'"
        ).fetchone() or (0,)
        self.figures.connections_most = max(self.figures.connections_most, found)

    # --- afterwards ---------------------------------------------------------

    def _drain(self) -> None:
        began = monotonic()
        with suppress(AssertionError):
            until(lambda: not self._unfinished(), "the end of all", DRAIN_S)
        assert self._unfinished() == []
        self.figures.drained_s = monotonic() - began

    def _unfinished(self) -> list[Any]:
        return self._conn.execute("select kind, status, losses from sokka.tasks").fetchall()

    def _check_slots(self) -> None:
        """Every worker still runs as many handlers at once as it may, of every topic."""
        tasks = (("t", "fate", 4 * WORKERS), ("c", "child", 2 * WORKERS), ("p", "apart", APART))
        with PgTaskStore(self._url) as store:
            for topic, kind, count in tasks:
                data = {"seconds": 3.0, **({"how": "done"} if kind == "fate" else {})}
                specs = [{"topic": topic, "kind": kind, "data": data, "max_losses": 50}] * count
                self._load.known += [task.task_id for task in store.create_tasks(specs)]
        most = sum(count for *_, count in tasks)
        until(lambda: self._held() == most, f"{most} handlers at once")
        until(lambda: not self._held(), "their end")

    def _held(self) -> int:
        return sum(count for _, count in self._holders())

    def _holders(self) -> list[Any]:
        return self._conn.execute(_HOLDERS).fetchall()

    def _stop_workers(self) -> None:
        for pid in self._workers.values():
            os.kill(pid, signal.SIGTERM)
        for name, pid in self._workers.items():
            assert self._nursery.wait(pid) == 0, self._log(name)
        self._workers.clear()
        self._nursery.close()
        leftovers.check_processes(self._run)


class Load(threading.Thread):
    """Tasks of all sorts, as long as not too many are unfinished; and schedules."""

    def __init__(self, url: str, dice: random.Random) -> None:
        super().__init__(daemon=True)
        self._url, self._dice = url, dice
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self.known: list[uuid.UUID] = []

    def check(self) -> None:
        """Raise what ended the thread before its time."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join(20)

    def run(self) -> None:
        try:
            with PgTaskStore(self._url) as store, psycopg.connect(self._url, autocommit=True) as c:
                self._put_schedules(store)
                while not self._over.wait(0.02):
                    (unfinished,) = c.execute(_UNFINISHED).fetchone() or (0,)
                    if unfinished < UNFINISHED_MOST:
                        self._enqueue(store)
                for name in self._schedules():
                    store.pause_schedule(name)
        except BaseException as failure:
            self._failure = failure

    def _schedules(self) -> Iterator[str]:
        return (f"{sort}-{n}" for sort in ("all", "serial") for n in range(2))

    def _put_schedules(self, store: PgTaskStore) -> None:
        now = datetime.now(UTC)
        for name in self._schedules():
            task = {"topic": "t", "kind": "fate", "max_losses": 50,
                    "data": {"how": "done", "seconds": 0.02}}
            store.put_schedule(name, {
                "schedule": "@every 200ms", "next_at": now, "anchor_at": now, "missed": "all",
                "max_catch_up": 10_000, "serial": name.startswith("serial"), "task": task,
            })  # fmt: skip

    def _enqueue(self, store: PgTaskStore) -> None:
        dice = self._dice
        seconds = dice.choice((0.0, dice.uniform(0, 0.1), dice.uniform(0, 1)))
        makers: tuple[tuple[int, str, dict[str, Any]], ...] = (
            (6, "fate", {"how": dice.choice(("done", "done", "fail", "retry", "snooze")),
                         "seconds": seconds}),
            (2, "journey", {"seconds": seconds}),
            (2, "once", {"seconds": seconds / 2}),
            (1, "family", {"policy": dice.choice(
                ("settled", "all", "first_success", "quorum", "any")),
                "children": [dice.uniform(0, 0.1) for _ in range(dice.randrange(2, 7))]}),
            (2, "locked", {"key": dice.choice(LOCKS), "seconds": seconds / 20}),
            (1, "single", {"seconds": seconds / 10}),
            (1, "apart", {"seconds": seconds / 4}),
        )  # fmt: skip
        (_, kind, data), = dice.choices(makers, [weight for weight, *_ in makers])
        task = store.create_task(
            "p" if kind == "apart" else "t", data, kind=kind,
            unique_key=dice.choice((None, dice.choice(KEYS))) if kind == "fate" else None,
            max_losses=dice.choice((50, 50, 50, 0, 1)),
            retry={"max_attempts": dice.choice((1, 5)), "initial": 0.05, "max": 0.2},
        )
        self.known.append(task.task_id)

"""A small ground on which one fault of the run of real processes is tried: a server of its
own, one or two workers, and a client that never tires of bringing tasks."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from sokka_pg import calls
from sokka_pg.connections.sending import send
from sokka_pg.embedded import Server, all_binaries
from sokka_pg.errors import SokkaError
from sokka_pg.store import PgTaskStore
from tests import servers
from tests.faults.chaos.faults import PLAIN, Fault, Role, Way
from tests.faults.chaos.words import FAIL, INFO, OK, Act, Bite, Call, Change, Injection
from tests.faults.processes import ROOT
from tests.faults.waiting import until

LEASE_S = 0.6
SETTINGS = {"max_connections": "40", "timezone": "UTC", "shared_buffers": "32MB"}
_LOST = """
    select task_id::text, pid, (extract(epoch from ended_at) * 1000000)::bigint
      from sokka.past_leases where event = 'lease_lost' order by ended_at"""
_NOW = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"


class Member:
    """A worker process: see ``tests.faults.chaos.faults.CrewMember``."""

    def __init__(self, seat: str, way: Way, role: str, folder: Path) -> None:
        self.seat, self.variant, self.way, self.role = seat, way.variant, way, role
        self.starts = 0
        self.log = folder / f"{seat}.log"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"{self.seat}.{self.starts}"

    @property
    def os_pid(self) -> int | None:
        living = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and living else None

    def restart(self) -> None:
        if self.os_pid is not None:
            return
        self.starts += 1
        command = [
            *self.way.prefix, sys.executable, "-m", "tests.faults.cli", "worker",
            "--app", "tests.faults.handlers:app", "--topics", "t:4", "--lease",
            f"{LEASE_S * 1000:.0f}ms", "--pid", self.name, "--poll", "200ms", *self.way.arguments,
        ]
        surroundings = {
            **os.environ, "PYTHONPATH": str(ROOT), "SOKKA_DATABASE_URL": self.way.url(self.role),
            "SOKKA_TEST_NOTES": str(self._folder / "notes"), **self.way.environment,
        }
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=surroundings, stdout=log, stderr=log,
                start_new_session=True,
            )

    def kill(self, *, group: bool = True) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(-self._process.pid if group else self._process.pid, signal.SIGKILL)
            self._process.wait(20)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.os_pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.os_pid, number)


class Crew:
    def __init__(self) -> None:
        self.workers: list[Member] = []


class Client:
    """Brings tasks, one after the other, and remembers how each call was answered: once,
    while a store repeats a call whose answer was lost."""

    def __init__(self, url: str, task_s: float) -> None:
        self.calls: list[Call] = []
        self._task_s = task_s
        self.poison_share, self.poisoned, self.refused = 0.0, 0, 0
        self._url = make_conninfo(url, connect_timeout=2, application_name="sokka_pg_client")
        self._connection: psycopg.Connection[Any] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _work(self) -> None:
        while not self._stop.wait(0.05):
            call = Call("client", len(self.calls), "create_task", {}, time.monotonic_ns())
            self.calls.append(call)
            self._bring(call)
            call.ended = time.monotonic_ns()
        self._drop()

    def _bring(self, call: Call) -> None:
        try:
            if self._connection is None:
                call.outcome = FAIL
                self._connection = psycopg.connect(self._url, autocommit=True)
            call.outcome = INFO
            made = calls.create_task("t", {"seconds": self._task_s}, kind="wait_for")
            send(self._connection, made, "sokka", foreign=False)
            call.outcome = OK
        except (SokkaError, psycopg.Error) as error:
            cause = error.__cause__ if isinstance(error, SokkaError) else error
            call.sqlstate = getattr(cause, "sqlstate", None) or ""
            call.message = str(error)
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Ground:
    """See ``tests.faults.chaos.faults.Scene``."""

    lease_s, name, database = LEASE_S, "trial", "shop"
    operators: Any = None
    disk: Any = None

    def __init__(self, major: int, folder: Path, fault: Fault, disk: Any = None) -> None:
        self.folder, self.fault, self.disk = folder, fault, disk
        self.turn = asyncio.Lock()
        self.crew = Crew()
        self.injections: list[Injection] = []
        self.began = time.monotonic_ns()
        self._stack = ExitStack()
        binaries = next((each for each in all_binaries() if each.version == major), None)
        if disk is None:
            made = Server.temporary(binaries=binaries, settings=SETTINGS)
        else:
            settings = {**SETTINGS, **disk.SETTINGS}
            made = Server.start(disk.data, binaries=binaries, settings=settings)
        self.primary = self._stack.enter_context(made)
        self.servers = (self.primary,)
        with self._stack.pop_all() as unwinding:
            self._fill()
            # as the fault's own role, if it has one
            role = next((role.name for role in fault.roles), PLAIN)
            # a worker that is killed or stopped should hold something then
            self.load = Client(self.url(role), 0.3 if fault.name in ("F1", "F2") else 0.05)
            unwinding.callback(self.load.close)
            self._stack = unwinding.pop_all()

    def _fill(self) -> None:
        with psycopg.connect(self.primary.url(), autocommit=True) as asking:
            asking.execute(f"create database {self.database} template template0")
        servers.load_newest(self.primary.url(self.database))
        with self.asking() as asking:
            for role in (Role(PLAIN), *self.fault.roles):
                asking.execute(f"create role {role.name} login")
                for setting, value in role.settings.items():
                    asking.execute(f"alter role {role.name} set {setting} = '{value}'")
                asking.execute(f"grant usage on schema sokka to {role.name}")
                asking.execute(f"grant execute on all functions in schema sokka to {role.name}")

    def asking(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(), autocommit=True)

    def url(self, role: str | None = None) -> str:
        found = self.primary.url(self.database)
        if role is None:
            return make_conninfo(found, application_name="chaos")
        return make_conninfo(found, user=role)

    def log(self, injection: Injection) -> None:
        self.injections.append(injection)

    def __enter__(self) -> Ground:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.crew.workers:
            worker.kill()
        self._stack.close()
        asyncio.run(self.fault.close())

    # --- the trial --------------------------------------------------------------

    def hire(self, seats: Sequence[tuple[str, str]]) -> None:
        """Workers, each with its variant and its role, that serve."""

        async def ways() -> list[Way]:
            return [
                Way("direct", self.url) if variant == "direct"
                else await self.fault.way(self, variant, f"w{n}")
                for n, (variant, _) in enumerate(seats)
            ]

        for n, (way, (_, role)) in enumerate(zip(asyncio.run(ways()), seats, strict=True)):
            self.crew.workers.append(Member(f"w{n}", way, role, self.folder))
            self.crew.workers[-1].restart()
        for worker in self.crew.workers:
            until(partial(_serves, worker.log), f"a start of {worker.seat}", 60)

    def play(self, seconds: float, seed: int = 1) -> Bite:
        """Let the fault run for that time; what it did."""
        dice = random.Random(seed)
        asyncio.run(self.fault.run(self, dice, time.monotonic() + seconds))
        return self.fault.bites(self.act())

    def works_again(self) -> None:
        """Every task that is brought now, and all before, come to an end."""
        self.load.close()
        with PgTaskStore(self.url(PLAIN)) as store:
            for _ in range(4):
                store.create_task("t", kind="quick")
        with self.asking() as asking:
            until(
                lambda: asking.execute("select count(*) from sokka.tasks").fetchone() == (0,),
                "the end of all tasks", 40,
            )

    def act(self) -> Act:
        with self.asking() as asking:
            before = time.monotonic_ns()
            (now,) = asking.execute(_NOW).fetchone() or (0,)
            offset = int(now) - (before + time.monotonic_ns()) // 2000
            rows = asking.execute(_LOST).fetchall()
        return Act(
            self.name, self.primary.version, LEASE_S, self.began, time.monotonic_ns(), offset,
            calls=list(self.load.calls), injections=self.injections,
            changes=[
                Change(
                    n, int(at), began=int(at), xid="", backend=0, lsn="",
                    function="sweep", source="tasks",
                    old={"id": task, "pid": pid, "losses": 0}, new={"id": task, "losses": 1},
                )
                for n, (task, pid, at) in enumerate(rows)
            ],
        )


def _serves(log: Path) -> bool:
    return " serves " in log.read_text()

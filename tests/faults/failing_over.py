"""A small ground for failovers alone: two servers, one worker process, a stream of tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from sokka_pg import migrate
from sokka_pg.connections import ConnectionOptions
from sokka_pg.embedded import Binaries, Server
from sokka_pg.errors import SokkaError
from sokka_pg.store import PgTaskStore
from tests.faults.chaos import pair
from tests.faults.chaos.judging import witness
from tests.faults.chaos.words import Injection
from tests.faults.processes import WorkerProcess

DATABASE = "queue"
APP = ("--topics", "t:4", "--lease", "1s", "--grace", "0s")


@dataclass
class Member:
    name: str
    process: WorkerProcess

    @property
    def os_pid(self) -> int | None:
        return self.process.process.pid if self.process.process.poll() is None else None


@dataclass
class Crew:
    workers: Sequence[Member]


@dataclass
class Ground:
    """As much of a scene as a failover asks for."""

    name: str
    servers: tuple[Server, Server]
    primary: Server
    crew: Crew
    database: str = DATABASE
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    injections: list[Injection] = field(default_factory=list)
    answered: list[str] = field(default_factory=list)
    """The ids of the tasks whose enqueueing was acknowledged."""

    def log(self, injection: Injection) -> None:
        self.injections.append(injection)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with pair.admin(self.primary, self.database) as asking:
            return asking.execute(query).fetchall()


@contextmanager
def ground(mode: str, binaries: Binaries, folder: Path, workers: int = 2) -> Iterator[Ground]:
    """With the queue and its witness, workers at it, and somebody who enqueues without end."""
    with pair.pair(binaries, {"fsync": "off"}) as servers:
        with pair.admin(servers[0]) as asking:
            asking.execute(f"create database {DATABASE}")
        migrate.upgrade(servers[0].url(DATABASE))
        with pair.admin(servers[0], DATABASE) as asking:
            witness.install(asking)
        url = pair.either([server.url(tcp=True) for server in servers], DATABASE)
        members = [_worker(url, folder, f"w{n}") for n in range(workers)]
        made = Ground(mode, servers, servers[0], Crew(members))
        over = threading.Event()
        thread = threading.Thread(target=_enqueue, args=(url, made, over))
        try:
            for member in members:
                member.process.serving()
            thread.start()
            yield made
        finally:
            over.set()
            if thread.ident is not None:
                thread.join(30)
            for member in members:
                member.process.kill()


def _worker(url: str, folder: Path, name: str) -> Member:
    return Member(name, WorkerProcess(url, folder, "--pid", name, *APP, name=name))


def _enqueue(url: str, made: Ground, over: threading.Event) -> None:
    options = ConnectionOptions(wait=timedelta(seconds=1), max_size=1)
    with PgTaskStore(url, options=options) as store:
        while not over.wait(0.02):
            with suppress(SokkaError, psycopg.Error):
                task = store.create_task("t", kind="quick")
                made.answered.append(str(task.task_id))

"""What handlers do outside of the queue: a file that anybody may append to, and a second
database that remembers the highest token of each task.

The file shows how often two attempts were at the same work at once: the proof that the
faults bit. The database must never take a write of an older token after a newer one.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from sokka_pg import migrate
from tests.faults.chaos.clock import monotonic_ns
from tests.faults.chaos.recorder import NAME, append
from tests.faults.chaos.words import Effect

FOLDER = "SOKKA_CHAOS_EFFECTS"
DATABASE = "SOKKA_CHAOS_EFFECTS_URL"
FILE = "unfenced.jsonl"
REFUSED = "SK011"
_MOST_CONNECTIONS = 2
_PATIENCE_S = 5.0

_TABLE = """
    create table public.fenced (
        pos bigint generated always as identity primary key, task uuid not null,
        token bigint not null, attempt integer not null, pid text not null,
        at bigint not null, process text not null)"""
_INSERT = """
    insert into public.fenced (task, token, attempt, pid, at, process)
    values (%s, %s, %s, %s, %s, %s)"""
_READ = "select task::text, token, attempt, pid, at, process from public.fenced order by pos"


def prepare(database_url: str) -> None:
    """Make the second database: the fence, and the table that it guards."""
    migrate.fence_only(database_url)
    with psycopg.connect(database_url, autocommit=True, application_name="chaos") as connection:
        connection.execute(_TABLE)


class Outside:
    """The file and the database, for the handlers of one process."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._file = append(folder / FILE)
        self._url = database_url
        self._lock = threading.Lock()
        self._pool: ConnectionPool | None = None
        self._process = f"{os.environ.get(NAME, 'x')}-{os.getpid()}"

    def note(self, kind: str, lease: Any, attempt: int) -> None:
        """Append to the file, whatever any token says."""
        said = {
            "kind": kind, "task": str(lease.task_id), "token": lease.token,
            "attempt": attempt, "pid": lease.pid, "at": monotonic_ns(),
            "process": self._process,
        }
        os.write(self._file, json.dumps(said).encode() + b"\n")

    def write_fenced(self, lease: Any, attempt: int) -> bool:
        """Write to the database, if no newer token was there before; whether it was let.

        The row is numbered while the fence is held: their order is that of the commits.
        """
        values = (lease.task_id, lease.token, attempt, lease.pid, monotonic_ns(), self._process)
        try:
            with self._connection() as connection, connection.transaction():
                connection.execute(
                    "select sokka.advance_fence(%s, %s)", (f"task:{lease.task_id}", lease.token)
                )
                connection.execute(_INSERT, values)
        except psycopg.Error as error:
            if error.sqlstate != REFUSED:
                raise
            self.note("refused", lease, attempt)
            return False
        return True

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        with self._lock:
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._url, min_size=0, max_size=_MOST_CONNECTIONS, timeout=_PATIENCE_S,
                    kwargs={"autocommit": True, "application_name": "chaos"}, open=True,
                )
        with self._pool.connection() as connection:
            yield connection


def from_environment() -> Outside | None:
    """As a worker is told by those who started it; None: nobody did."""
    if FOLDER not in os.environ:
        return None
    return Outside(Path(os.environ[FOLDER]), os.environ[DATABASE])


def read(folder: Path, database_url: str) -> list[Effect]:
    """Those of the file in its order, then those of the database in the order of commits."""
    found = []
    file = folder / FILE
    if file.exists():
        found = [Effect(**json.loads(line)) for line in file.read_text().splitlines()]
    with psycopg.connect(database_url, application_name="chaos") as connection:
        rows = connection.execute(_READ).fetchall()
    names = ("task", "token", "attempt", "pid", "at", "process")
    return found + [Effect(kind="fenced", **dict(zip(names, row, strict=True))) for row in rows]

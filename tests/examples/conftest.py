"""Examples as users start them: programs, on a database that DATABASE_URL names."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.docs.blocks import ROOT

EXAMPLES = ROOT / "examples"
DEADLINE_S = 60
GATE = 4711


class Program:
    """One run of an example."""

    def __init__(self, name: str, url: str, *args: object) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "SOKKA_", "PYTEST"))}
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, args)],
            env=kept | {"DATABASE_URL": url, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> str:
        """What it printed, once it has ended well."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        assert (self.process.returncode, err) == (0, "")
        return out

    def kill(self) -> None:
        """SIGKILL: it is told nothing."""
        self.process.kill()
        self.process.communicate()
        assert self.process.returncode == -9


@pytest.fixture
def start(db: str) -> Iterator[Callable[..., Program]]:
    """Starts an example on the test's database."""
    started: list[Program] = []

    def run(name: str, *args: object) -> Program:
        started.append(Program(name, db, *args))
        return started[-1]

    yield run
    for program in started:
        program.process.kill()
        program.process.communicate()


class Gate:
    """A row at which inserts into a table wait: so a program is met in the middle."""

    def __init__(self, holder: psycopg.Connection) -> None:
        self._holder = holder

    def close(self, table: str, condition: str) -> None:
        """Let inserts of rows that meet ``condition`` wait. The table must be there."""
        self._holder.execute(f"select pg_advisory_lock({GATE})")
        self._holder.execute(
            "create function at_the_gate() returns trigger language plpgsql as"
            f" $$ begin perform pg_advisory_xact_lock({GATE}); return new; end $$"
        )
        self._holder.execute(
            f"create trigger gate before insert on {table} for each row when ({condition})"
            " execute function at_the_gate()"
        )

    def reached(self) -> None:
        """Wait until somebody waits there."""
        waiting = (
            "select exists (select from pg_locks where locktype = 'advisory' and not granted"
            f" and objid = {GATE} and database ="
            " (select oid from pg_database where datname = current_database()))"
        )
        give_up_at = time.monotonic() + DEADLINE_S
        while self._holder.execute(waiting).fetchone() != (True,):
            assert time.monotonic() < give_up_at
            time.sleep(0.02)

    def open(self) -> None:
        self._holder.execute(f"select pg_advisory_unlock({GATE})")


@pytest.fixture
def gate(connect: Callable[..., psycopg.Connection]) -> Gate:
    return Gate(connect())

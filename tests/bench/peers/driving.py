"""One peer under measure: its database, its processes, what they say."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg

from tests.bench.host import Host
from tests.bench.peers.environments import Recipe, command

PATIENCE_S = 60.0


class PeerFailed(Exception):
    """A peer did not do what was asked; the text ends with its last words."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a process had done at a moment (nanoseconds of the monotonic clock)."""

    process: int
    kind: str
    number: int
    at_ns: int


class Driver:
    """Runs a peer's verbs, each in a process of its own, against one fresh database."""

    def __init__(self, host: Host, recipe: Recipe, cache: Path) -> None:
        self.host, self.recipe = host, recipe
        self._command, self._environment = command(recipe, cache)
        self.about: dict[str, Any] = self.ask("describe")
        self.name = str(self.about["name"])

    def prepare(self) -> None:
        """Let the peer make its schema, once; every measure gets a copy of it."""
        self._template = self.host.empty()
        self.ask("setup", self.host.tcp_url(self._template))

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A fresh database with the peer's schema in it."""
        name = self.host.empty(self._template)
        try:
            made = Database(self, name)
            try:
                yield made
            finally:
                made.close()
        finally:
            self.host.drop(name)

    def start(self, *words: object, told: bool = False) -> subprocess.Popen[str]:
        """A verb in a process of its own; ``told``: it begins when it is sent a line."""
        # What it says goes to a file: nobody reads a pipe of complaints.
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115  (the process outlives this call)
        process = subprocess.Popen(
            [*self._command, *map(str, words)], env=self._environment, text=True,
            stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            stdin=subprocess.PIPE if told else subprocess.DEVNULL,
        )  # fmt: skip
        process.log = log  # type: ignore[attr-defined]
        return process

    def ask(self, *words: object, patience_s: float = PATIENCE_S) -> Any:
        """The answer of a verb that ends by itself."""
        said = self.hear(self.start(*words), patience_s)
        return json.loads(said.strip().splitlines()[-1])

    def hear(self, process: subprocess.Popen[str], patience_s: float = PATIENCE_S) -> str:
        """All that a process says until it ends."""
        verb = cast(list[str], process.args)[len(self._command)]
        try:
            said, _ = process.communicate(timeout=patience_s)
            if process.returncode:
                raise PeerFailed(f"{verb}: {last_words(process)}")
            return said
        except subprocess.TimeoutExpired:
            end(process)
            raise PeerFailed(f"{verb}: not done after {patience_s:.0f} s") from None
        finally:
            cast(Any, process).log.close()


class Database:
    """A peer's own database on the bench's server."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self.name = driver, name
        self.url = driver.host.tcp_url(name)
        self._connection = psycopg.connect(self.url, autocommit=True)

    def ask(self, verb: str, *words: object, patience_s: float = PATIENCE_S) -> Any:
        return self.driver.ask(verb, self.url, *words, patience_s=patience_s)

    def remaining(self) -> int:
        row = self._connection.execute(str(self.driver.about["remaining"])).fetchone()
        assert row is not None
        return int(row[0])

    @contextmanager
    def old_snapshot(self) -> Iterator[None]:
        """Another session looks at the database, and stays in its transaction."""
        with psycopg.connect(self.url) as holder:
            holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            holder.execute("select count(*) from pg_class")
            yield

    @contextmanager
    def workers(self, count: int, slots: int, sleep_ms: float, echo: bool) -> Iterator[Listening]:
        verb = "echo" if echo else "work"
        listening = Listening(
            [self.driver.start(verb, self.url, slots, sleep_ms, told=True) for _ in range(count)]
        )
        try:
            listening.release()
            yield listening
        finally:
            listening.close()

    def close(self) -> None:
        self._connection.close()


class Listening:
    """Worker processes, and the marks that they print."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes
        self.marks: queue.SimpleQueue[Mark] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=(number, process), daemon=True)
            for number, process in enumerate(processes)
        ]
        for reader in self._readers:
            reader.start()

    def release(self) -> None:
        """Let them begin, all at once, when all have loaded what they need."""
        deadline = time.monotonic() + PATIENCE_S
        for _ in self._processes:
            if self.take(deadline) is None:
                raise PeerFailed("work: not ready")
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.close()

    def _read(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                words = line.split()
                if len(words) == 3 and words[0] in ("r", "h", "s"):
                    self.marks.put(Mark(number, words[0], int(words[1]), int(words[2])))

    def take(self, deadline: float) -> Mark | None:
        """The next mark; None when the time (of time.monotonic) is over."""
        while time.monotonic() < deadline:
            try:
                return self.marks.get(timeout=0.1)
            except queue.Empty:
                for process in self._processes:
                    if process.poll() is not None:
                        raise PeerFailed(f"work: {last_words(process)}") from None
        return None

    def close(self) -> None:
        for process in self._processes:
            end(process)
        for reader in self._readers:
            reader.join(5)
        for process in self._processes:
            cast(Any, process).log.close()


def end(process: subprocess.Popen[str]) -> None:
    """SIGTERM, and SIGKILL for what does not listen, and for what it left behind: some
    have children that outlive them."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(3)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def last_words(process: subprocess.Popen[str]) -> str:
    log = cast(Any, process).log
    log.seek(0)
    said = [line for line in log.read().splitlines() if line.strip()]
    return said[-1][:300] if said else f"ended with {process.returncode}"

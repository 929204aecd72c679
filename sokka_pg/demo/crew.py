"""The worker processes, seen from the demo: started, signalled, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sokka_pg.demo.journal import Lines
from sokka_pg.demo.process import ENDING_S, Orders
from sokka_pg.demo.table import Look
from sokka_pg.demo.telling import DemoFailed, HandView

SLOTS = 2
LEASE_S = 3.0
"""Short, so that nobody waits long for what a dead worker held."""
LOG_TAIL = 600


@dataclass(frozen=True, slots=True)
class Job:
    """What all workers are told."""

    database_url: str
    queue: str
    topic: str
    folder: Path


class Hand:
    """One worker process. ``pid`` is its identity in the queue, once it is ready."""

    def __init__(self, name: str, job: Job, hold_after: int | None = None) -> None:
        self.name, self.state, self.fate = name, "starting", "worked"
        self.pid: str | None = None
        self.refusals: list[dict[str, Any]] = []
        self._held: dict[str, int] = {}
        self._log = job.folder / f"{name}.log"
        journal = job.folder / f"{name}.jsonl"
        self._lines = Lines(journal)
        self.process = _spawn(name, job, self._log)
        self.order(Orders(name, str(journal), job.topic, SLOTS, LEASE_S, hold_after).line())

    def order(self, text: str) -> None:
        """Write to its standard input; it may read it later, or be dead."""
        with suppress(BrokenPipeError):
            self._input.write(text.encode())

    def begin(self) -> None:
        self.order("begin\n")
        self.state = "working"

    def read(self) -> None:
        """Take in what its journal says."""
        for line in self._lines.read():
            if line["what"] == "ready":
                self.pid = line["pid"]
            elif line["what"] == "held":
                self._held[line["task_id"]] = line["token"]
            else:
                self.refusals.append(line)

    def held(self, look: Look) -> dict[str, int]:
        """Tasks (with tokens) whose handlers wait before their write, under live leases."""
        live = look.leases.get(self.pid or "", {})
        return {task: token for task, token in self._held.items() if live.get(task) == token}

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self.state, self.fate = "killed (kill -9)", "killed"

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.state, self.fate = "frozen (SIGSTOP)", "frozen"

    def stopped(self) -> bool:
        """Whether the system says so, after ``freeze``."""
        pid, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)
        return pid != 0 and os.WIFSTOPPED(status)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.state = "woken, working"

    def must_live(self) -> None:
        """Raises ``DemoFailed`` when it ended by itself."""
        if self.fate == "killed" or self.process.poll() is None:
            return
        raise DemoFailed(
            f"worker {self.name} ended by itself, with exit code {self.process.returncode}; "
            f"its last words: {self.last_words()}"
        )

    def last_words(self) -> str:
        if not self._log.exists():
            return "none"
        return self._log.read_text(errors="replace")[-LOG_TAIL:].strip() or "none"

    def view(self, look: Look) -> HandView:
        mine = self.pid or ""
        return HandView(
            self.name, self.process.pid, self.state, look.rows.get(mine, 0),
            len(look.leases.get(mine, {})),
        )

    def end(self, kindly: bool) -> None:
        """End it: with its grace period, or at once. A frozen one is woken for that."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM if kindly else signal.SIGKILL)
            self.process.send_signal(signal.SIGCONT)
            try:
                self.process.wait(2 * ENDING_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        with suppress(BrokenPipeError):
            self._input.close()

    @property
    def _input(self) -> Any:
        return self.process.stdin


@contextmanager
def crew(names: dict[str, int | None], job: Job) -> Iterator[list[Hand]]:
    """Workers by name, each with the number of tasks after which it holds (None:
    never). At the end of the block they end, at once if it raised."""
    hands: list[Hand] = []
    kindly = False
    try:
        for name, hold_after in names.items():
            hands.append(Hand(name, job, hold_after))
        yield hands
        kindly = True
    finally:
        if kindly:
            for hand in hands:
                with suppress(ProcessLookupError):
                    hand.process.terminate()
        for hand in hands:
            hand.end(kindly)


def _spawn(name: str, job: Job, log: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, "SOKKA_DATABASE_URL": job.database_url, "SOKKA_SCHEMA": job.queue,
    }
    with log.open("ab") as errors:
        return subprocess.Popen(
            # -P: a file ast.py in the folder where the demo was called is not the library's
            [sys.executable, "-P", "-m", "sokka_pg.demo.process", name],
            stdin=subprocess.PIPE, stdout=errors, stderr=errors, bufsize=0, env=environment,
            # A group of its own, in the demo's session: Ctrl-C reaches the demo alone,
            # and should the demo vanish the kernel ends those that are frozen.
            process_group=0,
        )

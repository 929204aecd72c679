"""The workers of an act: processes of their own, started, paused, killed, started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from psycopg.conninfo import make_conninfo

from tests.faults.chaos import effects, recorder
from tests.faults.chaos.clock import monotonic_ns
from tests.faults.chaos.faults import Way
from tests.faults.chaos.parent import PARENT
from tests.faults.chaos.plan import Seat
from tests.faults.chaos.words import Life

ROOT = Path(__file__).parents[3]
TOPICS = "a:8,b:6"
CONCURRENCY = 10
GRACE_S = 2.0
LEFT_AFTER_S = 20.0
# desk, keeper, listener, housekeeping; both pools of a process; a child's for each slot
MOST_CONNECTIONS = 4 + 10 + 10 + CONCURRENCY


class Worker:
    """A seat of the crew and whoever sits on it now."""

    def __init__(
        self, seat: Seat, way: Way, folder: Path, lease_s: float, surroundings: Mapping[str, str]
    ) -> None:
        self.seat, self.variant, self.way = seat, seat.variant, way
        self.starts = 0
        self.lives: list[Life] = []
        self._folder, self._lease_s, self._surroundings = folder, lease_s, dict(surroundings)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """The owner of its leases: another one after each start."""
        return f"{self.seat.name}.{self.starts}"

    @property
    def application_name(self) -> str:
        return f"sokka_pg_{self.seat.name}"

    @property
    def os_pid(self) -> int | None:
        return None if self._process is None or self._seen_to_end() else self._process.pid

    @property
    def log(self) -> Path:
        return self._folder / "logs" / f"{self.seat.name}.log"

    @property
    def serves(self) -> bool:
        return self.log.exists() and f"worker {self.name} serves" in self.log.read_text(
            "utf-8", "replace"
        )

    def restart(self) -> None:
        """Start it, if it is down."""
        if self.os_pid is not None:
            return
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=ROOT, env=self._environment(), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )
        self.lives.append(
            Life(self.name, self.variant, self._process.pid, monotonic_ns())
        )

    def kill(self, *, group: bool = True) -> None:
        """SIGKILL, with its children or without, and wait. Children of a dead worker are
        to end by themselves."""
        if self._process is None or self.os_pid is None:
            return
        self.lives[-1].asked = True
        if group:
            self._signal(signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait(LEFT_AFTER_S)
        self._seen_to_end()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        """SIGTERM, to the worker alone: it ends its children itself."""
        if self.os_pid is not None:
            self.lives[-1].asked = True
            self.resume()
            assert self._process is not None
            self._process.terminate()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return self.os_pid is None

    def _signal(self, number: int) -> None:
        # To the group, which lives on while a child does, though its leader may be gone;
        # before the leader is waited for, so that the number is still its own.
        if self._process is not None and self.lives[-1].ended is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def orphans(self) -> list[int]:
        """Processes of its earlier starts that are still there."""
        gone = {life.os_pid: life.ended for life in self.lives if life.ended is not None}
        # a number may have been given again since
        return [pid for pid, group, began in groups() if began <= gone.get(group, -1)]

    def _seen_to_end(self) -> bool:
        """Whether it has ended; notes how, the first time."""
        assert self._process is not None
        code = self._process.poll()
        life = self.lives[-1]
        if code is not None and life.ended is None:
            life.ended, life.code = monotonic_ns(), code
        return code is not None

    def _command(self) -> list[str]:
        return [
            *self.way.prefix, sys.executable, "-m", "tests.faults.chaos.command", "worker",
            "--app", "tests.faults.chaos.handlers:app", "--topics", TOPICS,
            "--concurrency", str(CONCURRENCY), "--lease", f"{self._lease_s * 1000:.0f}ms",
            "--grace", f"{GRACE_S:g}s", "--poll", "500ms", "--startup", "1h", "--prefetch", "20",
            "--pid", self.name, *self.way.arguments,
        ]

    def _environment(self) -> dict[str, str]:
        url = make_conninfo(
            self.way.url(self.seat.role), application_name=self.application_name
        )
        return {
            **os.environ, "PYTHONPATH": str(ROOT), PARENT: str(os.getpid()), **self._surroundings,
            "SOKKA_DATABASE_URL": url, recorder.NAME: self.seat.name, recorder.PID: self.name,
            **self.way.environment,
        }


class Crew:
    """All workers of an act."""

    def __init__(
        self, folder: Path, lease_s: float, effects_url: str,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self.workers: list[Worker] = []
        self._folder, self._lease_s = folder, lease_s
        self._surroundings = {
            recorder.FOLDER: str(folder / "history"), effects.FOLDER: str(folder / "effects"),
            effects.DATABASE: effects_url, **(extra or {}),
        }

    def add(self, seat: Seat, way: Way) -> Worker:
        worker = Worker(seat, way, self._folder, self._lease_s, self._surroundings)
        self.workers.append(worker)
        return worker

    def start(self) -> None:
        for worker in self.workers:
            worker.restart()

    def replace_the_dead(self) -> None:
        """Start those again that ended unasked; their lives tell of it."""
        for worker in self.workers:
            if worker.lives and worker.os_pid is None and not worker.lives[-1].asked:
                worker.restart()

    def kill(self) -> None:
        """The end of all of them, however they stand."""
        for worker in self.workers:
            if worker.lives:
                with suppress(subprocess.TimeoutExpired):
                    worker.kill()
                for pid in worker.orphans():
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    @property
    def lives(self) -> list[Life]:
        return [life for worker in self.workers for life in worker.lives]

    def log_lines(self) -> dict[str, int]:
        return {
            worker.seat.name: worker.log.read_bytes().count(b"\n") if worker.log.exists() else 0
            for worker in self.workers
        }

    def serving(self) -> int:
        """How many of them say that they serve."""
        return sum(worker.serves for worker in self.workers)


def groups() -> list[tuple[int, int, int]]:
    """All processes, each with its process group, and when it began (ns of the monotonic
    clock)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # the name, in brackets, may hold anything
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z":
                    began = int(fields[19]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
                    found.append((int(entry.name), int(fields[2]), began))
    return found

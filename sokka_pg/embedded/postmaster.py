"""The process ``postgres``: started, signalled, waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from sokka_pg.embedded.account import Account

Mode = Literal["smart", "fast", "immediate"]

SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
GRACE_SECONDS = {"smart": 60.0, "fast": 60.0, "immediate": 15.0}
POLL_SECONDS = 0.005

# The account itself opens the log: root must not write through a path that an
# ordinary account owns. `exec` keeps the pid, so postgres is a direct child.
_CHILD = 'log=$1; shift; [ ! -f "$log" ] || mv -f "$log" "$log.1"; exec "$@" >"$log" 2>&1'
_DETACHED = (
    'log=$1; shift; [ ! -f "$log" ] || mv -f "$log" "$log.1"; "$@" >"$log" 2>&1 & echo $!'
)
# The end of its input is the end of the starter, kill -9 included; a line is a farewell.
_WATCH = 'read -r farewell || kill -INT "$1"'


class Postmaster:
    """A server process: a child of ours, or one that is known by its pid."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._child = child
        self._watch: subprocess.Popen[bytes] | None = None

    @classmethod
    def as_child(cls, account: Account, log: Path, argv: Sequence[str | Path]) -> Postmaster:
        """Start it as a direct child; it stops when this process ends, in any way."""
        child = subprocess.Popen(
            ["/bin/sh", "-c", _CHILD, "sh", str(log), *map(str, argv)],
            stdin=subprocess.DEVNULL, **account.child_options(),
        )
        postmaster = cls(child.pid, child)
        postmaster._watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(child.pid)],
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, **account.child_options(),
        )
        return postmaster

    @classmethod
    def detached(cls, account: Account, log: Path, argv: Sequence[str | Path]) -> Postmaster:
        """Start it so that it outlives this process and never becomes its zombie."""
        answer = account.run(["/bin/sh", "-c", _DETACHED, "sh", log, *argv])
        return cls(int(answer))

    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return process_lives(self.pid)

    def stop(self, mode: Mode) -> None:
        """Shut it down; after a minute without an end, more and more roughly."""
        for step in dict.fromkeys((mode, "immediate")):
            self._signal(SIGNALS[step])
            if self.wait(GRACE_SECONDS[step]):
                break
        else:
            self.kill()
        self._end_watch()

    def kill(self) -> None:
        """SIGKILL it and every process it has, as if the power had gone."""
        self._signal(signal.SIGSTOP)  # it can start no more children from here on
        family = children_of(self.pid)
        self._signal(signal.SIGKILL)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait(GRACE_SECONDS["immediate"])
        _wait_until(lambda: not any(map(process_lives, family)), GRACE_SECONDS["immediate"])
        self._end_watch()

    def wait(self, seconds: float) -> bool:
        """True when it has ended within that time."""
        return _wait_until(lambda: not self.alive(), seconds)

    def _signal(self, number: int) -> None:
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _end_watch(self) -> None:
        if self._watch is not None and self._watch.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._watch.stdin.write(b"\n")
                self._watch.stdin.close()
            self._watch.wait()
            self._watch = None


def _wait_until(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def process_lives(pid: int) -> bool:
    """True for a process that runs; a zombie has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    state = _stat_fields(pid)
    return not state or state[0] != "Z"


def children_of(pid: int) -> list[int]:
    """The pids of its direct children."""
    if Path("/proc/self/stat").exists():
        return [
            int(entry.name) for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _stat_fields(int(entry.name))[1:2] == [str(pid)]
        ]
    listing = subprocess.run(
        ["/bin/ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False,
    )
    pairs = (line.split() for line in listing.stdout.splitlines())
    return [int(pair[0]) for pair in pairs if pair[1:2] == [str(pid)]]


def _stat_fields(pid: int) -> list[str]:
    """State, parent and so on; the name before them may itself hold brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()

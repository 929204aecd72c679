"""The demo as its user runs it: the console entry in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
# A test that runs in the background of a shell has inherited that SIGINT is ignored.
ENTRY = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from sokka_pg.cli.main import run; run()"
)
DEADLINE_S = 180.0
_UNSET = {"HOME", "SOKKA_DATABASE_URL", "DATABASE_URL", "SOKKA_SCHEMA"}


class Demo:
    """A running ``sokka demo``, with no home, away from the checkout; its temporary
    files go to a folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.temporary = folder / "t"
        self.temporary.mkdir()
        self._out, self._err = folder / "out", folder / "err"
        self._family: list[psutil.Process] = []
        environment = {k: v for k, v in os.environ.items() if k not in _UNSET}
        environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", ENTRY, "demo", *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd="/", env=environment,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """Its standard error so far."""
        return self._err.read_text()

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(DEADLINE_S)

    def wait_for(self, words: str) -> None:
        """Until it says this on standard error."""
        until(lambda: words in self.said or self.process.poll() is not None, words)
        assert words in self.said, self.said

    def facts(self) -> dict[str, Any]:
        """What ``--json`` printed."""
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found

    def family(self) -> list[psutil.Process]:
        """Every process that it started and that lives now."""
        self._family = psutil.Process(self.process.pid).children(recursive=True)
        return self._family

    def end(self) -> None:
        """Whatever the test did, nothing of it goes on."""
        for process in [*self._family, *self._children()]:
            if process.is_running():
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)

    def _children(self) -> list[psutil.Process]:
        if self.process.poll() is not None:
            return []
        return psutil.Process(self.process.pid).children(recursive=True)


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until it holds; fail when it never does."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.02)


def lives(process: psutil.Process) -> bool:
    """Whether this very process runs; a zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

"""Workers in processes of their own, to be paused and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.faults import handlers
from tests.faults.waiting import until

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """``sokka worker`` on the handlers of ``tests.faults.handlers``."""

    def __init__(
        self, url: str, folder: Path, *arguments: str, name: str = "w",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_path = folder / f"{name}.log"
        self.notes_path = folder / "notes"
        surroundings = {
            **os.environ, "SOKKA_DATABASE_URL": url, "SOKKA_TEST_NOTES": str(self.notes_path),
            "PYTHONPATH": str(ROOT), **(environment or {}),
        }
        command = [sys.executable, "-m", "tests.faults.cli", "worker",
                   "--app", "tests.faults.handlers:app", *arguments]
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=surroundings, stdout=log, stderr=log,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def serving(self) -> WorkerProcess:
        """Wait until it reserves."""
        until(lambda: " serves " in self.log or self.process.poll() is not None, "a start")
        assert self.process.poll() is None, self.log
        return self

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)

    def wait(self) -> int:
        return self.process.wait(20)

    def noted(self, *words: str) -> list[list[str]]:
        """The notes that begin with these words."""
        found = handlers.notes(self.notes_path)
        return [line for line in found if line[: len(words)] == list(words)]

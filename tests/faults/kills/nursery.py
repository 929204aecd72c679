"""A process that has imported everything a worker needs, and forks workers.

A worker that is started as a command needs 0.7 s of a core until it serves, a fork 0.05 s:
1,000 starts would be most of the run. This process imports the
same modules, opens no connection, starts no thread and no event loop, and waits. A worker
is a fork of it in a session of its own that goes the whole way of the command `sokka worker`,
with the same words on its line; it differs from one that was started afresh in nothing that
the product could see but memory that it shares until it writes to it. What runs in child
processes (`process=True`) is started afresh, by the product itself.

It is told what to do by lines on its input: ``{"start": [words], "log": path}`` is answered
by the process id, ``{"wait": pid}`` by the exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[3]
_WANTED = (
    "multiprocessing.popen_spawn_posix", "multiprocessing.spawn", "psycopg", "psycopg_pool",
    "sokka_pg.observers", "sokka_pg.scheduler", "sokka_pg.worker",
    "tests.faults.cli", "tests.faults.kills.handlers",
)  # fmt: skip


class Nursery:
    """The other end: a ``with`` block in which workers can be had."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.kills.nursery"], cwd=ROOT,
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._lock = threading.Lock()

    def start(self, log: Path, *words: str) -> int:
        """The process id of a new worker."""
        return self._asked({"start": words, "log": str(log)})

    def wait(self, pid: int) -> int:
        """The exit code of a worker that ends, or was killed (then -9)."""
        return self._asked({"wait": pid})

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()

    def _asked(self, what: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


def serve() -> None:
    """Fork and wait, as asked, until the input ends."""
    _import_all()
    # what is there already is never looked at again, and so stays shared
    gc.freeze()
    assert threading.active_count() == 1
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            answer = os.fork()
            if not answer:
                _become(asked["start"], asked["log"])
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _import_all() -> None:
    for module in _WANTED:
        importlib.import_module(module)


def _become(words: list[str], log: str) -> NoReturn:
    """The worker. It never returns into the loop that forked it."""
    code = 70
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target, source in ((0, nothing), (1, written), (2, written)):
            os.dup2(source, target)
        sys.stdin, sys.stdout, sys.stderr = (
            open(fd, mode, buffering=1, closefd=False)  # noqa: SIM115
            for fd, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        from sokka_pg.cli.main import run

        sys.argv = ["sokka", *words]
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()

"""Child processes that use the launcher, driven line by line."""

from __future__ import annotations

import os
import pwd
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120.0

# Starts a server, says where it is, and leaves when told to.
USER = """
import sys
from pathlib import Path
from sokka_pg.embedded import Binaries, Server
folder, bin_dir, version, shared = sys.argv[1:5]
server = Server.start(
    folder, binaries=Binaries(Path(bin_dir), int(version), "test"), shared=shared == "shared"
)
print(server.pid, server.url(), flush=True)
sys.stdin.readline()
server.stop()
print("left", flush=True)
"""

# The interpreter itself may lie below root's closed home, so everything is
# imported before root steps down.
STEP_DOWN = """
import os, pwd, sys
import psycopg, encodings.idna
from psycopg import sql
from sokka_pg.embedded import Binaries, Server
try:
    psycopg.connect(host="/nowhere", connect_timeout=1)
except psycopg.OperationalError:
    pass
nobody = pwd.getpwnam("nobody")
os.setgroups([])
os.setgid(nobody.pw_gid)
os.setuid(nobody.pw_uid)
"""


class Child:
    """A Python process whose lines are read with a deadline."""

    def __init__(self, code: str, *arguments: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        self.pid = self._process.pid

    def line(self) -> str:
        """The next line it prints; an error when it ends or stays silent."""
        assert self._process.stdout is not None
        text, deadline = b"", time.monotonic() + DEADLINE_SECONDS
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], DEADLINE_SECONDS)
            byte = self._process.stdout.read(1) if ready else b""
            if not byte or time.monotonic() > deadline:
                raise AssertionError(f"the child said only {text!r}")
            text += byte
        return text.decode().strip()

    def server(self) -> tuple[int, str]:
        """The pid and URL that a ``USER`` tells."""
        pid, url = self.line().split(" ", 1)
        return int(pid), url

    def leave(self) -> None:
        """Let a ``USER`` leave, and see it end well."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        assert self.line() == "left"
        assert self._process.wait(DEADLINE_SECONDS) == 0

    def kill(self) -> None:
        """kill -9, as the kernel does when memory runs out."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        if self._process.poll() is None:
            self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def bystander(uid: int) -> Iterator[int]:
    """The pid of a process of that account that has nothing to do with PostgreSQL."""
    process = subprocess.Popen(
        ["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/",
        user=uid if os.geteuid() == 0 else None,
    )
    try:
        yield process.pid
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds; fail when it never does."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def nobody() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")

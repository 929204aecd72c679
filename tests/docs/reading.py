"""A reader who types a page's blocks, in order, in one folder and one database.

What is changed on the way, and nothing else:

- ``postgresql://localhost/shop``, and the command that starts a development server,
  stand for the database of the test; ``postgresql://localhost/archive`` for an empty
  one beside it;
- port 9464, where workers show their metrics, stands for a free one;
- the names of roles get an ending, for roles belong to the whole server;
- ``make`` only says what it would do (the tests are one of its targets);
- ``sokka worker`` runs beside what follows, until the page is at its end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from shlex import quote

from sokka_pg import embedded
from tests.docs.blocks import ROOT, Block

SHOP, ARCHIVE = "postgresql://localhost/shop", "postgresql://localhost/archive"
STARTED = "$(sokka pg start)"
METRICS_PORT = "9464"
DEADLINE_S = 90
_ROLES = re.compile(r"\bshop_(producer|worker|viewer|operator)\b")
_WORKER = re.compile(r"^sokka worker\b", re.MULTILINE)
_SHIMS = {
    "sokka": 'exec {python} -c "from sokka_pg.cli.main import run; run()" "$@"',
    "python": 'exec {python} "$@"',
    "alembic": 'exec {python} -m alembic "$@"',
    "make": 'exec {make} -n -C {root} "$@"',
}


class Reader:
    """Runs blocks; ``close`` ends what they left running, and tells how it ended."""

    def __init__(self, folder: Path, shop: str, archive: str) -> None:
        self.folder, self.shop, self.archive = folder, shop, archive
        self.ending = uuid.uuid4().hex[:8]
        self.port = _free_port()
        self.environment = self._own_environment()
        self.workers: list[subprocess.Popen[str]] = []
        self._session: subprocess.Popen[str] | None = None

    def read(self, block: Block) -> str:
        """Run one block; its output. Raises AssertionError if it does not do well."""
        text = self._as_typed(block.text)
        if block.file is not None:
            place = self.folder / block.file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            return ""
        if block.language == "text":
            return ""
        ways = {"python": self._python, "sql": self._sql, "bash": self._bash}
        assert block.language in ways, f"{block}: nothing runs this"
        return ways[block.language](block, text)

    def close(self) -> None:
        """Stop workers as an operator does (SIGTERM); each must end well."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        ends = []
        for worker in self.workers:
            try:
                said, _ = worker.communicate(timeout=DEADLINE_S)
                ends.append((worker.returncode, said))
            finally:
                worker.kill()
        self._close_session()
        for code, said in ends:
            assert code == 0, said

    def _own_environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("PG", "SOKKA_", "PYTEST")) and name != "DATABASE_URL"
        }  # fmt: skip
        shims = self.folder / "bin"
        shims.mkdir()
        for name, line in _SHIMS.items():
            line = line.format(
                python=quote(sys.executable), make=quote(shutil.which("make") or "make"),
                root=quote(str(ROOT)),
            )
            (shims / name).write_text(f"#!/bin/sh\n{line}\n")
            (shims / name).chmod(0o755)
        path = [str(shims), str(psql_folder()), kept.get("PATH", os.defpath)]
        return kept | {
            "PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "HOME": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

    def _as_typed(self, text: str) -> str:
        for placeholder, url in ((STARTED, self.shop), (SHOP, self.shop), (ARCHIVE, self.archive)):
            text = text.replace(placeholder, url)
            text = text.replace(_for_sqlalchemy(placeholder), _for_sqlalchemy(url))
        text = text.replace(METRICS_PORT, str(self.port))
        return _ROLES.sub(rf"\g<0>_{self.ending}", text)

    def _python(self, block: Block, text: str) -> str:
        if self._session is None:
            self._session = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("session.py"))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                cwd=self.folder, env=self.environment,
            )  # fmt: skip
        assert self._session.stdin is not None and self._session.stdout is not None
        job = {"code": text, "name": str(block), "environment": self.environment}
        self._session.stdin.write(json.dumps(job) + "\n")
        self._session.stdin.flush()
        # A block that waits for something in vain must not make the tests wait with it.
        late = threading.Timer(DEADLINE_S, self._session.kill)
        late.start()
        answer = json.loads(self._session.stdout.readline() or '{"error": "it took too long"}')
        late.cancel()
        assert answer["error"] is None, f"{block}\n{answer['error']}"
        return str(answer["output"])

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.communicate(timeout=DEADLINE_S)
            assert self._session.returncode == 0
            self._session = None

    def _sql(self, block: Block, text: str) -> str:
        options = ["-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=sqlstate" if block.refused else "n=0"]
        run = self._ran(["psql", "-X", "-q", *options, self.shop], block, text, check=False)
        if block.refused is None:
            assert run.returncode == 0, f"{block}\n{run.stderr}"
        else:
            assert run.returncode == 3, f"{block}\n{run.stdout}was not refused"
            assert run.stderr.strip().endswith(block.refused), f"{block}\n{run.stderr}"
        return run.stdout

    def _bash(self, block: Block, text: str) -> str:
        bare = re.search(r"[^\"']postgresql://localhost", block.text)
        assert bare is None, f"{block}: quote the URL, another one may hold an ampersand"
        if _WORKER.search(text):
            script = f"exec {text}"
            self.workers.append(subprocess.Popen(
                ["bash", "-c", script], cwd=self.folder, env=self.environment,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            ))  # fmt: skip
            return ""
        # What a block exports holds for those after it, as in one terminal.
        script = f"set -euo pipefail\n{text}\nenv -0 > \"$HOME/environment\"\n"
        run = self._ran(["bash", "-c", script], block, "")
        entries = (self.folder / "environment").read_text().split("\0")
        self.environment = dict(entry.partition("=")[::2] for entry in entries if entry)
        return run.stdout

    def _ran(
        self, command: list[str], block: Block, typed: str, *, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        run = subprocess.run(
            command, input=typed, cwd=self.folder, env=self.environment,
            capture_output=True, text=True, check=False, timeout=DEADLINE_S,
        )  # fmt: skip
        assert not check or run.returncode == 0, f"{block}\n{run.stdout}{run.stderr}"
        return run


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _for_sqlalchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def psql_folder() -> Path:
    """Where psql is: beside one of the servers that are found, or on PATH."""
    for binaries in embedded.all_binaries()[::-1]:
        if (binaries.bin_dir / "psql").is_file():
            return binaries.bin_dir
    found = shutil.which("psql")
    assert found is not None, "psql is needed: install PostgreSQL's client programs"
    return Path(found).parent

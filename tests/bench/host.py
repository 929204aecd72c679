"""The server that is measured, and what it has used up."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg

from sokka_pg import calls, embedded
from sokka_pg.bench import figures
from sokka_pg.bench.ground import BULK, Line
from sokka_pg.schema import DEFAULT
from tests.bench.payloads import payload
from tests.servers import load_newest

ROOT = Path(__file__).parents[2]

# Durable, and else as a server of this size would be set. No checkpoint falls into a
# run: it would hit one measure and spare the next.
SETTINGS = {
    "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "wal_level": "replica",
    "shared_buffers": "1GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h",
    "max_connections": "400", "autovacuum": "on", "timezone": "UTC",
}  # fmt: skip
_LIBRARIES = ("psycopg", "psycopg-binary", "psycopg-pool", "pydantic", "SQLAlchemy", "uvloop")


class Site:
    """A database of its own, with the schema in it."""

    def __init__(self, host: Host, name: str) -> None:
        self.host, self.name = host, name
        self.url = host.url(name)
        self.line = Line(self.url, DEFAULT)

    def ask(self, query: str, **values: Any) -> Any:
        """The first column of the first row."""
        return self.line.ask(query, values or None)

    def fill(
        self, topic: str, count: int, size: int = 100, kind: str = "no_op", **options: Any
    ) -> None:
        """Enqueue tasks with a payload of ``size`` bytes."""
        each = min(BULK, max(1, 4_000_000 // size))
        for first in range(0, count, each):
            specs = [
                {"topic": topic, "kind": kind, "data": payload(size, first + n), **options}
                for n in range(min(each, count - first))
            ]
            self.line.run(calls.create_tasks(specs))

    def close(self) -> None:
        self.line.close()


class Host:
    """The bench's own server, and databases on it."""

    def __init__(self, server: embedded.Server) -> None:
        self.server = server
        self._admin = psycopg.connect(server.url(), autocommit=True)
        self._made = 0
        self._admin.execute("create database bench_template template template0")
        load_newest(self.url("bench_template"))

    def url(self, database: str) -> str:
        return urlunsplit(urlsplit(self.server.url())._replace(path=f"/{database}"))

    def tcp_url(self, database: str) -> str:
        """Over loopback, for clients that know no sockets; holds the password."""
        return urlunsplit(urlsplit(self.server.url(tcp=True))._replace(path=f"/{database}"))

    @contextmanager
    def site(self) -> Iterator[Site]:
        """A fresh database, gone with the block."""
        self._made += 1
        name = f"bench_{self._made}"
        self._admin.execute(f"create database {name} template bench_template")
        site = Site(self, name)
        try:
            yield site
        finally:
            site.close()
            self._admin.execute(f"drop database {name} with (force)")

    def empty(self, template: str = "template0") -> str:
        """The name of a fresh database without our schema, for somebody else's."""
        self._made += 1
        name = f"bench_{self._made}"
        self._admin.execute(f"create database {name} template {template}")
        return name

    def drop(self, name: str) -> None:
        self._admin.execute(f"drop database {name} with (force)")

    def cpu_s(self) -> float:
        """Seconds of processor time of all the server's processes so far."""
        return tree_cpu_s(self.server.pid)

    def exact_cpu_s(self) -> float:
        """The same of the processes that live now, to the nanosecond: work of a few hundred
        microseconds at a time is not seen by a clock that ticks every ten milliseconds."""
        if not Path("/proc/self/schedstat").exists():
            return self.cpu_s()
        top = psutil.Process(self.server.pid)
        return sum(map(_scheduled_s, (top, *top.children(recursive=True))))

    def wal(self) -> Wal:
        """What was written to the log so far."""
        row = self._admin.execute("select wal_bytes, wal_fpi from pg_stat_wal").fetchone()
        lsn = self._admin.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None and lsn is not None
        return Wal(int(lsn[0]), int(row[1]))

    def connections(self, database: str) -> int:
        """Client connections to a database, without ours."""
        row = self._admin.execute(
            "select count(*) from pg_stat_activity where datname = %s"
            " and backend_type = 'client backend' and application_name <> 'sokka bench'",
            (database,),
        ).fetchone()
        assert row is not None
        return int(row[0])

    def environment(self, plan: dict[str, Any]) -> dict[str, Any]:
        found = figures.environment(self._admin, plan)
        changed = self._admin.execute(
            "select name, current_setting(name) from pg_settings"
            " where source = 'command line' and name !~ 'socket|port|directory|listen' order by 1"
        ).fetchall()
        return found | {
            "settings": dict(changed),
            "cpu": _cpu_name(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "kernel": platform.release(),
            "a_page_us": a_page_us(),
            "libraries": {name: _version(name) for name in _LIBRARIES},
            "commit": commit(),
        }

    def close(self) -> None:
        self._admin.close()


def a_page_us() -> dict[str, float]:
    """Microseconds to read a page of memory: at once, and when nobody has for a second.

    Some virtual machines are deprived of memory that rests (seen: 9 us a page after one
    second, 13 after three, and 0.01 at once). Whoever sleeps between two tasks pays for that,
    and figures of idle workers and pickups on such a machine are mostly its own."""
    pages = 2000
    memory = bytearray(b"x" * (4096 * pages))

    def read() -> float:
        begun = time.perf_counter()
        memory[::4096]
        return round((time.perf_counter() - begun) / pages * 1e6, 3)

    read()
    at_once = read()
    time.sleep(1)
    return {"at_once": at_once, "after_a_second": read()}


@dataclass(frozen=True, slots=True)
class Wal:
    """A position of the log: bytes, and full-page images among them."""

    bytes: int
    page_images: int


@contextmanager
def running(
    major: str | None = None, tcp: bool = False, **changed: str
) -> Iterator[Host]:
    """A durable server of this major version (default: the first found)."""
    binaries = embedded.find_binaries(major)
    listen = "127.0.0.1" if tcp else None
    with embedded.Server.temporary(
        binaries=binaries, settings=SETTINGS | changed, listen=listen
    ) as server:
        host = Host(server)
        try:
            yield host
        finally:
            host.close()


def _scheduled_s(process: psutil.Process) -> float:
    try:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0  # gone since


def tree_cpu_s(pid: int) -> float:
    """Processor time of a process, of its children, and of those it has waited for."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                spent = process.cpu_times()
                total += spent.user + spent.system
                total += spent.children_user + spent.children_system
    return total


def tree_rss(pid: int) -> int:
    """Bytes of memory that a process and its children hold."""
    total = 0
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


def commit() -> str:
    """The commit that is measured, with a mark when files differ from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return said.stdout.strip() or "unknown"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or os.uname().machine

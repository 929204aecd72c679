"""The PostgreSQL servers that the tests run on: every major that can be had.

In order of preference for a major: a server named by SOKKA_TEST_DATABASE_URL
(one or more URLs, separated by spaces; the role must be allowed to create
databases), binaries that the launcher finds, a container where a Docker daemon
answers. All processes of a test run share the launcher's servers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from sokka_pg import embedded, migrate, schema, settings
from sokka_pg.catalogue import VERSION_TABLE
from sokka_pg.embedded.account import unprivileged_account

URLS = "SOKKA_TEST_DATABASE_URL"
CONTAINER_MAJORS = (14, 18)  # oldest and newest supported, as in compose.yaml
# A crash of the machine may lose these servers; crashes of the server itself don't.
LAUNCH_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "timezone": "UTC",
}
FOLDERS = "skt"
LEFT_AFTER_S = 3600.0
MEMORY_WANTED = 6 * 1024**3


@dataclass(frozen=True)
class Source:
    """A major that can be had, and how to have it within a ``with``."""

    major: int
    origin: str
    running: Callable[[Path], Any]

    @property
    def name(self) -> str:
        return f"pg{self.major}"


class Server:
    """A running server on which a test makes databases of its own."""

    def __init__(self, major: int, url: str) -> None:
        self.major = major
        self._url = settings.normalise(url)
        self._admin = psycopg.connect(self._url, autocommit=True)

    def url(self, database: str) -> str:
        """Where to find one of the server's databases."""
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{database}"))

    def create(self, template: str = "template0") -> str:
        """Make a database, a copy of ``template``, and return its name."""
        name = f"sokka_test_{uuid.uuid4().hex}"
        # By the log, which is the default, it takes half as long again (22 ms).
        strategy = "strategy file_copy" if self.major >= 15 else ""
        self._admin.execute(f"create database {name} template {template} {strategy}")
        return name

    def drop(self, name: str) -> None:
        self._admin.execute(f"drop database if exists {name} with (force)")

    def template(self) -> str:
        """A database with the schema in it, made once per server and state of sql/."""
        return self._template

    @cached_property
    def _template(self) -> str:
        name = f"sokka_template_{_digest()}"
        with self._admin.transaction():
            self._admin.execute("select pg_advisory_xact_lock(5550001)")
            made = self._admin.execute(
                "select from pg_database where datname = %s", (name,)
            ).fetchone()
            if made is None:
                self._make_template(name)
        return name

    def _make_template(self, name: str) -> None:
        # Not the admin connection: it holds the lock in a transaction, and
        # CREATE DATABASE runs in none.
        draft = f"{name}_draft"
        with closing(psycopg.connect(self._url, autocommit=True)) as maker:
            maker.execute(f"drop database if exists {draft} with (force)")
            maker.execute(f"create database {draft} template template0")
            load_newest(self.url(draft))
            maker.execute(f"alter database {draft} rename to {name}")

    def close(self) -> None:
        self._admin.close()


def load_newest(url: str) -> None:
    """Load sql/ itself, and record it as the newest revision.

    A change of sql/ thus counts at once in every test; that the migrations lead
    to the same schema is for tests/migrations to prove.
    """
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        schema.load(connection, schema.DEFAULT)
        connection.execute(
            f"create table sokka.{VERSION_TABLE} (version_num varchar(32) not null"
            f" constraint {VERSION_TABLE}_pkc primary key)"
        )
        connection.execute(
            f"insert into sokka.{VERSION_TABLE} values (%s)", (migrate.revision("head"),)
        )


def find() -> list[Source]:
    """Every major that can be had, each once, oldest first."""
    found: dict[int, Source] = {}
    for source in (*_named(), *_launched(), *_contained()):
        found.setdefault(source.major, source)
    return [found[major] for major in sorted(found)]


def _named() -> Iterator[Source]:
    for url in os.environ.get(URLS, "").split():
        with closing(psycopg.connect(settings.normalise(url, URLS))) as connection:
            major = connection.info.server_version // 10000
        yield Source(major, URLS, _as_it_is(url))


def _as_it_is(url: str) -> Callable[[Path], Any]:
    @contextmanager
    def running(folder: Path) -> Iterator[str]:
        yield url

    return running


def _launched() -> Iterator[Source]:
    for binaries in embedded.all_binaries():
        yield Source(binaries.version, binaries.source, _launch(binaries))


def _launch(binaries: embedded.Binaries) -> Callable[[Path], Any]:
    @contextmanager
    def running(folder: Path) -> Iterator[str]:
        with embedded.Server.start(
            _data_folder(folder / f"pg{binaries.version}"),
            binaries=binaries,
            settings=LAUNCH_SETTINGS,
            shared=True,
        ) as server:
            yield server.url("postgres")

    return running


def _data_folder(place: Path) -> Path:
    """Where the cluster stands: right here, also as root, whose clusters stand elsewhere
    unless their account has a folder of its own."""
    data = place / "data"
    if os.getuid() == 0 and not data.exists():
        place.mkdir(parents=True, exist_ok=True)
        # The account passes through; what the run's folder holds stays unlisted.
        place.parent.chmod(0o711)
        account = unprivileged_account()
        made = Path(tempfile.mkdtemp(dir=place))
        os.chown(made, account.uid, account.gid)
        # In one step, since the processes of a run come here together.
        with suppress(OSError):
            made.rename(data)
    return data


def _contained() -> Iterator[Source]:
    if not _docker_answers():
        return
    for major in CONTAINER_MAJORS:
        yield Source(major, "container", _contain(major))


def _docker_answers() -> bool:
    if not (os.environ.get("DOCKER_HOST") or Path("/var/run/docker.sock").exists()):
        return False
    try:
        import docker

        with closing(docker.from_env(timeout=3)) as client:
            return bool(client.ping())
    except Exception:  # whatever goes wrong: no daemon to be had, and none is needed
        return False


def _contain(major: int) -> Callable[[Path], Any]:
    @contextmanager
    def running(folder: Path) -> Iterator[str]:
        # Imported late: its mere presence must not ask for a daemon.
        from testcontainers.community.postgres import PostgresContainer

        container = PostgresContainer(f"postgres:{major}", driver=None)
        options = " ".join(f"-c {name}={value}" for name, value in LAUNCH_SETTINGS.items())
        with container.with_command(f"postgres {options}"):
            yield container.get_connection_url()

    return running


def new_folder() -> Path:
    """A place for this run's clusters. What a killed run left is removed first."""
    base = _roomy_memory() or Path(tempfile.gettempdir())
    for left in base.glob(f"{FOLDERS}*"):
        with suppress(OSError):
            facts = left.stat()
            if facts.st_uid == os.getuid() and facts.st_mtime < time.time() - LEFT_AFTER_S:
                remove_clusters(left)
    # A short name: the servers' sockets lie below it.
    return base / f"{FOLDERS}{uuid.uuid4().hex[:8]}"


def _roomy_memory() -> Path | None:
    """A file system in memory, where there is one with room: most of a test's time is
    the files of its database (a whole run: 14 minutes on disk)."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK | os.X_OK):
        return None
    return shm if shutil.disk_usage(shm).free >= MEMORY_WANTED else None


def remove_clusters(folder: Path) -> None:
    """Remove the clusters of a run that has ended, unless somebody uses one of them."""
    for place in folder.glob("pg[0-9]*"):
        if embedded.end_dev_server(place) == "in use":
            return
        pointer = place / "data"
        if pointer.is_symlink():
            # As root the cluster stands in a folder of its own, below /var/tmp.
            shutil.rmtree(pointer.resolve().parent, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _digest() -> str:
    found = hashlib.sha256()
    for root in (schema.sql_root(), schema.migrations_root() / "versions"):
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]

"""The files of a cluster: made by initdb, read where a server must be found."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sokka_pg.embedded.place import Place
from sokka_pg.errors import DatabaseUnavailable, UsageError

SUPERUSER = "postgres"
SOCKET_PORT = 5432
# In the file, not on the command line: pg_rewind lets a crashed primary recover by
# itself first, and the checkpoint at its end removed the very WAL it then needed.
# The other one: with its default of 5 s, a promotion on 15 took 5.1 s instead of 0.1.
CONFIGURATION = "\nwal_keep_size = 128MB\nwal_retrieve_retry_interval = 100ms\n"
OURS = frozenset({
    "data_directory", "listen_addresses", "port",
    "unix_socket_directories", "unix_socket_permissions",
})


@dataclass(frozen=True, slots=True)
class Record:
    """What the running, or dead, server wrote to postmaster.pid."""

    pid: int
    started: str
    port: int
    socket_dir: Path

    def listening(self) -> bool:
        """True when a server accepts connections there: the only sign of life.

        The recorded pid proves nothing: after a container restart it may be
        any process.
        """
        return listening(self.socket_dir, self.port)


def major_version(data_dir: Path) -> int | None:
    """The major version that made the cluster; None where there is none yet."""
    try:
        text = (data_dir / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        return None
    if not text.isdigit():
        raise UsageError(f"PG_VERSION in {data_dir} names no version of PostgreSQL")
    return int(text)


def initialise(place: Place, bin_dir: Path) -> None:
    """Make the cluster unless it stands. A killed initdb leaves no half of one.

    Password-less entry is for the private socket alone; over TCP a password
    is asked. Checksums are on, so that pg_rewind works.
    """
    if major_version(place.data_dir) is not None:
        return
    in_place = place.data_dir.exists()
    target = place.data_dir if in_place else _sweep_and_name(place)
    place.account.run([
        bin_dir / "initdb", "-D", target, "-U", SUPERUSER, "--auth-local=trust",
        "--auth-host=scram-sha-256", "-k", "--locale=C", "--encoding=UTF8", "--no-instructions",
    ])
    place.account.run(
        ["/bin/sh", "-c", 'cat >>"$1"', "sh", target / "postgresql.conf"], input=CONFIGURATION
    )
    if not in_place:
        target.rename(place.data_dir)


def _sweep_and_name(place: Place) -> Path:
    prefix = place.data_dir.name + ".new-"
    for left in place.data_dir.parent.glob(f"{prefix}*"):
        place.account.run(["rm", "-rf", left])
    return place.data_dir.with_name(prefix + secrets.token_hex(4))


def options(settings: Mapping[str, str], socket_dir: Path, port: int, listen: str) -> list[str]:
    """The command line of the server: the caller's settings, then those that are ours."""
    for name in settings:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name):
            raise UsageError(f"settings: {name!r} is no name of a setting")
        if name.lower() in OURS:
            raise UsageError(f"settings: {name} is the launcher's own")
    chosen = {
        **settings,
        "listen_addresses": listen,
        "port": str(port),
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": "0700",
    }
    return [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]


def record(data_dir: Path) -> Record | None:
    """Read postmaster.pid. None when it is absent, empty or cut short."""
    try:
        with (data_dir / "postmaster.pid").open(errors="replace") as file:
            lines = file.read(4096).splitlines()
    except FileNotFoundError:
        return None
    with contextlib.suppress(ValueError, IndexError):
        return Record(int(lines[0]), lines[2].strip(), int(lines[3]), Path(lines[4].strip()))
    return None


def clear_traces_of_the_dead(place: Place, socket_dir: Path) -> None:
    """Remove what a dead server left, so that its reused pid does not stop a start.

    Call only after no server answered. PostgreSQL still guards the data by its
    shared memory, should one live that answers nowhere.
    """
    left = record(place.data_dir)
    if left is not None and runs_on(left.pid, place.data_dir):
        raise DatabaseUnavailable(
            f"a PostgreSQL server (pid {left.pid}) runs on {place.data_dir} "
            f"but does not answer in {left.socket_dir}; stop it first"
        )
    (place.data_dir / "postmaster.pid").unlink(missing_ok=True)
    for trace in socket_dir.glob(".s.PGSQL.*"):
        trace.unlink(missing_ok=True)


def runs_on(pid: int, data_dir: Path) -> bool:
    """True when the process is a server of this cluster, as far as /proc tells."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == data_dir
    except OSError:
        return False


def listening(socket_dir: Path, port: int) -> bool:
    """True when somebody accepts connections at this socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        try:
            client.connect(str(socket_dir / f".s.PGSQL.{port}"))
        except (OSError, ValueError):
            return False
    return True


def url(socket_dir: Path, port: int, database: str) -> str:
    """The URL of a database, by the socket."""
    folder, name = quote(str(socket_dir), safe="/"), quote(database, safe="")
    return f"postgresql://{SUPERUSER}@/{name}?host={folder}&port={port}"


def free_port(address: str) -> int:
    """A TCP port that nobody listens on at this moment."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as holder:
        holder.bind((address, 0))
        return int(holder.getsockname()[1])

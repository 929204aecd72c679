"""A second server that follows the first, for tests of failover."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from sokka_pg.embedded import cluster
from sokka_pg.embedded.place import Place
from sokka_pg.errors import DatabaseUnavailable, UsageError

if TYPE_CHECKING:
    import psycopg

PROMOTE_SECONDS = 60


def copy(programs: Path, socket_dir: Path, port: int, place: Place) -> None:
    """Copy a running server to ``place``, set up to stream from it."""
    if cluster.major_version(place.data_dir) is not None:
        raise UsageError(f"{place.data_dir} already holds a cluster; name an empty folder")
    in_place = place.data_dir.exists()
    beside = place.data_dir.with_name(f"{place.data_dir.name}.new-{secrets.token_hex(4)}")
    target = place.data_dir if in_place else beside
    place.account.run([
        _program(programs, "pg_basebackup"), "-D", target, "-R", "-X", "stream",
        "--checkpoint=fast", "--no-password", "-d", _source(socket_dir, port),
    ])
    if not in_place:
        target.rename(place.data_dir)


def promote(connection: psycopg.Connection) -> None:
    """Raises ``DatabaseUnavailable`` when the promotion takes over a minute."""
    row = connection.execute(
        "select pg_is_in_recovery(), pg_is_in_recovery() and pg_promote(true, %s)",
        (PROMOTE_SECONDS,),
    ).fetchone()
    if row is None or not row[0]:
        raise UsageError("promote: this server is no standby")
    if not row[1]:
        raise DatabaseUnavailable(f"the standby was not promoted in {PROMOTE_SECONDS} seconds")


def rewind(programs: Path, socket_dir: Path, port: int, place: Place) -> None:
    """Undo what the source never saw, and set the cluster up to stream from it."""
    place.account.run([
        _program(programs, "pg_rewind"), "-D", place.data_dir, "-R",
        f"--source-server={_source(socket_dir, port)} dbname=postgres",
    ])


def _source(socket_dir: Path, port: int) -> str:
    return f"host={socket_dir} port={port} user={cluster.SUPERUSER}"


def _program(programs: Path, name: str) -> Path:
    path = programs / name
    if not path.is_file():
        raise UsageError(f"these PostgreSQL binaries came without {name}: {programs}")
    return path

"""Is it up? Answered by connecting, nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from sokka_pg.embedded.cluster import SUPERUSER, listening
from sokka_pg.embedded.postmaster import Postmaster
from sokka_pg.errors import DatabaseUnavailable, UsageError

if TYPE_CHECKING:
    import psycopg

READY_SECONDS = 120.0
"""Longest wait for a first connection; recovery after a crash is in it."""
# Refusals that pass. Our clusters speak English: initdb ran with LC_ALL=C.
PASSING_REFUSALS = ("the database system is", "too many clients", "remaining connection slots")


def connect(socket_dir: Path, port: int) -> psycopg.Connection:
    """A connection of the superuser, in autocommit. Raises psycopg's errors."""
    try:
        import psycopg
    except ImportError as error:
        raise UsageError(
            "the embedded server needs psycopg with libpq: pip install 'sokka-pg[embedded]'"
        ) from error
    return psycopg.connect(
        host=str(socket_dir), port=port, user=SUPERUSER, dbname="postgres",
        autocommit=True, connect_timeout=10, application_name="sokka embedded",
        # Named, so that the caller's PGOPTIONS and the like don't reach this connection.
        options="", target_session_attrs="any", channel_binding="prefer",
    )


def wait_until_ready(postmaster: Postmaster, socket_dir: Path, port: int) -> str | None:
    """None once it answers; the trouble when the process ends first.

    Raises ``DatabaseUnavailable`` when it lives but does not answer in time.
    """
    deadline = time.monotonic() + READY_SECONDS
    trouble = "it ended before it answered"
    while postmaster.alive():
        if listening(socket_dir, port):
            refusal = _refusal(socket_dir, port)
            if refusal is None:
                return None
            trouble = refusal
            if "FATAL" in refusal and not any(word in refusal for word in PASSING_REFUSALS):
                raise DatabaseUnavailable(f"the server refuses its superuser: {refusal}")
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(
                f"the server did not answer within {READY_SECONDS:.0f} seconds: {trouble}"
            )
        time.sleep(0.005)
    return trouble


def _refusal(socket_dir: Path, port: int) -> str | None:
    import psycopg

    try:
        connect(socket_dir, port).close()
    except psycopg.OperationalError as error:
        return str(error).strip().replace("\n", " | ")
    return None


def set_password(connection: psycopg.Connection, password: str) -> None:
    """Give the superuser a password. Only its verifier reaches the server, and its log."""
    from psycopg import sql

    connection.execute("set password_encryption = 'scram-sha-256'")
    verifier = connection.pgconn.encrypt_password(
        password.encode(), SUPERUSER.encode(), b"scram-sha-256"
    )
    connection.execute(  # a utility statement takes no bound parameter
        sql.SQL("alter role {} password {}").format(
            sql.Identifier(SUPERUSER), sql.Literal(verifier.decode())
        )
    )

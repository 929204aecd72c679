"""How our own connections are made.

They are in autocommit, so that a call is one round trip and one commit, and
their sessions are set up once, at connect: READ COMMITTED whatever the role's
default, UTC, keep-alives, a bound on idling inside a transaction. Behind a
pooler in transaction mode a session cannot be set up: there each call runs in
an explicit READ COMMITTED transaction.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, IsolationLevel

from sokka_pg.errors import BadArgument
from sokka_pg.translate import checked_conninfo

_KEEPALIVE = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    # Milliseconds; without it a write into a dead network waits about 15 minutes.
    "tcp_user_timeout": 30_000,
}


@dataclass(frozen=True)
class ConnectionOptions:
    """How a store's own connections are made and pooled."""

    max_size: int = 10
    """Connections at most, per process (and event loop)."""
    wait: timedelta = timedelta(seconds=10)
    """How long a call waits for a free connection, then DatabaseUnavailable."""
    pooler: bool = False
    """True behind a transaction-mode pooler such as PgBouncer."""
    prepare_threshold: int | None = 5
    """Uses of a statement before it is prepared; None: never. Ignored behind a pooler."""
    idle_in_transaction: timedelta = timedelta(seconds=60)
    """The server ends a connection of ours that idles inside a transaction for longer."""
    application_name: str = "sokka_pg"

    def __post_init__(self) -> None:
        if isinstance(self.max_size, bool) or not 1 <= self.max_size <= 1_000:
            raise BadArgument.of("max_size", "must be from 1 to 1000")
        for argument in ("wait", "idle_in_transaction"):
            value = getattr(self, argument)
            if not isinstance(value, timedelta) or value <= timedelta(0):
                raise BadArgument.of(argument, "must be a timedelta longer than 0", value)


def connect_arguments(database_url: str, options: ConnectionOptions) -> dict[str, Any]:
    """What ``psycopg.connect`` is given. The URL's own settings win over ours,
    except the isolation, zone and date style that our reading of answers rests on."""
    given = checked_conninfo(database_url)
    found = {"fallback_application_name": options.application_name, **_KEEPALIVE, **given}
    if "connect_timeout" not in given and "PGCONNECT_TIMEOUT" in os.environ:
        del found["connect_timeout"]
    found["client_encoding"] = "utf-8"
    if not options.pooler:
        idle_ms = options.idle_in_transaction // timedelta(milliseconds=1)
        found["options"] = " ".join(
            (
                f"-c idle_in_transaction_session_timeout={idle_ms}",
                str(given.get("options") or os.environ.get("PGOPTIONS", "")),
                r"-c default_transaction_isolation=read\ committed",
                "-c timezone=UTC -c datestyle=ISO",
            )
        )
    found["prepare_threshold"] = None if options.pooler else options.prepare_threshold
    found["autocommit"] = True
    return found


# PGTZ and PGDATESTYLE in the environment override what a connection asks for.
_READING = "set timezone to 'UTC'; set datestyle to 'ISO'"


def set_up(connection: Connection[Any], options: ConnectionOptions) -> None:
    """What is left to say on a new connection; as a rule without a round trip."""
    if not options.pooler and _reads_otherwise(connection):
        connection.execute(_READING)
    # For transactions that are opened explicitly; single calls go by the session's default.
    connection.isolation_level = IsolationLevel.READ_COMMITTED


async def set_up_async(connection: AsyncConnection[Any], options: ConnectionOptions) -> None:
    """The async twin of ``set_up``."""
    if not options.pooler and _reads_otherwise(connection):
        await connection.execute(_READING)
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


def _reads_otherwise(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    said = connection.info.parameter_status
    return said("TimeZone") != "UTC" or not (said("DateStyle") or "").startswith("ISO")


def still_there(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether an idle connection was not closed by the server. No round trip:
    it reads what the server may have said (a farewell, then the end of file)."""
    if connection.closed:
        return False
    try:
        connection.pgconn.consume_input()
        connection.pgconn.is_busy()
        connection.pgconn.consume_input()
    except psycopg.Error:
        connection.pgconn.finish()
        return False
    return not connection.closed

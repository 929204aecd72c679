"""A primary and a streaming standby that change places."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sokka_pg.embedded import Binaries, Server
from tests.faults.waiting import until

NAMES = ("one", "two")  # FIRST is a word of synchronous_standby_names
LISTEN = "127.0.0.1"
CAUGHT_UP_S = 60.0

_CAUGHT_UP = """
    select pid from pg_stat_replication
     where state = 'streaming' and replay_lsn >= %(now)s::pg_lsn
       and (%(sync)s::text is null or sync_state = %(sync)s)"""
_RECEIVER = "select pid from pg_stat_activity where backend_type = 'walreceiver'"


@contextmanager
def pair(
    binaries: Binaries | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Server, Server]]:
    """A primary, and a standby that streams from it asynchronously.

    Each is known to the other by its cluster_name. ``make_synchronous`` does the rest.
    """
    first, second = ({**(settings or {}), "cluster_name": name} for name in NAMES)
    with (
        Server.temporary(binaries=binaries, settings=first, listen=LISTEN) as primary,
        primary.base_backup(settings=second, listen=LISTEN) as standby,
    ):
        caught_up(primary)
        yield primary, standby


def admin(server: Server, database: str = "postgres") -> psycopg.Connection[Any]:
    """A session of the harness, which no fault touches."""
    return psycopg.connect(
        server.url(database), autocommit=True, application_name="chaos", connect_timeout=10
    )


def either(urls: Sequence[str], database: str) -> str:
    """A URL for whichever of them takes writes. The login is that of the first."""
    parts = [conninfo_to_dict(url) for url in urls]
    common: dict[str, Any] = {
        name: value for name, value in parts[0].items()
        if name not in ("host", "hostaddr", "port", "dbname")
    }
    return make_conninfo(
        host=",".join(str(part["host"]) for part in parts),
        port=",".join(str(part.get("port", 5432)) for part in parts),
        dbname=database, target_session_attrs="read-write", **common,
    )


def caught_up(primary: Server, sync_state: str | None = None) -> None:
    """Wait until the standby has replayed what the primary has now."""
    with admin(primary) as asking:
        now = asking.execute("select pg_current_wal_flush_lsn()").fetchone()
        assert now is not None
        wanted = {"now": now[0], "sync": sync_state}
        until(
            lambda: asking.execute(_CAUGHT_UP, wanted).fetchone(),
            "a standby that has caught up", CAUGHT_UP_S,
        )


def make_synchronous(primary: Server, standby: Server) -> None:
    """From now on no commit is answered that the standby has not flushed."""
    with admin(standby) as asking:
        row = asking.execute("show cluster_name").fetchone()
    assert row is not None
    _name_synchronous(primary, str(row[0]))
    caught_up(primary, "sync")


def make_asynchronous(server: Server) -> None:
    """Let it answer commits alone. On a standby: for the time when it is promoted."""
    _name_synchronous(server, "")


def _name_synchronous(server: Server, name: str) -> None:
    # By ALTER SYSTEM, which a standby takes, too. pg_rewind copies the file on the way
    # back; a name that a standby has does nothing until it is promoted.
    with admin(server) as asking:
        asking.execute(f"alter system set synchronous_standby_names = '{name}'")
        asking.execute("select pg_reload_conf()")
        until(
            lambda: asking.execute("show synchronous_standby_names").fetchone() == (name,),
            "the new setting",
        )


class Receiver:
    """The standby's process that receives the log, to be held up.

    While it stands still the primary goes on: what it commits is nowhere else. What it
    has already sent lies in the socket and would be taken from there later, so a receiver
    of a dead primary is ended before it runs again.
    """

    def __init__(self, standby: Server) -> None:
        with admin(standby) as asking:
            rows = until(lambda: asking.execute(_RECEIVER).fetchall(), "a walreceiver")
        self.pid = int(rows[0][0])

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            os.kill(self.pid, signal.SIGCONT)

    def go_on(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

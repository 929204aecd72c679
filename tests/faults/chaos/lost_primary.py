"""What a primary that was killed had committed, read from its files.

Its log is read where it lies. Its tables are read from a copy that is started alone, with
no way in but a private socket, and thrown away: the primary itself stays as it died.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from sokka_pg.embedded import Server
from tests.faults.chaos import accounting
from tests.faults.chaos.judging import witness
from tests.faults.chaos.pair import admin
from tests.faults.chaos.words import Change

_KEYS = "select pos, at, xid from chaos.changes"
_OF_SAME_ROWS = """
    select pos from chaos.changes
     where coalesce(new, old) ->> 'id' in (
           select coalesce(new, old) ->> 'id' from chaos.changes where pos = any(%s))"""
_TIMELINE = "select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
# It is read once. What it commits to by itself must not matter, and it must never wait for
# a standby that follows somebody else by now.
_ALONE = {
    "fsync": "off", "autovacuum": "off", "synchronous_standby_names": "",
    "default_transaction_read_only": "on", "primary_conninfo": "", "cluster_name": "alone",
}


def switch_of(promoted: Server) -> accounting.Switch:
    """Where the promoted server left the old primary's timeline."""
    with admin(promoted) as asking:
        row = asking.execute(_TIMELINE).fetchone()
    assert row is not None
    file = accounting.history_file(int(row[0], 16))
    return accounting.switches((promoted.data_dir / "pg_wal" / file).read_text())[-1]


def commits_of(dead: Server, timeline: int) -> dict[str, str]:
    """xid -> LSN of every commit in the log that a server which is down still has."""
    log = dead.data_dir / "pg_wal"
    start = accounting.first_segment(
        (file.name for file in log.iterdir()), timeline, _segment_bytes(log)
    )
    if start is None:
        return {}
    done = subprocess.run(
        [dead.bin_dir / "pg_waldump", "--path", log, "--timeline", str(timeline),
         "--start", start, "--rmgr", "Transaction"],
        capture_output=True, text=True, errors="replace", timeout=120, check=False,
    )
    if not accounting.ended_well(done.stderr):
        raise RuntimeError(f"pg_waldump: {done.stderr.strip()[-500:]}")
    return accounting.commits(done.stdout)


def _segment_bytes(log: Path) -> int:
    return max(file.stat().st_size for file in log.iterdir() if len(file.name) == 24)


@contextmanager
def alone(dead: Server) -> Iterator[Server]:
    """A copy of a server that is down, started by itself."""
    folder = Path(tempfile.mkdtemp(prefix="sokka-alone-"))
    facts = dead.data_dir.stat()
    try:
        if os.getuid() == 0:
            os.chown(folder, facts.st_uid, facts.st_gid)
        subprocess.run(
            ["cp", "-a", "--reflink=auto", dead.data_dir, folder / "data"],
            check=True, timeout=300, capture_output=True,
        )
        for trace in ("postmaster.pid", "standby.signal", "recovery.signal"):
            (folder / "data" / trace).unlink(missing_ok=True)
        with Server.start(folder / "data", settings=_ALONE) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keys(connection: psycopg.Connection) -> list[accounting.Key]:
    """What tells the witness's rows from one another, for all of them."""
    return [
        accounting.key(pos, at, xid) for pos, at, xid in connection.execute(_KEYS).fetchall()
    ]


def changes(
    connection: psycopg.Connection, positions: Sequence[int]
) -> list[Change]:
    """The witness's rows at these positions, whole. It writes of a row only what is new, so
    all changes of the rows concerned are read."""
    if not positions:
        return []
    concerned = [pos for (pos,) in connection.execute(_OF_SAME_ROWS, (list(positions),))]
    wanted = set(positions)
    return [each for each in witness.read(connection, concerned) if each.pos in wanted]

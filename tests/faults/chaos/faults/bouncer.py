"""A PgBouncer in transaction mode, started for an act."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from sokka_pg.lease_keeper import shut
from tests.faults import programs
from tests.faults.waiting import until

_PORT = 6432


class Bouncer:
    """Before the database of ``url_of(role)``, for each of these roles by a name of its own."""

    def __init__(self, urls: dict[str, str], pool: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="skb"))  # short: the socket lies in it
        first = next(iter(urls.values()))
        account = self._account(first)
        self._configure(urls, pool)
        program = programs.find("pgbouncer")
        assert program is not None
        self._process = subprocess.Popen(
            [program, "-q", str(self.folder / "pgbouncer.ini")], cwd="/",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            **account,
        )
        try:
            until(self._listens, "PgBouncer")
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def url(self, role: str) -> str:
        """For the product."""
        return make_conninfo(host=str(self.folder), port=_PORT, dbname=role, user=role)

    async def say(self, command: str) -> Sequence[dict[str, Any]]:
        """A command of its console; the rows that it shows."""
        async with asyncio.timeout(20):
            console = await self._console()
            try:
                cursor = await console.execute(command.encode())
                return await cursor.fetchall() if cursor.description else []
            finally:
                await console.close()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No new transaction begins. PAUSE itself is answered when all open ones are over,
        which may be later than this block's end."""
        console = await self._console()
        going = asyncio.create_task(console.execute(b"pause"))
        try:
            yield
        finally:
            await self.say("resume")
            if not going.done():
                # asked to cancel, the console says nothing, and psycopg waits for it for 5 s
                shut(console)
            await asyncio.gather(going, return_exceptions=True)
            await console.close()

    async def _console(self) -> AsyncConnection[dict[str, Any]]:
        url = make_conninfo(host=str(self.folder), port=_PORT, dbname="pgbouncer", user="anybody")
        # no statement is prepared: the console speaks only the simple protocol
        return await AsyncConnection.connect(
            url, autocommit=True, prepare_threshold=None, row_factory=dict_row
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"PgBouncer ended: {self.log}")
        return (self.folder / f".s.PGSQL.{_PORT}").exists()

    def _account(self, url: str) -> dict[str, Any]:
        """Who runs it: not root, which it refuses, but whoever may use the server's socket."""
        if os.geteuid() != 0:
            return {}
        host = Path(str(conninfo_to_dict(url).get("host", "")))
        facts = host.stat() if host.is_absolute() else None
        uid, gid = (facts.st_uid, facts.st_gid) if facts and facts.st_uid else (65534, 65534)
        os.chown(self.folder, uid, gid)
        return {"user": uid, "group": gid, "extra_groups": []}

    def _configure(self, urls: dict[str, str], pool: int) -> None:
        names = ("host", "port", "dbname", "user", "password")
        targets = []
        for role, url in urls.items():
            parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
            target = make_conninfo(**{name: parts[name] for name in names if name in parts})
            targets.append(f"{role} = {target}\n")
        file = self.folder / "pgbouncer.ini"
        file.write_text(
            f"[databases]\n{''.join(targets)}"
            "[pgbouncer]\npool_mode = transaction\nauth_type = any\nadmin_users = anybody\n"
            f"listen_addr =\nlisten_port = {_PORT}\nunix_socket_dir = {self.folder}\n"
            f"logfile = {self.folder}/log\nverbose = 0\ndefault_pool_size = {pool}\n"
            "max_client_conn = 200\nserver_idle_timeout = 2\n"
            "server_login_retry = 1\nserver_connect_timeout = 5\n"
        )
        facts = self.folder.stat()
        os.chown(file, facts.st_uid, facts.st_gid)

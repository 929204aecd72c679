"""Behind PgBouncer in transaction mode: a real one, with fewer connections than callers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sokka_pg import Sokka, TaskContext, WorkerOptions
from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import UsageError
from sokka_pg.events import Reconnected
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore
from tests.faults import auditing, programs
from tests.faults.processes import WorkerProcess
from tests.faults.waiting import Seen, until, until_async

POOL, CALLERS, EACH = 4, 16, 10
THROUGH = ConnectionOptions(pooler=True, max_size=CALLERS)
_PORT = 6432


@pytest.fixture
def pooled(db: str) -> Iterator[str]:
    """A URL that leads through PgBouncer to the test's database."""
    folder = Path(tempfile.mkdtemp(prefix="skb"))  # short: the socket lies in it
    try:
        account = _may_reach(db, folder)
        config = _configured(db, folder)
        bouncer = programs.find("pgbouncer")
        assert bouncer is not None
        process = subprocess.Popen(
            [bouncer, "-q", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", start_new_session=True, **account,
        )
        try:
            until(
                lambda: (folder / f".s.PGSQL.{_PORT}").exists() or process.poll() is not None,
                "PgBouncer",
            )
            assert process.poll() is None, (folder / "log").read_text()
            yield make_conninfo(host=str(folder), port=_PORT, dbname="pooled", user="anybody")
        finally:
            process.kill()
            process.wait(20)
    finally:
        shutil.rmtree(folder)


def _may_reach(db: str, folder: Path) -> dict[str, int | list[int]]:
    """Who runs it: not root, which it refuses, but whoever may use the server's socket."""
    if os.geteuid() != 0:
        return {}
    host = Path(str(conninfo_to_dict(db).get("host", "")))
    facts = host.stat() if host.is_absolute() else None
    uid, gid = (facts.st_uid, facts.st_gid) if facts and facts.st_uid else (65534, 65534)
    os.chown(folder, uid, gid)
    return {"user": uid, "group": gid, "extra_groups": []}


def _configured(db: str, folder: Path) -> Path:
    names = ("host", "port", "dbname", "user", "password")
    target = {name: value for name, value in conninfo_to_dict(db).items() if name in names}
    file = folder / "pgbouncer.ini"
    file.write_text(
        f"[databases]\npooled = {make_conninfo(**target)}\n"  # type: ignore[arg-type]
        "[pgbouncer]\npool_mode = transaction\nauth_type = any\nlisten_addr =\n"
        f"listen_port = {_PORT}\nunix_socket_dir = {folder}\nlogfile = {folder}/log\n"
        f"default_pool_size = {POOL}\nmax_db_connections = {POOL}\nmax_client_conn = 200\n"
    )
    if os.geteuid() == 0:
        facts = folder.stat()
        os.chown(file, facts.st_uid, facts.st_gid)
    return file


async def test_more_callers_than_connections_all_work_and_each_task_ends_once(
    pooled: str, conn: psycopg.Connection
) -> None:
    seen, ran = Seen(), [0] * (CALLERS * EACH)
    app = Sokka(pooled, connections=THROUGH, observers=[seen])

    @app.task(topic="t")
    async def count(ctx: TaskContext, n: int) -> int:
        await ctx.progress({"n": n})
        await ctx.checkpoint({"n": n})
        ran[n] += 1
        async with ctx.transaction() as transaction:
            await transaction.connection.execute("insert into counted values (%s)", (n,))
        return n

    conn.execute("create table counted (n int)")
    workers = [
        app.worker("t:8", options=WorkerOptions(poll=0.1, lease=10, grace=0)) for _ in range(2)
    ]
    runs = [asyncio.create_task(worker.run()) for worker in workers]

    def enqueue(caller: int) -> None:
        for n in range(caller * EACH, (caller + 1) * EACH):
            count.enqueue(n)

    with ThreadPoolExecutor(CALLERS) as callers:
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(loop.run_in_executor(callers, enqueue, caller) for caller in range(CALLERS))
        )
    await until_async(
        lambda: auditing.endings(conn) == {"terminated": CALLERS * EACH}, "the end of all"
    )
    for worker in workers:
        worker.stop(now=True)
    await asyncio.gather(*runs)
    app.store.close()
    await app.async_store.close()
    assert ran == [1] * (CALLERS * EACH)
    assert conn.execute("select count(*), count(distinct n) from counted").fetchone() == (
        CALLERS * EACH, CALLERS * EACH,
    )
    assert not seen.all(Reconnected, part="listener"), "LISTEN belongs to no pooled session"
    auditing.check_records(conn)
    auditing.check_leases(conn)


def test_a_worker_process_is_told_of_the_pooler_by_an_option(
    pooled: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    with PgTaskStore(pooled, options=THROUGH) as store:
        store.create_task("t", kind="quick")
        worker = WorkerProcess(pooled, tmp_path, "--topics", "t", "--pooler")
        try:
            until(lambda: auditing.endings(conn) == {"terminated": 1}, "the end")
            worker.process.terminate()
            assert worker.wait() == 0
        finally:
            worker.kill()


async def test_a_store_that_was_not_told_of_the_pooler_says_what_to_do(pooled: str) -> None:
    with PgTaskStore(pooled) as store, pytest.raises(UsageError, match="pooler=True"):
        store.create_task("t")
    async with AsyncPgTaskStore(pooled) as other:
        with pytest.raises(UsageError, match="pooler=True"):
            await other.create_task("t")


async def test_a_worker_that_was_not_told_of_the_pooler_says_what_to_do(pooled: str) -> None:
    app = Sokka(pooled)

    @app.task(topic="t")
    async def quick() -> None: ...

    with pytest.raises(UsageError, match="pooler=True"):
        await app.worker("t").run()


def test_the_command_without_its_option_ends_at_once_with_one_line(
    pooled: str, tmp_path: Path
) -> None:
    worker = WorkerProcess(pooled, tmp_path, "--topics", "t")
    try:
        assert worker.wait() == 2, worker.log
    finally:
        worker.kill()
    assert "pooler" in worker.log
    assert "Traceback" not in worker.log

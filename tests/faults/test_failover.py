"""A worker over a primary and a standby that change places."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from time import monotonic
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from sokka_pg import Sokka, TaskContext, WorkerOptions, wakeup
from sokka_pg.connections import ConnectionOptions
from sokka_pg.embedded import Server, all_binaries
from sokka_pg.errors import DatabaseUnavailable
from sokka_pg.events import Disconnected, Finished, Reconnected, Started
from tests import servers
from tests.faults import auditing
from tests.faults.waiting import DEADLINE_S, Seen, until, until_async

NAME, POOL = "moving", 2
# Desk, keeper, listener, and retention now and then; and the store's two pools.
MOST = 4 + 2 * POOL

_OURS = "select pid from pg_stat_activity where application_name = %s"
_CAUGHT_UP = """
    select pg_current_wal_lsn() <= replay_lsn from pg_stat_replication where state = 'streaming'"""


def admin(server: Server) -> psycopg.Connection[Any]:
    return psycopg.connect(server.url(), autocommit=True)


@pytest.fixture
def pair(server: servers.Server) -> Iterator[tuple[Server, Server]]:
    """A primary with the schema in it, and the standby that streams from it."""
    same_major = [found for found in all_binaries() if found.version == server.major]
    with (
        Server.temporary(
            binaries=same_major[0] if same_major else None, listen="127.0.0.1"
        ) as primary,
        primary.base_backup(listen="127.0.0.1") as standby,
    ):
        servers.load_newest(primary.url())
        caught_up(primary)
        yield primary, standby


def caught_up(primary: Server) -> None:
    with admin(primary) as asking:
        until(lambda: asking.execute(_CAUGHT_UP).fetchall() == [(True,)], "the standby")


def either(*places: Server) -> str:
    """A URL for whichever of them takes writes."""
    parts = [conninfo_to_dict(place.url(tcp=True)) for place in places]
    return make_conninfo(
        host=",".join(str(part["host"]) for part in parts),
        port=",".join(str(part["port"]) for part in parts),
        user=str(parts[0]["user"]), password=str(parts[0]["password"]),
        dbname=str(parts[0]["dbname"]), target_session_attrs="read-write",
    )


def connected(server: Server) -> set[int]:
    """The server's processes for the app under test."""
    with admin(server) as asking:
        return {pid for (pid,) in asking.execute(_OURS, (NAME,)).fetchall()}


@pytest.fixture
def app(pair: tuple[Server, Server], seen: Seen) -> Sokka:
    return Sokka(
        either(*pair), observers=[seen],
        connections=ConnectionOptions(
            application_name=NAME, max_size=POOL, wait=timedelta(seconds=1)
        ),
    )


async def enqueued(task: Any, *arguments: Any) -> Any:
    """Through the store; what an outage refused is asked for again."""
    made: list[Any] = []

    async def tried() -> bool:
        try:
            made.append(await task.enqueue_async(*arguments))
        except DatabaseUnavailable:
            return False
        return True

    end = monotonic() + DEADLINE_S
    while not await tried():
        assert monotonic() < end, "no enqueue was taken"
    return made[0]


async def test_a_worker_follows_its_primary_through_a_failover_by_itself(
    pair: tuple[Server, Server], app: Sokka, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    monkeypatch.setattr(wakeup, "PROBE_S", 0.2)
    go_on = asyncio.Event()

    @app.task(topic="t")
    async def token(ctx: TaskContext) -> int:
        await ctx.progress({"here": True})
        return ctx.token

    @app.task(topic="t")
    async def throughout(ctx: TaskContext) -> int:
        await go_on.wait()
        return ctx.token

    most = 0
    worker = app.worker("t", options=WorkerOptions(lease=20, grace=0, poll=0.2))
    run = asyncio.create_task(worker.run())
    held = await enqueued(throughout)
    parts = [[await enqueued(token) for _ in range(5)]]
    await until_async(lambda: len(seen.all(Finished)) == 5, "the first five")
    await until_async(lambda: seen.all(Reconnected, part="listener"), "the listener")
    await asyncio.to_thread(caught_up, first)

    await _refused_by_a_read_only_server(first, token, seen)
    first.kill()
    await asyncio.to_thread(second.promote)
    parts.append([await enqueued(token) for _ in range(5)])
    await until_async(lambda: len(seen.all(Finished)) == 10, "the five on the new primary")
    most = max(most, len(connected(second)))

    await asyncio.to_thread(first.follow, second)
    await asyncio.to_thread(caught_up, second)
    parts.append([await enqueued(token) for _ in range(5)])
    go_on.set()
    await until_async(lambda: len(seen.all(Finished)) == 16, "all, beside the standby")
    assert max(most, len(connected(second))) <= MOST
    assert connected(first) == set()
    assert not run.done()
    worker.stop(now=True)
    await run
    await app.async_store.close()
    app.store.close()
    assert len(seen.all(Started)) == 16
    _check(second, worker.pid, held, parts)


async def _refused_by_a_read_only_server(first: Server, task: Any, seen: Seen) -> None:
    """It is still there and takes no writes: open connections are of no use any more."""
    stuck = connected(first)
    assert len(stuck) <= MOST
    with admin(first) as asking:
        asking.execute("alter system set default_transaction_read_only = on")
        asking.execute("select pg_reload_conf()")
    await until_async(lambda: seen.all(Disconnected, part="desk"), "a refusal")
    end = monotonic() + DEADLINE_S
    while stuck & connected(first):
        assert monotonic() < end, "connections that are of no use were kept"
        with suppress(DatabaseUnavailable):
            await task.enqueue_async()
            raise AssertionError("a read-only server took a task")


def _check(server: Server, pid: str, held: Any, parts: list[list[Any]]) -> None:
    with admin(server) as asking:
        ended = asking.execute(
            "select task_id, token, pid from sokka.all_tasks where status = 'terminated'"
        ).fetchall()
        assert {owner for _, _, owner in ended} == {pid}
        tokens = {task_id: token for task_id, token, _ in ended}
        order = [[held], *parts]
        for before, after in pairwise(order):
            assert max(tokens[task.task_id] for task in before) < min(
                tokens[task.task_id] for task in after
            )
        auditing.check_records(asking)
        auditing.check_leases(asking)

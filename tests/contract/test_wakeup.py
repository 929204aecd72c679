"""Wake-ups: early with LISTEN, in time without it, back after every cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from sokka_pg import calls
from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import BadArgument
from sokka_pg.store_async import AsyncPgTaskStore
from sokka_pg.wakeup import Signals, Wakeup
from tests.contract.proxy import LossyProxy

LONG_S = 300.0


class Changes:
    """What a wake-up said of its connection, to wait for."""

    def __init__(self) -> None:
        self.seen: list[bool] = []
        self._changed = asyncio.Event()

    def __call__(self, listening: bool) -> None:
        self.seen.append(listening)
        self._changed.set()

    async def until(self, expected: list[bool]) -> None:
        async with asyncio.timeout(20):
            while self.seen != expected:
                self._changed.clear()
                await self._changed.wait()


@pytest_asyncio.fixture
async def changes() -> Changes:
    return Changes()


@pytest_asyncio.fixture
async def wakeup(db: str, changes: Changes) -> AsyncIterator[Wakeup]:
    """Listening, with a poll interval that no test waits for."""
    options = ConnectionOptions(application_name="listener")
    async with Wakeup(db, poll=LONG_S, options=options, on_change=changes) as found:
        await changes.until([True])
        assert (await found.wait()).missed, "what came before LISTEN was missed"
        yield found


async def topic_hash(store: AsyncPgTaskStore, topic: str) -> str:
    return await store._run(calls.topic_hash(topic), None)


async def test_a_new_task_ends_the_sleep_of_an_idle_worker(
    wakeup: Wakeup, async_store: AsyncPgTaskStore
) -> None:
    assert await async_store.mark_idle(["t"], "w1", 60)
    await async_store.create_task("t")
    signals = await asyncio.wait_for(wakeup.wait(), 20)
    assert signals.topics == {await topic_hash(async_store, "t")}
    assert not signals.cancels
    assert not signals.missed


async def test_a_request_to_stop_is_heard(wakeup: Wakeup, async_store: AsyncPgTaskStore) -> None:
    created = await async_store.create_task("t")
    await async_store.reserve_task("t", "w1", 60)
    await async_store.cancel(created.task_id)
    signals = await asyncio.wait_for(wakeup.wait(), 20)
    assert signals.cancels == {await topic_hash(async_store, "t")}


async def test_signals_that_came_between_two_waits_are_not_lost(
    wakeup: Wakeup, conn: psycopg.Connection
) -> None:
    for payload in ("t0000000a", "t0000000b", "c0000000a", "d0c", "t0000000a", "?"):
        conn.execute("select pg_notify('sokka', %s)", (payload,))
    topics: set[str] = set()
    cancels: set[str] = set()
    tasks: set[str] = set()
    async with asyncio.timeout(20):
        while topics != {"0000000a", "0000000b"} or cancels != {"0000000a"} or tasks != {"0c"}:
            signals = await wakeup.wait()
            assert not signals.missed
            topics |= signals.topics
            cancels |= signals.cancels
            tasks |= signals.tasks


async def test_what_happens_to_a_watched_task_is_heard(
    wakeup: Wakeup, async_store: AsyncPgTaskStore
) -> None:
    watched = (await async_store.create_task("t")).task_id
    await async_store.create_task("t")
    assert await async_store.watch_tasks("me", [watched], 60) == 1
    while (task := await async_store.reserve_task("t", "w1", 60)) is not None:
        await async_store.terminate(task)
    signals = await asyncio.wait_for(wakeup.wait(), 20)
    assert signals.tasks == {calls.task_hash(watched)}
    assert not signals.missed


async def test_too_many_watched_tasks_at_once_say_look_everywhere(
    wakeup: Wakeup, conn: psycopg.Connection
) -> None:
    conn.execute("select pg_notify('sokka', 'd*')")
    signals = await asyncio.wait_for(wakeup.wait(), 20)
    assert signals.missed
    assert not signals.tasks


async def test_what_does_not_matter_here_ends_no_wait(db: str, conn: psycopg.Connection) -> None:
    async with Wakeup(db, poll=LONG_S, hears="c") as wakeup:
        assert (await asyncio.wait_for(wakeup.wait(), 20)).missed
        for payload in ("t0000000a", "d0000000b", "d*", "c0000000c"):
            conn.execute("select pg_notify('sokka', %s)", (payload,))
        signals = await asyncio.wait_for(wakeup.wait(), 20)
        assert (signals.topics, signals.cancels, signals.tasks) == (
            set(), {"0000000c"}, set()
        )  # fmt: skip
        assert not signals.missed


async def test_a_listener_that_was_cut_off_comes_back_and_says_that_it_missed_something(
    wakeup: Wakeup, changes: Changes, conn: psycopg.Connection
) -> None:
    conn.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'listener'"
    )
    await changes.until([True, False, True])
    assert (await asyncio.wait_for(wakeup.wait(), 20)).missed
    conn.execute("select pg_notify('sokka', 't0000000a')")
    assert (await asyncio.wait_for(wakeup.wait(), 20)).topics == {"0000000a"}
    assert wakeup.connects == 2


async def test_the_listener_is_never_inside_a_transaction(
    wakeup: Wakeup, conn: psycopg.Connection
) -> None:
    found = conn.execute(
        "select state, backend_xmin::text, xact_start from pg_stat_activity"
        " where application_name = 'listener'"
    ).fetchall()
    assert found == [("idle", None, None)]


async def test_without_listen_the_poll_interval_ends_a_wait(db: str) -> None:
    for options in (ConnectionOptions(), ConnectionOptions(pooler=True)):
        listen = options.pooler
        async with Wakeup(db, listen=listen, poll=0.01, options=options) as wakeup:
            signals = await asyncio.wait_for(wakeup.wait(), 20)
            assert not signals.topics
            assert not wakeup.listening
            assert wakeup.connects == 0


async def test_an_unreachable_server_is_tried_again_ever_more_seldom(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sokka_pg import wakeup as module

    waits: list[float] = []
    sleep = asyncio.sleep
    enough = asyncio.Event()

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 12:
            enough.set()
        await sleep(0)

    proxy = LossyProxy(db)
    proxy.close()
    monkeypatch.setattr(module.asyncio, "sleep", noted)
    async with Wakeup(proxy.url, poll=0.01) as wakeup:
        async with asyncio.timeout(20):
            await enough.wait()
        await wakeup.wait()
    for number, wait in enumerate(waits[:12]):
        most = min(module.LONGEST_BACKOFF_S, module.FIRST_BACKOFF_S * 2**number)
        assert most / 2 <= wait <= most


async def test_a_wait_is_no_longer_than_asked_and_can_be_ended_from_here(wakeup: Wakeup) -> None:
    started = time.monotonic()
    await wakeup.wait(0)
    wakeup.poke()
    await wakeup.wait()
    assert time.monotonic() - started < LONG_S


@pytest.mark.parametrize("poll", [0, -1, float("nan"), True, "1"])
def test_a_poll_interval_that_is_none_is_refused(poll: object) -> None:
    async def make() -> None:
        Wakeup("postgresql://127.0.0.1/x", poll=poll)  # type: ignore[arg-type]

    with pytest.raises(BadArgument, match="poll"):
        asyncio.run(make())


async def test_more_topics_than_can_be_kept_say_look_everywhere(
    wakeup: Wakeup, conn: psycopg.Connection
) -> None:
    conn.execute(
        "select pg_notify('sokka', 't' || lpad(n::text, 8, '0')) from generate_series(1, 1500) n"
    )
    missed = False
    async with asyncio.timeout(20):
        while not missed:
            signals = await wakeup.wait()
            missed = signals.missed
            assert len(signals.topics) <= 1_000
            if "00001500" in signals.topics:
                break


async def test_who_is_told_at_once_need_not_wait(db: str, conn: psycopg.Connection) -> None:
    told: list[Signals] = []
    came = asyncio.Event()

    def news(signals: Signals) -> None:
        told.append(signals)
        came.set()
        raise RuntimeError("an observer's fault")

    async with Wakeup(db, poll=LONG_S, on_news=news):
        async with asyncio.timeout(20):
            await came.wait()
            assert told.pop().missed
            for payload in ("t0000000a", "t0000000b"):
                came.clear()
                conn.execute("select pg_notify('sokka', %s)", (payload,))
                await came.wait()
    assert [signals.topics for signals in told] == [{"0000000a"}, {"0000000b"}]

"""Workers with nothing to do: they find what comes all the same, and keep the sweep going."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from sokka_pg import Sokka, TaskContext
from sokka_pg.engine import Engine, words
from sokka_pg.engine import desk as engine_desk
from sokka_pg.worker.desk import Desk
from tests.faults.conftest import Working
from tests.faults.waiting import until_async

Row = Callable[[Any], dict[str, Any]]
Calls = list[words.Call]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls that all workers of the test make."""
    found: Calls = []
    perform = Desk.perform

    async def noted(self: Desk, call: words.Call) -> words.Input:
        found.append(call)
        return await perform(self, call)

    monkeypatch.setattr(Desk, "perform", noted)
    return found


async def nothing(context: TaskContext) -> None:
    """Never called: a worker wants to have a handler."""


async def until_idle(made: Calls, workers: int = 1) -> None:
    """Their last calls were looks."""
    looks = 2 * workers
    await until_async(
        lambda: len(made) > looks and {type(call) for call in made[-looks:]} == {words.Look},
        "idle workers",
    )


async def test_without_notifications_a_task_is_found_within_the_poll_interval(
    app: Sokka, working: Working, conn: psycopg.Connection, made: Calls
) -> None:
    conn.execute("update sokka.settings set notify = false")
    started: list[float] = []

    @app.task(topic="t")
    async def work(context: TaskContext) -> None:
        started.append(time.monotonic())

    waits = []
    async with working("t"):
        for _ in range(2):
            await until_idle(made)
            began = time.monotonic()
            conn.execute("select from sokka.create_task('t', p_kind => 'work')")
            await until_async(lambda: len(started) > len(waits), "the start")
            waits.append(started[-1] - began)
    # a busy machine may hold up one of them
    assert min(waits) <= 1.2


async def test_the_lease_of_a_dead_owner_is_taken_back_while_all_workers_are_idle(
    app: Sokka, working: Working, conn: psycopg.Connection, made: Calls, row: Row
) -> None:
    app.task(topic="t")(nothing)
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(working("another"))
        await until_idle(made, 3)
        task = app.store.create_task("t", kind="work")
        lease = app.store.reserve_task("t", "dead", timedelta(seconds=1))
        assert lease is not None
        expires_at = row(task)["lease_expires_at"]
        await until_async(lambda: row(task)["status"] == "starting", "the take-over")
        assert datetime.now(UTC) - expires_at < timedelta(seconds=3)


async def test_idle_workers_sweep_as_one(
    app: Sokka, working: Working, conn: psycopg.Connection, made: Calls
) -> None:
    """Ten of them do not sweep ten times a second, yet every second."""
    app.task(topic="t")(nothing)
    async with AsyncExitStack() as stack:
        for _ in range(10):
            await stack.enter_async_context(working("t"))
        await until_idle(made, 10)
        times: set[int] = set()
        del made[:]
        began = time.monotonic()
        while time.monotonic() < began + 4:
            found = conn.execute("select last_value from sokka.swept_at_seq").fetchone()
            assert found is not None
            times.add(found[0])
            await asyncio.sleep(0.05)
        assert 3 <= len(times) <= 12
        # one who met another sweeping comes back, and that is all
        assert sum(isinstance(call, words.Sweep) for call in made) <= 8


@pytest.mark.parametrize("how", ["missing", "forbidden"])
async def test_where_it_may_not_look_it_sweeps_and_reserves(
    app: Sokka, working: Working, conn: psycopg.Connection, db: str, how: str, made: Calls
) -> None:
    """A schema from before, or a role that was granted what that one had."""
    conn.execute("update sokka.settings set notify = false")
    conn.execute("drop function sokka.look_around")
    if how == "missing":
        conn.execute("drop function sokka.look_for_work")
    else:
        conn.execute(
            "create or replace function sokka.look_for_work(p_topics text[], p_within interval)"
            " returns table (ready boolean, swept boolean, woken integer, taken_back integer,"
            " expired integer, failed_lost integer, next_due_at timestamptz) language plpgsql as"
            " $$ begin raise insufficient_privilege; end $$"
        )
    done = asyncio.Event()

    @app.task(topic="t")
    async def work(context: TaskContext) -> None:
        done.set()

    async with working("t"):
        await until_async(lambda: sum(isinstance(call, words.Look) for call in made) > 1, "looks")
        conn.execute("select from sokka.create_task('t', p_kind => 'work')")
        await asyncio.wait_for(done.wait(), 10)


async def test_whoever_sweeps_tells_the_others_of_what_they_were_not_told(
    app: Sokka, working: Working, conn: psycopg.Connection, made: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a topic that it does not serve itself."""
    # Who rests does so for 15 s at least, from its first look on.
    monkeypatch.setattr(engine_desk, "TOLD_POLL_S", 30.0)
    monkeypatch.setattr(engine_desk, "LOOKS_PER_S", 0.01)
    monkeypatch.setattr(engine_desk, "RESTS", -1)
    app.task(topic="t")(nothing)
    started = asyncio.Event()

    @app.task(topic="u")
    async def work(context: TaskContext) -> None:
        started.set()

    def marked() -> bool:
        found = conn.execute("select from sokka.idle_workers where topic = 'u'")
        return found.fetchone() is not None

    async with working("t"):
        await until_idle(made)  # from here on that one sweeps
        async with working("u"):
            await until_async(marked, "the mark")
            del made[:]
            await until_async(
                lambda: sum(isinstance(call, words.Look) for call in made) > 2, "looks of the other"
            )
            with conn.transaction():
                conn.execute("update sokka.settings set notify = false")
                conn.execute("select from sokka.create_task('u', p_kind => 'work')")
                conn.execute("update sokka.settings set notify = true")
            await asyncio.wait_for(started.wait(), 10)


async def test_a_delayed_task_wakes_when_it_is_due(
    app: Sokka, working: Working, conn: psycopg.Connection, made: Calls
) -> None:
    """Though it was created after the last sweep, and nobody was told."""
    conn.execute("update sokka.settings set notify = false")
    late: list[float] = []

    @app.task(topic="t")
    async def work(due: str, context: TaskContext) -> None:
        late.append((datetime.now(UTC) - datetime.fromisoformat(due)).total_seconds())

    async with working("t"):
        for _ in range(2):
            await until_idle(made)
            before = len(late)
            due = datetime.now(UTC) + timedelta(seconds=1.7)
            work.configure(run_at=due).enqueue(due.isoformat())
            await until_async(lambda: len(late) > before, "the start")  # noqa: B023
    assert 0 <= min(late) <= 0.3


async def test_what_breaks_between_two_calls_ends_the_worker(
    app: Sokka, made: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not left to the loop, which would log it and wait for ever."""
    app.task(topic="t")(nothing)
    run = asyncio.create_task(app.worker("t").run())
    await until_idle(made)

    def broken(self: Engine, events: object, now: float) -> list[words.Command]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Engine, "step", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        await asyncio.wait_for(run, 20)

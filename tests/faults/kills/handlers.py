"""What the killed workers run: everything that a death could leave half done."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from sokka_pg import (
    Fail,
    FanOutRequest,
    Policy,
    Retry,
    ScatterGatherRequest,
    Snooze,
    Sokka,
    SyncTaskContext,
    TaskContext,
)
from sokka_pg.scheduler import held_lease

SOON = timedelta(milliseconds=50)
TTL = timedelta(milliseconds=600)
LOCKS = ("a", "b", "c")

# One row of a task for each time that it ended in its own transaction; rows in order for
# each lock, written by its holders.
TABLES = """
    create table ledger (task_id uuid not null, token bigint not null);
    create table written (
        key text not null, number bigint not null, token bigint not null,
        primary key (key, number));
"""
_NEXT = """
    insert into written
    select %(key)s, coalesce(max(number), 0) + 1, %(token)s from written where key = %(key)s"""

app = Sokka()


@app.task(topic="t")
async def fate(ctx: TaskContext, how: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    if how == "fail":
        raise Fail("wanted")
    if how == "retry":
        raise Retry("wanted", SOON)
    if how == "snooze" and ctx.last_checkpoint is None:
        await ctx.checkpoint("slept")
        raise Snooze(SOON)
    return how


@app.task(topic="t")
async def journey(ctx: TaskContext, seconds: float) -> int:
    """Goes on from where the last attempt died."""
    seen = await ctx.stream_position()
    done = int(ctx.last_checkpoint or 0)
    await ctx.step("begin", lambda: ctx.attempt)
    for number in range(done, 4):
        await asyncio.sleep(seconds / 4)
        if number >= seen:
            await ctx.emit(number)
        await ctx.progress({"done": number})
        await ctx.checkpoint(number + 1)
    return await ctx.stream_position()


@app.task(topic="t")
async def once(ctx: TaskContext, seconds: float) -> None:
    async with ctx.transaction(terminate=True) as block:
        await block.connection.execute(
            "insert into ledger values (%s, %s)", (ctx.task.task_id, ctx.token)
        )
        await asyncio.sleep(seconds)


@app.task(topic="t")
async def family(ctx: TaskContext, policy: str, children: list[float]) -> Any:
    """Children, two at a time, in another topic."""
    candidates = [{"seconds": seconds} for seconds in children]
    if policy == "settled":
        request = FanOutRequest(candidates, kind="child", topic="c", max_running=2, max_losses=50)
        return len((await ctx.fan_out("below", request)).results)
    chosen = Policy.quorum(2) if policy == "quorum" else Policy(policy)
    asked = ScatterGatherRequest(
        candidates, kind="child", topic="c", max_running=2, policy=chosen, max_losses=50
    )
    return (await ctx.scatter_gather("below", asked)).satisfied


@app.task(topic="c")
def child(seconds: float) -> float:
    time.sleep(seconds)
    if seconds < 0.01:
        raise Fail("wanted")
    return seconds


@app.task(topic="t")
def locked(ctx: SyncTaskContext, key: str, seconds: float) -> int:
    """Writes under a lock that somebody who was killed may have had before."""
    with app.lock(key, ttl=TTL, wait=10) as lease:
        time.sleep(seconds)
        with ctx.transaction() as block:
            lease.assert_held(block.connection)
            block.connection.execute(_NEXT, {"key": key, "token": lease.token})
        return lease.token


@app.singleton("single", ttl=TTL, skip=True)
def _alone(seconds: float) -> int:
    time.sleep(seconds)
    return held_lease().token


@app.task(topic="t")
def single(seconds: float) -> int | None:
    return _alone(seconds)


@app.task(topic="p", process=True)
def apart(ctx: SyncTaskContext, seconds: float) -> str:
    """In a process of its own, which a kill of the worker alone leaves without a parent."""
    ctx.progress({"began": True})
    time.sleep(seconds)
    return "apart"

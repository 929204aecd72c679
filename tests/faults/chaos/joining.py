"""Handlers that the oldest release cannot have: steps and joins."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from sokka_pg import Fail, Sokka, TaskContext
from sokka_pg.gather import FanOutRequest, Policy, ScatterGatherRequest
from tests.faults.chaos import handlers


def declare(app: Sokka) -> None:
    """Have them in the app."""
    for handler in (steps, leaf, spread, gather):
        app.task(topic="a")(handler)


async def steps(ctx: TaskContext, count: int, seconds: float) -> list[Any]:
    """Draws a number in each step; a later attempt must find the same ones."""
    handlers.note("start", ctx)
    drawn = []
    for n in range(count):
        drawn.append(await ctx.step(f"s{n}", random.randrange, 10**9))
        await asyncio.sleep(seconds)
    await handlers.done_async(ctx)
    return drawn


async def leaf(ctx: TaskContext, n: int, seconds: float) -> int:
    handlers.note("start", ctx)
    await asyncio.sleep(seconds)
    if n % 7 == 6:
        raise Fail("wanted")
    await handlers.done_async(ctx)
    return n


def _candidates(count: int, seconds: float) -> list[Any]:
    return [{"n": n, "seconds": seconds} for n in range(count)]


async def spread(ctx: TaskContext, count: int, seconds: float) -> int:
    """Waits for all of its children, without a slot."""
    handlers.note("start", ctx)
    request = FanOutRequest(
        candidates=_candidates(count, seconds), kind="leaf", max_running=3
    )
    found = await ctx.fan_out("all", request)
    await handlers.done_async(ctx)
    return len(found.results)


async def gather(ctx: TaskContext, count: int, needed: int, seconds: float) -> int:
    """Enough of its children decide; the others are cancelled."""
    handlers.note("start", ctx)
    request = ScatterGatherRequest(
        candidates=_candidates(count, seconds), kind="leaf", policy=Policy.quorum(needed)
    )
    found = await ctx.scatter_gather("some", request)
    await handlers.done_async(ctx)
    return len(found.results)

"""The app of the workers: every way in which an attempt can end, and some that it should not.

Each handler tells the world outside that it began, and that it is done, once unfenced and
once fenced. Most of them do not stop when they are told that their lease is lost: they
are the ones whose writes must be refused.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sokka_pg import Fail, Retry, Snooze, Sokka, SyncTaskContext, TaskContext
from sokka_pg.errors import SokkaError
from tests.faults import handlers as hostile
from tests.faults.chaos import effects, recorder

SOON = timedelta(milliseconds=50)
POISON_RESULTS: dict[str, Any] = {
    "nul": "a\x00b", "surrogate": "\ud800", "set": {1, 2}, "nan": float("nan"),
    "huge": "x" * (3 << 20), "cycle": None,
}
POISON_ERRORS = (
    "base_exception", "bad_str", "cancelled", "stop_iteration", "stop_async_iteration",
    "recursion", "memory", "group", "nul", "surrogate", "huge", "system_exit",
)
TABLE = "public.written"
"""In the product's database, guarded: only a fenced transaction may write there."""
CREATE_TABLE = """
    create table public.written (
        task_id uuid not null, token bigint not null, attempt integer not null)"""
_WRITE = "insert into public.written (task_id, token, attempt) values (%s, %s, %s)"

recorder.install_from_environment()
app = Sokka()
FULL: bool
"""Whether the product has joins and steps: an old release has not."""
outside = effects.from_environment()


def note(kind: str, ctx: Any) -> None:
    if outside is not None:
        outside.note(kind, ctx.lease, ctx.attempt)


def done(ctx: Any) -> None:
    """The effects at the end: an unfenced one, then the one that an old token cannot have."""
    note("end", ctx)
    if outside is not None:
        outside.write_fenced(ctx.lease, ctx.attempt)


async def done_async(ctx: Any) -> None:
    await asyncio.to_thread(done, ctx)


# --- async --------------------------------------------------------------------


@app.task(topic="a")
async def work(ctx: TaskContext, how: str, seconds: float) -> Any:
    """``how`` it ends after so many seconds."""
    note("start", ctx)
    await asyncio.sleep(seconds)
    if how == "retry":
        raise Retry("wanted", SOON)
    if how == "snooze" and ctx.last_checkpoint is None:
        await ctx.checkpoint({"snoozed": ctx.attempt})
        raise Snooze(SOON)
    if how == "fail":
        raise Fail("wanted")
    if how == "error" and ctx.attempt < 3:
        raise RuntimeError("wanted")
    await done_async(ctx)
    return {"how": how, "attempt": ctx.attempt}


@app.task(topic="a")
async def resume(ctx: TaskContext, parts: int, seconds: float) -> int:
    """Works in parts, and goes on from the last one that was recorded."""
    note("start", ctx)
    said: Any = ctx.last_checkpoint
    begin = int((said or {}).get("part", 0))
    for part in range(begin, parts):
        await asyncio.sleep(seconds)
        await ctx.progress({"part": part, "of": parts})
        await ctx.checkpoint({"part": part + 1})
    await done_async(ctx)
    return parts - begin


@app.task(topic="a")
async def fenced(ctx: TaskContext, ends: bool, seconds: float) -> str:
    """Writes to a guarded table under its lease, and perhaps ends in the same commit."""
    note("start", ctx)
    await asyncio.sleep(seconds)
    async with ctx.transaction(terminate=ends) as block:
        await block.connection.execute(_WRITE, (ctx.task.task_id, ctx.token, ctx.attempt))
        if ctx.attempt == 1:
            await asyncio.sleep(seconds / 4)
        block.result = {"fenced": ctx.token}
    await done_async(ctx)
    return "fenced"


@app.task(topic="b")
async def stubborn(ctx: TaskContext, seconds: float) -> str:
    """Goes on although its lease is lost, and tries what only an owner may."""
    note("start", ctx)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if ctx.cancel_reason != "lost":
            raise
        await asyncio.sleep(random.uniform(0, seconds / 2))
        await insist(ctx)
        raise
    await done_async(ctx)
    return "stubborn"


async def insist(ctx: TaskContext) -> None:
    """Each write of an owner, by one who has perhaps lost the task."""
    store, lease = app.async_store, ctx.lease
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: store.extend_lease(lease),
        lambda: store.report_progress(lease, progress={"by": "old"}),
        lambda: store.save_checkpoint(lease, checkpoint={"part": 99, "by": "old"}),
        lambda: store.terminate(lease, result="old"),
    ]
    for call in random.sample(calls, 2):
        with suppress(SokkaError):
            await call()
    await done_async(ctx)


# --- threads and processes ----------------------------------------------------


@app.task(topic="b")
def blocking(ctx: SyncTaskContext, seconds: float) -> str:
    """In a thread, which nobody can stop: it wakes up and writes, whoever owns the task."""
    note("start", ctx)
    time.sleep(seconds)
    if ctx.cancel_reason == "lost":
        for call in (
            lambda: ctx.checkpoint({"by": "old thread"}),
            lambda: app.store.terminate(ctx.lease, result="old thread"),
        ):
            with suppress(SokkaError):
                call()
    else:
        ctx.progress({"slept": seconds})
    done(ctx)
    return "blocked"


def in_child(ctx: SyncTaskContext, seconds: float) -> str:
    note("start", ctx)
    time.sleep(seconds)
    ctx.checkpoint({"slept": seconds})
    done(ctx)
    return "child"


# the decorated name must stand in the module: a child looks it up there
in_child = app.task(topic="b", process=True)(in_child)


# --- hostile ------------------------------------------------------------------


@app.task(topic="b")
async def poison_result(ctx: TaskContext, which: str) -> Any:
    note("start", ctx)
    if which == "cycle":
        found: list[Any] = []
        found.append(found)
        return found
    return POISON_RESULTS[which]


@app.task(topic="b")
async def poison_error(ctx: TaskContext, which: str) -> None:
    note("start", ctx)
    raise hostile.hostile(which)


@app.task(topic="b")
async def tick(ctx: TaskContext) -> str:
    """What schedules make."""
    note("start", ctx)
    await done_async(ctx)
    return "ticked"


try:
    from tests.faults.chaos.joining import declare
except ImportError:
    FULL = False
else:
    FULL = True
    declare(app)

"""Handlers that tests run in processes of their own.

``app`` is for ``sokka worker --app tests.workload.handlers:app``, and its tasks for
child processes, which find them by this module's names.
"""

from __future__ import annotations

from typing import Any

from sokka_pg import FanOutRequest, Sokka, SyncTaskContext, TaskContext
from tests.faults.handlers import note

app = Sokka()


@app.task(topic="t", process=True)
def tree(ctx: SyncTaskContext, levels: int) -> int:
    """How many tasks the tree below this one has, itself included."""
    if not levels:
        return 1
    ctx.progress({"levels": levels})
    return 1 + sum(ctx.fan_out("below", twice("tree", levels - 1)).values())


@app.task(topic="t", process=True)
def busy_child(ctx: SyncTaskContext, items: int) -> Any:
    """All that a context does, in a child process."""
    for item in range(ctx.stream_position(), items):
        ctx.emit(item)
        ctx.progress({"done": item + 1})
    return ctx.step("add", lambda a, b: a + b, items, b=1)


@app.task(topic="t")
async def journey(ctx: TaskContext) -> Any:
    """Notes what it does once, and what each start does."""
    note("start", ctx.token)
    first = await ctx.step("pack", packed)
    await ctx.start_fan_out("ask", FanOutRequest([1, 2], kind="answer", topic="answers"))
    note("started", ctx.token)
    if not await ctx.step("gate", lambda: (note("gate", ctx.token), True)[1]):
        return None
    if ctx.task.attempt == 1:  # losses start anew when it has slept
        await ctx.wait_cancelled()
    asked = await ctx.fan_out("ask", FanOutRequest([1, 2], kind="answer", topic="answers"))
    return [first, asked.values()]


async def packed() -> list[str]:
    note("packed")
    return ["shirt", "tea"]


@app.task(topic="answers")
async def answer(question: Any) -> int:
    return 10 * question


def twice(kind: str, levels: int) -> FanOutRequest:
    return FanOutRequest([{"levels": levels}] * 2, kind=kind)

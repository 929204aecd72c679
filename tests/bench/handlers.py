"""Handlers that do next to nothing: what is measured is everything around them.

``app`` is for ``sokka worker --app tests.bench.handlers:app``.
"""

from __future__ import annotations

import asyncio
import os
import time

from sokka_pg import Sokka, TaskContext

app = Sokka()


@app.task(topic="bench")
async def no_op(pad: str) -> None: ...


@app.task(topic="bench")
def no_op_sync(pad: str) -> None: ...


@app.task(topic="bench", process=True)
def no_op_process(pad: str) -> None: ...


@app.task(topic="bench")
async def hold(pad: str) -> None:
    """Keep its slot until the worker is told to stop."""
    await asyncio.sleep(3600)


@app.task(topic="bench")
async def echo(number: int, sleep_ms: float) -> None:
    """Say at which moment it started: the clock is the same for all processes here."""
    os.write(1, f"{number} {time.monotonic_ns()}\n".encode())
    if sleep_ms:
        await asyncio.sleep(sleep_ms / 1000)


@app.task(topic="bench")
async def fail_often(ctx: TaskContext, pad: str) -> None:
    """Fail all attempts but the third."""
    if ctx.attempt < 3:
        raise RuntimeError("once more")


@app.task(topic="bench")
async def fail_sometimes(ctx: TaskContext, pad: str) -> None:
    """Fail the first attempt of every hundredth task."""
    if ctx.attempt == 1 and pad[:9].endswith("00"):
        raise RuntimeError("once more")

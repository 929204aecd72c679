"""Handlers that tests run in processes of their own, and hostile exceptions.

``app`` is for ``sokka worker --app tests.faults.handlers:app``. Its handlers note
what they do in the file that ``SOKKA_TEST_NOTES`` names, one line each: an effect
that no fence guards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sokka_pg import Sokka, SyncTaskContext, TaskContext
from sokka_pg.errors import SokkaError

app = Sokka()


def note(*words: object) -> None:
    """Append a line; whole lines only, whoever else writes."""
    line = " ".join(str(word) for word in words) + "\n"
    handle = os.open(os.environ["SOKKA_TEST_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


@app.task(topic="t")
async def wait_for(ctx: TaskContext, seconds: float) -> str:
    note("start", ctx.token)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cancelled", ctx.token, ctx.cancel_reason)
        raise
    note("end", ctx.token)
    return "waited"


@app.task(topic="t")
async def block_loop(ctx: TaskContext, seconds: float, times: int) -> str:
    note("start", ctx.token)
    for _ in range(times):
        time.sleep(seconds)
        await asyncio.sleep(0)
    note("end", ctx.token)
    return "blocked"


@app.task(topic="t")
def burn(ctx: SyncTaskContext, seconds: float) -> str:
    note("start", ctx.token)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    note("end", ctx.token)
    return "burnt"


@app.task(topic="t")
def hold(ctx: SyncTaskContext) -> str:
    """A first start waits for the flag, and then tries what only an owner may."""
    note("start", ctx.token)
    if ctx.attempt > 1:
        return "B"
    ctx.wait_cancelled(60)
    store, lease = app.store, ctx.lease
    tried: dict[str, Callable[[], Any]] = {
        "progress": lambda: ctx.progress({"by": "zombie"}),
        "checkpoint": lambda: ctx.checkpoint({"by": "zombie"}),
        "extend": lambda: store.extend_lease(lease),
        "terminate": lambda: store.terminate(lease, result="A"),
    }
    for name, call in tried.items():
        try:
            call()
            note(name, "accepted")
        except SokkaError as refused:
            note(name, type(refused).__name__)
    return "A"


@app.task(topic="t")
async def deaf(ctx: TaskContext) -> None:
    note("start", ctx.token)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


@app.task(topic="t")
def deaf_thread(ctx: SyncTaskContext) -> None:
    note("start", ctx.token)
    while True:
        time.sleep(60)


@app.task(topic="t")
async def quick() -> str:
    return "quick"


# --- for workers that run inside a test ------------------------------------


def double(n: int) -> int:
    return 2 * n


def sleep_for(seconds: float) -> None:
    time.sleep(seconds)


def die() -> None:
    os._exit(9)


def declare_process_tasks(target: Sokka) -> dict[str, Any]:
    """Tasks that run in child processes. A child finds them by this module's names,
    so those are tasks of an app here; ``target`` knows the same handlers."""
    found = {}
    for task in (process_double, process_sleep_for, process_die):
        target.registry.add(task.spec)
        found[task.kind] = Redirected(task, target)
    return found


class Redirected:
    """A task of this module, enqueued through another app."""

    def __init__(self, task: Any, target: Sokka, **options: Any) -> None:
        self.task, self.target, self.options = task, target, options

    def configure(self, **options: Any) -> Redirected:
        return Redirected(self.task, self.target, **options)

    def enqueue(self, *args: Any) -> Any:
        spec = self.task.spec
        data = spec.payload.write(args, {})
        return self.target.store.create_task(spec.topic, data, kind=spec.kind, **self.options)


_children = Sokka()
process_double = _children.task(topic="t", process=True)(double)
process_sleep_for = _children.task(topic="t", process=True)(sleep_for)
process_die = _children.task(topic="t", process=True)(die)
# a child looks for the handler's own name and must find the task there
double = process_double  # type: ignore[assignment]
sleep_for = process_sleep_for  # type: ignore[assignment]
die = process_die  # type: ignore[assignment]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class OwnBase(BaseException):
    pass


def hostile(how: str) -> BaseException:
    made: dict[str, Callable[[], BaseException]] = {
        "base_exception": lambda: OwnBase("own"),
        "bad_str": Unprintable,
        "system_exit": lambda: SystemExit(3),
        "keyboard_interrupt": KeyboardInterrupt,
        "cancelled": asyncio.CancelledError,
        "generator_exit": GeneratorExit,
        "stop_iteration": lambda: StopIteration(1),
        "stop_async_iteration": StopAsyncIteration,
        "recursion": RecursionError,
        "memory": MemoryError,
        "group": lambda: BaseExceptionGroup("two", [OwnBase(), SystemExit(1)]),
        "nul": lambda: ValueError("a\x00b"),
        "surrogate": lambda: ValueError("\ud800"),
        "huge": lambda: ValueError("x" * (5 << 20)),
    }
    return made[how]()


def notes(path: Path) -> list[list[str]]:
    """The lines noted so far, split into words."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

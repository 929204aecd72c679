"""What users hand in to be called: executors, invokers, producers.

All become one thing, a ``Work``: called with the context of its run, on a thread
or as a coroutine, on a loop that is known beforehand.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from sokka_pg import calls
from sokka_pg.calls import arguments
from sokka_pg.context import SyncTaskContext, TaskContext
from sokka_pg.errors import BadArgument

AnyContext: TypeAlias = TaskContext | SyncTaskContext


@dataclass(frozen=True, slots=True)
class WorkerInvoker:
    """Candidates are worked off by workers: tasks of this kind, in this topic."""

    kind: str
    topic: str | None = None

    def __post_init__(self) -> None:
        arguments.name(self.kind, "kind")
        if self.topic is not None:
            arguments.name(self.topic, "topic")


WorkloadExecutor: TypeAlias = "Callable[[Any], Any]"
"""Runs a task here: a function of the context, plain or async, that returns the result."""

StreamProducer: TypeAlias = "Callable[[Any], Any]"
"""Fills a stream here: a generator of items, plain or async, or a function that calls
``context.emit``; it takes the context."""

CandidateInvoker: TypeAlias = "WorkerInvoker | Callable[..., Any]"
"""Answers for one candidate: a function of ``(candidate)`` or ``(candidate, context)``,
plain or async, called here; or a ``WorkerInvoker``."""


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """How much of a stream may wait to be read."""

    max_items: int = 1_000
    max_bytes: int = 8 * 1024 * 1024

    def __post_init__(self) -> None:
        # the call's own rules, before a task is made that would have no stream
        calls.open_stream(UUID(int=0), self.max_items, self.max_bytes)


@dataclass(frozen=True, slots=True)
class Work:
    """``call`` takes the context. ``loop``: where a coroutine runs; None: on the
    scheduler's own."""

    call: Callable[[Any], Any]
    asynchronous: bool
    loop: asyncio.AbstractEventLoop | None = None
    stream: StreamBounds | None = None

    @property
    def lost(self) -> bool:
        """Whether the loop that it needs is gone."""
        return self.loop is not None and self.loop.is_closed()


def executor_work(executor: object, loop: asyncio.AbstractEventLoop | None) -> Work:
    """An executor: ``(context) -> result``. Raises BadArgument."""
    call = _callable(executor, "executor")
    _refuse_unless(_takes(call, 1), "executor", "must take the context, and nothing else")
    return Work(call, is_async(call), loop)


def invoker_work(invoker: object, loop: asyncio.AbstractEventLoop | None) -> Work:
    """An invoker: ``(candidate)`` or ``(candidate, context) -> answer``. Raises BadArgument."""
    call = _callable(invoker, "invoker")
    if _takes(call, 2):
        return Work(lambda context: call(context.task.data, context), is_async(call), loop)
    rule = "must take a candidate, or a candidate and a context"
    _refuse_unless(_takes(call, 1), "invoker", rule)
    return Work(lambda context: call(context.task.data), is_async(call), loop)


def producer_work(
    producer: object, loop: asyncio.AbstractEventLoop | None, bounds: StreamBounds
) -> Work:
    """A producer: ``(context)``, which emits, or a generator. Raises BadArgument."""
    call = _callable(producer, "producer")
    _refuse_unless(_takes(call, 1), "producer", "must take the context, and nothing else")
    plain = inspect.unwrap(call)
    if inspect.isasyncgenfunction(plain):
        return Work(_draining_async(call), True, loop, bounds)
    if inspect.isgeneratorfunction(plain):
        return Work(_draining(call), False, None, bounds)
    return Work(call, is_async(call), loop, bounds)


def _draining(generator: Callable[..., Any]) -> Callable[[SyncTaskContext], None]:
    def drain(context: SyncTaskContext) -> None:
        for item in generator(context):
            context.emit(item)

    return drain


def _draining_async(generator: Callable[..., Any]) -> Callable[[TaskContext], Any]:
    async def drain(context: TaskContext) -> None:
        async for item in generator(context):
            await context.emit(item)

    return drain


def is_async(call: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    plain = inspect.unwrap(call)
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(
        getattr(plain, "__call__", None)  # noqa: B004 - an object whose call is async
    )


def _callable(given: object, argument: str) -> Callable[..., Any]:
    if not callable(given):
        raise BadArgument.of(argument, "must be callable", given)
    return given


def _takes(call: Callable[..., Any], count: int) -> bool:
    """Whether it wants ``count`` positional arguments. One that takes a second only
    by default is not given it, unless that is called ``context``."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # some builtins tell nothing
        return count == 1
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    must = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if must or len(needed) > count:
        return False
    if count == 2 and len(needed) < 2:
        return len(positional) > 1 and positional[1].name == "context"
    return many or len(positional) >= count


def _refuse_unless(fits: bool, argument: str, rule: str) -> None:
    if not fits:
        raise BadArgument.of(argument, rule)

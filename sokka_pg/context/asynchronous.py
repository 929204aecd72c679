"""The context of an async handler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from uuid import UUID

from sokka_pg.context.common import AnyContext
from sokka_pg.context.plans import Ask, Invoke, Landing, Pause, Plan, Step, carry_out_async
from sokka_pg.context.timing import call_soon
from sokka_pg.gather import (
    CandidateResult,
    FanOutRequest,
    FanOutResult,
    Request,
    ScatterGatherRequest,
    ScatterGatherResult,
)
from sokka_pg.model import CheckpointSaved, Json, LeasedTask

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from sokka_pg.fence import FencedTransaction
    from sokka_pg.store_async import AsyncTaskStore

T = TypeVar("T")


class TaskContext(AnyContext):
    """The context of an async handler. It may be used from any event loop."""

    __sokka_context__: ClassVar[str] = "async"

    def __init__(
        self, task: LeasedTask, store: AsyncTaskStore,
        on_lost: Callable[[int, str], None] | None = None,
    ) -> None:
        super().__init__(task, on_lost)
        self._store = store

    @cached_property
    def _emitting(self) -> asyncio.Lock:
        return asyncio.Lock()

    @cached_property
    def _late(self) -> set[asyncio.Task[None]]:
        return set()

    async def progress(self, progress: Json, *, connection: Any = None) -> None:
        """Show how far the task is; the last one stays.

        The first is written at once. Later ones are held back so that there is at
        most one write in 0.25 s, and the last is written in any case, before the
        task ends. With ``connection`` it is written now, in that transaction.
        Raises LeaseLost, also for a write that was held back; then nothing changed.
        """
        await self._carry_out(self._report(progress, connection))

    async def checkpoint(self, checkpoint: Json, *, connection: Any = None) -> CheckpointSaved:
        """Record a point to go on from; the next attempt finds it in
        ``last_checkpoint``. On the connection of ``transaction()`` it commits with
        the writes made there. Raises LeaseLost."""
        with self._watching():
            saved = await self._store.save_checkpoint(
                self.lease, checkpoint=checkpoint, connection=connection
            )
        self.last_checkpoint = checkpoint
        return saved

    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Json:
        """Call ``function`` once in the life of the task, and give what it returned.

        The value (JSON) is recorded under ``name``; when the handler starts anew,
        after a wait or a crash, it is given again and nothing is called. A worker
        that dies between the call and the record calls it once more: let the
        function bear that. It may be async; a plain one runs here, on the loop.
        What it raises passes, and nothing is recorded. Raises LeaseLost, and
        UsageError for a name used twice in one attempt.
        """
        return await self._carry_out(self._steps.step(name, function, args, kwargs))

    async def emit(self, item: Json) -> int:
        """Append an item to the task's stream; its number, from 1.

        Waits while the stream is full, until its reader has made room. Raises
        LeaseLost, and StopRequested when the handler is to stop while it waits.
        """
        return await self.emit_many((item,))

    async def emit_many(self, items: Iterable[Json]) -> int:
        """``emit`` for several items, in order, in few calls; the number of the last."""
        async with self._emitting:
            return await self._carry_out(self._streaming().emit(items))

    async def stream_position(self) -> int:
        """The number of the last item in the stream, 0 for none: where a handler that
        starts anew goes on."""
        return await self._carry_out(self._streaming().position())

    async def fan_out(self, name: str, request: FanOutRequest) -> FanOutResult:
        """Have all candidates worked on by workers; their answers, in order.

        Durable: until they are there the handler ends (with an outcome: let it
        pass), holds no slot, and is called again from its start. What it did before
        should be ``step``s. ``name`` says which fan-out of this task is meant.
        A later attempt meets the same one too: to ask again takes another name.
        Without a ``topic`` the candidates go to this task's. Raises LeaseLost,
        BadArgument, TaskCancelled when the fan-out was cancelled, UsageError for a
        name that stands for another request.
        """
        return await self._carry_out(self._fans.fan_out(name, request))

    async def scatter_gather(
        self, name: str, request: ScatterGatherRequest
    ) -> ScatterGatherResult:
        """``fan_out`` until the request's policy is decided, and one value of it all."""
        return await self._carry_out(self._fans.scatter_gather(name, request))

    async def start_fan_out(self, name: str, request: Request) -> UUID:
        """Let the candidates begin, and go on; ``fan_out`` (or ``scatter_gather``) with
        the same name waits for them. The id of the whole."""
        return await self._carry_out(self._fans.start(name, request))

    async def join_results(self) -> tuple[CandidateResult, ...]:
        """For the handler of a request's ``then``: the answers that it is to reduce.
        Raises UsageError in other tasks."""
        return await self._carry_out(self._fans.own_results())

    @asynccontextmanager
    async def transaction(
        self, *, terminate: bool = False
    ) -> AsyncIterator[FencedTransaction[AsyncConnection[Any]]]:
        """A transaction that commits only under this lease.

        Write on its ``connection``. With ``terminate`` the task ends in the same
        commit, with its ``result``; the handler's return value then counts for
        nothing. Raises LeaseLost, and nothing was written.
        """
        if terminate:
            await self.finish()
        self._enter()
        try:
            with self._watching():
                async with self._store.transaction(self.lease, terminate=terminate) as block:
                    yield block
            self.terminated = terminate
        finally:
            self._leave()

    async def wait_cancelled(self) -> str:
        """Wait until the handler is to stop; the reason."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self.on_stop(lambda: call_soon(loop, done.set))
        await done.wait()
        return self.cancel_reason or ""

    async def finish(self) -> None:
        """Write what progress was held back. Called by the worker at the end."""
        await self._carry_out(self._finish())

    async def _carry_out(self, plan: Plan[T]) -> T:
        return await carry_out_async(plan, self._do)

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Ask):
            with self._watching():
                return await getattr(self._store, step.verb)(*step.arguments, **step.options)
        if isinstance(step, Invoke):
            value = step.function(*step.arguments, **step.options)
            return await value if inspect.isawaitable(value) else value
        if isinstance(step, Pause):
            return await self._streaming().news.wait_async(step.seconds)
        return await _landed(step)

    def _arm(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, self._flush_on, loop)

    def _flush_on(self, loop: asyncio.AbstractEventLoop) -> None:
        progress = self._reporting()
        if progress.wants_flush:
            late = loop.create_task(self._carry_out(progress.flush()))
            self._late.add(late)
            late.add_done_callback(self._late.discard)


async def _landed(landing: Landing) -> None:
    flight: Awaitable[None] = asyncio.wrap_future(landing.flight)
    with suppress(TimeoutError):
        async with asyncio.timeout(landing.seconds):
            await asyncio.shield(flight)

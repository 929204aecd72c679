"""Local runs: tasks that this process works off by what it was handed.

An embedded worker serves one topic that is the scheduler's own, so leases,
heartbeats, cancellation, time limits, retries and ends are those of every worker.
What it calls is looked up by the id of the task, else by its kind (after a
restart, a scheduler of the same id takes up what was left).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from sokka_pg.context import SyncTaskContext, TaskContext
from sokka_pg.engine.backoff import Backoff
from sokka_pg.errors import BadArgument, Busy, SokkaError
from sokka_pg.model import Fail, Outcome, Retry
from sokka_pg.registry import Findable, Mode, PayloadReader, Registry, TaskSpec
from sokka_pg.runner import Stores
from sokka_pg.worker import Worker, WorkerOptions
from sokka_pg.workload.calling import Work
from sokka_pg.workload.settings import Settings

log = logging.getLogger("sokka_pg.workload")

UNNAMED = "default"
MOST_KINDS = 1_000
NO_LIMIT = timedelta(days=300)
LAST_WRITES_S = 12.0
LOOP_CHECK_S = 1.0
FORGET_AFTER_S = 5.0
"""A task that is final may still be on its way through the worker."""


@dataclass(slots=True)
class Accepted:
    """Tasks that are run by a work. ``ids``: those that are to be."""

    work: Work
    ids: list[UUID]


class Works(Registry):
    """What to call for which task."""

    def __init__(self, handler: Callable[[Work], TaskSpec]) -> None:
        super().__init__()
        self._by_id: dict[UUID, Work] = {}
        self._by_kind: OrderedDict[str, Work] = OrderedDict()
        self._handler = handler

    def __len__(self) -> int:
        return len(self._by_id)

    def unknown(self, task_ids: Iterable[UUID]) -> list[UUID]:
        return [task_id for task_id in task_ids if task_id not in self._by_id]

    def learn(self, accepted: Accepted) -> None:
        self._by_id.update(dict.fromkeys(accepted.ids, accepted.work))

    def learn_kind(self, work: Work, kind: str) -> None:
        if kind == UNNAMED:
            return
        self._by_kind[kind] = work
        self._by_kind.move_to_end(kind)
        if len(self._by_kind) > MOST_KINDS:
            self._by_kind.popitem(last=False)

    def forget(self, accepted: Accepted) -> None:
        for task_id in accepted.ids:
            if self._by_id.get(task_id) is accepted.work:
                del self._by_id[task_id]

    def find(self, task: Findable) -> TaskSpec | None:
        work = self._by_id.get(task.task_id) or self._by_kind.get(task.kind)
        if work is None or (work.lost and task.task_id not in self._by_id):
            return None
        return self._handler(work)


class LocalRuns:
    """What runs here, and the worker that runs it. On one loop."""

    def __init__(
        self, settings: Settings, stores: Stores, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._settings, self._stores, self._loop = settings, stores, loop
        self.works = Works(self._spec)
        self._worker: Worker | None = None
        self._serving: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @contextmanager
    def accepting(self, work: Work, ids: list[UUID], kind: str = UNNAMED) -> Iterator[Accepted]:
        """Create these tasks in the block: they may run before it ends. Ids that are
        known keep what they have unless the block succeeds. Raises Busy beyond the limit.
        """
        new = Accepted(work, self.works.unknown(ids))
        most = self._settings.limits.local_tasks
        if len(self.works) + len(new.ids) > most:
            raise Busy(f"{most} local tasks are unfinished; try again when some have ended")
        self.works.learn(new)
        self.works.learn_kind(work, kind)
        if self._serving is None:
            self._serving = self._loop.create_task(self._serve())
        accepted = Accepted(work, ids)
        try:
            yield accepted
        except BaseException:
            self.forget(new)
            raise
        self.works.learn(accepted)
        self.forget(Accepted(work, [each for each in new.ids if each not in accepted.ids]))

    def forget(self, accepted: Accepted) -> None:
        """These are final, or never were."""
        if accepted.ids:
            self._loop.call_later(FORGET_AFTER_S, self.works.forget, accepted)

    async def close(self, grace_s: float) -> None:
        """Let runs end within the grace period, then tell them to stop; what has not
        ended by then is given back."""
        self._closing.set()
        if self._serving is None:
            return
        if self._worker is not None:
            self._worker.stop(now=grace_s <= 0)
            await asyncio.wait({self._serving}, timeout=grace_s)
            self._worker.stop(now=True)
        await asyncio.wait({self._serving}, timeout=LAST_WRITES_S)
        self._serving.cancel()

    async def _serve(self) -> None:
        backoff = Backoff(0.5, 30.0)
        while not self._closing.is_set():
            self._worker = self._new_worker()
            try:
                await self._worker.run()
            except SokkaError as error:
                log.warning("the worker of local tasks ended, trying again: %s", error)
            except Exception:
                log.exception("the worker of local tasks broke, trying again")
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await self._closing.wait()

    def _new_worker(self) -> Worker:
        settings = self._settings
        return Worker(
            self.works, self._stores, settings.database_url, settings.schema,
            topics={settings.local_topic: settings.local_slots},
            pid=f"{settings.scheduler_id}:{secrets.token_hex(4)}",
            options=WorkerOptions(
                lease=settings.lease, grace=NO_LIMIT, prefetch=0, poll=settings.poll_s
            ),
            connections=settings.connections, observers=settings.observers,
        )

    # --- one run ----------------------------------------------------------

    def _spec(self, work: Work) -> TaskSpec:
        topic = self._settings.local_topic
        if work.asynchronous:
            return TaskSpec("local", topic, partial(self._run_async, work), Mode.ASYNC, _ASYNC)
        return TaskSpec("local", topic, partial(self._run_sync, work), Mode.THREAD, _SYNC)

    def _run_sync(self, work: Work, data: Any, context: SyncTaskContext) -> Any:
        if work.stream is not None:
            bounds = work.stream
            self._stores.sync.open_stream(context.task.task_id, bounds.max_items, bounds.max_bytes)
        value = work.call(context)
        if inspect.iscoroutine(value):
            # of a lambda, say, which does not look like a coroutine function
            value = self._awaited(value, work.loop or self._loop, context)
        return self._storable(value)

    def _awaited(
        self, value: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop,
        context: SyncTaskContext,
    ) -> Any:
        future = asyncio.run_coroutine_threadsafe(value, loop)

        def stop() -> None:
            future.cancel()

        context.on_stop(stop)
        return future.result()

    async def _run_async(self, work: Work, data: Any, context: TaskContext) -> Any:
        if work.stream is not None:
            bounds = work.stream
            await self._stores.asynchronous.open_stream(
                context.task.task_id, bounds.max_items, bounds.max_bytes
            )
        if work.loop is None or work.loop is asyncio.get_running_loop():
            return self._storable(await work.call(context))
        return self._storable(await self._elsewhere(work.call, work.loop, context))

    def _storable(self, value: Any) -> Any:
        if value is None or isinstance(value, Outcome):
            return value
        try:
            return self._settings.limits.result(value)
        except BadArgument as refused:
            return Fail({"code": "result_not_storable", "message": refused.message})

    async def _elsewhere(
        self, call: Callable[[Any], Any], loop: asyncio.AbstractEventLoop, context: TaskContext
    ) -> Any:
        """Await ``call`` on another loop. A cancellation is passed on, and its end waited
        for: it may have something to say."""
        inner = TaskContext(context.task, self._stores.asynchronous, self._lost)
        context.lead(inner)
        done: asyncio.Future[asyncio.Task[Any]] = asyncio.get_running_loop().create_future()
        begun: list[asyncio.Task[Any]] = []

        def begin() -> None:
            begun.append(loop.create_task(_finished(call, inner)))
            begun[0].add_done_callback(partial(_hand_over, done))

        _post(loop, begin)
        while not done.done():
            try:
                await asyncio.wait({done}, timeout=LOOP_CHECK_S)
            except asyncio.CancelledError:
                _post(loop, lambda: begun[0].cancel())
            if loop.is_closed() and not done.done():
                raise _gone()
        context.terminated = inner.terminated
        if done.result().cancelled() and not context.cancelled:
            # by a loop that is about to end, and this scheduler with it: then the run
            # is given back; else its cancellation is an error of its own
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOP_CHECK_S):
                    await context.wait_cancelled()
        return done.result().result()

    def _lost(self, token: int, reason: str) -> None:
        if self._worker is not None:
            self._worker.lease_lost(token, reason)


async def _asynchronous(data: Any, context: TaskContext) -> None: ...


def _synchronous(data: Any, context: SyncTaskContext) -> None: ...


_ASYNC = PayloadReader(_asynchronous, Mode.ASYNC)
_SYNC = PayloadReader(_synchronous, Mode.THREAD)


async def _finished(call: Callable[[Any], Any], context: TaskContext) -> Any:
    try:
        return await call(context)
    finally:
        with suppress(SokkaError):
            await context.finish()


def _hand_over(done: asyncio.Future[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # it is told to the worker, not to the loop's handler

    def hand() -> None:
        if not done.done():
            done.set_result(task)

    with suppress(RuntimeError):  # the scheduler was closed meanwhile
        done.get_loop().call_soon_threadsafe(hand)


def _post(loop: asyncio.AbstractEventLoop, act: Callable[[], Any]) -> None:
    try:
        loop.call_soon_threadsafe(act)
    except RuntimeError:
        raise _gone() from None


def _gone() -> Retry:
    return Retry({"code": "loop_closed", "message": "the event loop that was to run it is closed"})

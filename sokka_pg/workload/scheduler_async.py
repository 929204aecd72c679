"""The workload scheduler for an event loop: ``WorkloadScheduler`` with awaits.

It may be used from any number of loops. Coroutine functions that it is handed run
on the loop of the call that handed them over; plain ones in threads.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar
from uuid import UUID

from sokka_pg.durations import Duration
from sokka_pg.errors import TaskFailed
from sokka_pg.gather import (
    CandidateResult,
    FanOutRequest,
    FanOutResult,
    Reducer,
    ScatterGatherRequest,
    ScatterGatherResult,
    TaskFailure,
)
from sokka_pg.model import Join, Json, Status, StreamAppended, StreamItem
from sokka_pg.workload import fanning
from sokka_pg.workload.calling import (
    CandidateInvoker,
    StreamBounds,
    StreamProducer,
    WorkerInvoker,
    WorkloadExecutor,
    executor_work,
    invoker_work,
    producer_work,
)
from sokka_pg.workload.core import Verb
from sokka_pg.workload.fanning import checked_request
from sokka_pg.workload.reading import ProgressReader, next_items
from sokka_pg.workload.shell import Shell
from sokka_pg.workload.words import (
    TaskCheckpoint,
    TaskLease,
    TaskProgress,
    TaskRef,
    TaskStatus,
    TaskStatuses,
    TaskSubmission,
    checked_submission,
    task_id_of,
)

T = TypeVar("T")


class AsyncWorkloadScheduler(Shell):
    __doc__ = Shell.__doc__

    async def _call(self, verb: Verb[T]) -> T:
        return await asyncio.wrap_future(self._begin(verb))

    async def _wait(self, wait: Verb[T], within: Duration | None = None) -> T:
        return await asyncio.wrap_future(self._begin_wait(wait, within))

    # --- tasks ------------------------------------------------------------

    async def submit(self, submission: TaskSubmission) -> AsyncWorkloadHandle:
        """Like ``WorkloadScheduler.submit``."""
        checked_submission(submission)
        return AsyncWorkloadHandle(self, *await self._call(lambda core: core.submit(submission)))

    async def submit_async(
        self, submission: TaskSubmission, executor: WorkloadExecutor
    ) -> AwaitableResult:
        """Like ``WorkloadScheduler.submit_async``; a coroutine function runs on this loop."""
        checked_submission(submission)
        work = executor_work(executor, asyncio.get_running_loop())
        found = await self._call(lambda core: core.submit_local(submission, work))
        return AwaitableResult(self, *found)

    async def submit_one_way(
        self, submission: TaskSubmission, executor: WorkloadExecutor
    ) -> TaskRef:
        """Like ``WorkloadScheduler.submit_one_way``."""
        return TaskRef((await self.submit_async(submission, executor)).task_id)

    def attach(self, task_id: UUID | str | TaskRef) -> AsyncWorkloadHandle:
        """Like ``WorkloadScheduler.attach``."""
        return AsyncWorkloadHandle(self, task_id_of(task_id))

    async def cancel(self, task_id: UUID | str | TaskRef, reason: str | None = None) -> str:
        """Like ``WorkloadScheduler.cancel``."""
        return (await self._call(lambda core: core.cancel(task_id, reason))).outcome

    async def status(self, task_id: UUID | str | TaskRef) -> TaskStatus:
        """Like ``WorkloadScheduler.status``."""
        return await self._call(lambda core: core.status(task_id))

    async def list_tasks(
        self,
        *,
        topic: str | None = None,
        kind: str | None = None,
        status: Status | str | Iterable[Status | str] | None = None,
        task_group_id: UUID | str | None = None,
        limit: int = 1_000,
        cursor: str | None = None,
    ) -> TaskStatuses:
        """Like ``WorkloadScheduler.list_tasks``."""
        filters = {
            "topic": topic, "kind": kind, "status": status, "task_group_id": task_group_id
        }
        return await self._call(lambda core: core.list_tasks(filters, limit, cursor))

    # --- leases -----------------------------------------------------------

    async def acquire_lease(
        self, task_id: UUID | str | TaskRef, owner: Any, duration: Duration | None = None
    ) -> TaskLease:
        """Like ``WorkloadScheduler.acquire_lease``."""
        return await self._call(lambda core: core.acquire_lease(task_id, owner, duration))

    async def renew_lease(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any,
        duration: Duration | None = None,
    ) -> TaskLease:
        """Like ``WorkloadScheduler.renew_lease``."""
        return await self._call(lambda core: core.renew_lease(task_id, owner, token, duration))

    async def release_lease(self, task_id: UUID | str | TaskRef, owner: Any, token: Any) -> None:
        """Like ``WorkloadScheduler.release_lease``."""
        await self._call(lambda core: core.release_lease(task_id, owner, token))

    async def report_progress(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, progress: TaskProgress
    ) -> None:
        """Like ``WorkloadScheduler.report_progress``."""
        await self._call(lambda core: core.report_progress(task_id, owner, token, progress))

    async def checkpoint(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, metadata: Mapping[str, str]
    ) -> TaskCheckpoint:
        """Like ``WorkloadScheduler.checkpoint``."""
        return await self._call(lambda core: core.checkpoint(task_id, owner, token, metadata))

    async def complete(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, result: Json = None
    ) -> None:
        """Like ``WorkloadScheduler.complete``; carried through if this call is cancelled."""
        await self._call(lambda core: core.complete(task_id, owner, token, result))

    async def fail(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, failure: TaskFailure
    ) -> None:
        """Like ``WorkloadScheduler.fail``; carried through if this call is cancelled."""
        await self._call(lambda core: core.fail(task_id, owner, token, failure))

    # --- streams ----------------------------------------------------------

    async def stream(
        self, submission: TaskSubmission, producer: StreamProducer,
        *, max_items: int = 1_000, max_bytes: int = 8 * 1024 * 1024,
    ) -> AsyncStreamHandle[Any]:
        """Like ``WorkloadScheduler.stream``; async producers run on this loop."""
        checked_submission(submission)
        bounds = StreamBounds(max_items, max_bytes)
        work = producer_work(producer, asyncio.get_running_loop(), bounds)
        return AsyncStreamHandle(self, await self._call(lambda core: core.stream(submission, work)))

    async def open_stream(
        self, submission: TaskSubmission, *, max_items: int = 1_000,
        max_bytes: int = 8 * 1024 * 1024,
    ) -> AsyncStreamHandle[Any]:
        """Like ``WorkloadScheduler.open_stream``."""
        checked_submission(submission)
        bounds = StreamBounds(max_items, max_bytes)
        found = await self._call(lambda core: core.open_stream(submission, bounds))
        return AsyncStreamHandle(self, found)

    def attach_stream(
        self, task_id: UUID | str | TaskRef, after: int | None = None
    ) -> AsyncStreamHandle[Any]:
        """Like ``WorkloadScheduler.attach_stream``."""
        return AsyncStreamHandle(self, task_id_of(task_id), after)

    async def append_stream(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, items: Iterable[Json],
        after: int | None = None,
    ) -> StreamAppended:
        """Like ``WorkloadScheduler.append_stream``."""
        return await self._call(
            lambda core: core.append_stream(task_id, owner, token, items, after)
        )

    # --- fan-outs ---------------------------------------------------------

    async def fan_out(
        self, request: FanOutRequest, invoker: CandidateInvoker
    ) -> FanOutResult:
        """Like ``WorkloadScheduler.fan_out``; a coroutine function runs on this loop."""
        return await (await self.start_fan_out(request, invoker)).result()

    async def start_fan_out(
        self, request: FanOutRequest, invoker: CandidateInvoker
    ) -> AsyncFanOutHandle:
        """``fan_out`` without waiting."""
        checked_request(request, scatter=False)
        return AsyncFanOutHandle(self, await self._started(request, invoker))

    async def scatter_gather(
        self, request: ScatterGatherRequest, invoker: CandidateInvoker
    ) -> ScatterGatherResult:
        """Like ``WorkloadScheduler.scatter_gather``; the reducer is called on this loop and
        may be a coroutine function."""
        return await (await self.start_scatter_gather(request, invoker)).result()

    async def start_scatter_gather(
        self, request: ScatterGatherRequest, invoker: CandidateInvoker
    ) -> AsyncScatterGatherHandle:
        """``scatter_gather`` without waiting."""
        checked_request(request, scatter=True)
        found = await self._started(request, invoker)
        return AsyncScatterGatherHandle(self, found, request.reducer)

    def attach_fan_out(self, task_id: UUID | str | TaskRef) -> AsyncFanOutHandle:
        """Like ``WorkloadScheduler.attach_fan_out``."""
        return AsyncFanOutHandle(self, task_id_of(task_id))

    def attach_scatter_gather(
        self, task_id: UUID | str | TaskRef, reducer: Reducer | None = None
    ) -> AsyncScatterGatherHandle:
        """Like ``WorkloadScheduler.attach_scatter_gather``."""
        return AsyncScatterGatherHandle(self, task_id_of(task_id), reducer)

    async def _started(self, request: Any, invoker: Any) -> UUID:
        if not isinstance(invoker, WorkerInvoker):
            invoker = invoker_work(invoker, asyncio.get_running_loop())
        return await self._call(lambda core: fanning.start(core, request, invoker))

    # --- the end ----------------------------------------------------------

    async def close(self, grace: Duration = 0) -> None:
        """Like ``WorkloadScheduler.close``; goes on if this call is cancelled."""
        await asyncio.shield(asyncio.wrap_future(self._begin_end(grace)))

    async def __aenter__(self) -> AsyncWorkloadScheduler:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()


class AsyncTaskHandle:
    """``TaskHandle`` with awaits."""

    def __init__(self, scheduler: AsyncWorkloadScheduler, task_id: UUID) -> None:
        self._scheduler = scheduler
        self.task_id = task_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id}>"

    async def status(self) -> TaskStatus:
        """A snapshot. Raises NoTaskFound."""
        return await self._scheduler.status(self.task_id)

    async def done(self) -> bool:
        """Whether the task is at its end. Raises NoTaskFound."""
        return await self._scheduler._call(lambda core: core.is_final(self.task_id))

    async def cancel(self, reason: str | None = None) -> str:
        """Like ``WorkloadScheduler.cancel``."""
        return await self._scheduler.cancel(self.task_id, reason)

    async def progress(self) -> AsyncIterator[TaskProgress]:
        """Like ``TaskHandle.progress``."""
        changes = ProgressReader(self.task_id)
        while not changes.ended:
            found = await self._scheduler._wait(changes.next)
            if found is not None:
                yield found


class AsyncWorkloadHandle(AsyncTaskHandle):
    """``WorkloadHandle`` with awaits; awaiting the handle awaits its result."""

    def __init__(
        self, scheduler: AsyncWorkloadScheduler, task_id: UUID, created: bool = False
    ) -> None:
        super().__init__(scheduler, task_id)
        self.created = created

    async def result(self, timeout: Duration | None = None) -> Json:  # noqa: ASYNC109
        """Like ``WorkloadHandle.result``."""
        return await self._scheduler._wait(lambda core: core.result(self.task_id), timeout)

    def __await__(self) -> Generator[Any, None, Json]:
        return self.result().__await__()


class AwaitableResult(AsyncWorkloadHandle):
    """``AsyncResult`` with awaits; awaiting it awaits the task's result."""

    async def exception(self, timeout: Duration | None = None) -> TaskFailed | None:  # noqa: ASYNC109
        """Like ``AsyncResult.exception``."""
        try:
            await self.result(timeout)
        except TaskFailed as failed:
            return failed
        return None


class AsyncFanOutHandle(AsyncTaskHandle):
    """``FanOutHandle`` with awaits."""

    async def result(self, timeout: Duration | None = None) -> FanOutResult:  # noqa: ASYNC109
        """Like ``FanOutHandle.result``."""
        found = await self._scheduler._wait(
            lambda core: fanning.decided(core, self.task_id), timeout
        )
        return fanning.fan_out_result(found)

    async def results(self) -> tuple[CandidateResult, ...]:
        """Like ``FanOutHandle.results``."""
        return await self._scheduler._call(lambda core: fanning.results(core, self.task_id))

    async def state(self) -> Join:
        """Like ``FanOutHandle.state``."""
        return await self._scheduler._call(lambda core: fanning.state(core, self.task_id))


class AsyncScatterGatherHandle(AsyncTaskHandle):
    """``ScatterGatherHandle`` with awaits."""

    def __init__(
        self, scheduler: AsyncWorkloadScheduler, task_id: UUID, reducer: Reducer | None = None
    ) -> None:
        super().__init__(scheduler, task_id)
        self._reducer = reducer

    async def result(self, timeout: Duration | None = None) -> ScatterGatherResult:  # noqa: ASYNC109
        """Like ``ScatterGatherHandle.result``."""
        found = await self._scheduler._wait(
            lambda core: fanning.decided(core, self.task_id), timeout
        )
        gathered = fanning.scatter_gather_result(found, self._reducer)
        if inspect.isawaitable(gathered.value):
            gathered = replace(gathered, value=await gathered.value)
        return gathered

    async def results(self) -> tuple[CandidateResult, ...]:
        """Like ``FanOutHandle.results``."""
        return await self._scheduler._call(lambda core: fanning.results(core, self.task_id))

    async def state(self) -> Join:
        """Like ``FanOutHandle.state``."""
        return await self._scheduler._call(lambda core: fanning.state(core, self.task_id))


class AsyncStreamHandle(AsyncTaskHandle, Generic[T]):
    """``StreamHandle`` with awaits: ``async for item in handle``."""

    def __init__(
        self, scheduler: AsyncWorkloadScheduler, task_id: UUID, after: int | None = None
    ) -> None:
        super().__init__(scheduler, task_id)
        self._items: deque[StreamItem] = deque()
        self.position: int | None = after
        """The number of the last item that was handed out: where to resume ``after``."""

    def __aiter__(self) -> AsyncStreamHandle[T]:
        return self

    async def __anext__(self) -> T:
        return await self.next()

    async def next(self, timeout: Duration | None = None) -> T:  # noqa: ASYNC109
        """The next item. Raises StopAsyncIteration at the end, and TimeoutError."""
        if not self._items:
            self._items.extend(
                await self._scheduler._wait(
                    lambda core: next_items(core, self.task_id, self.position), timeout
                )
            )
        if not self._items:
            raise StopAsyncIteration
        item = self._items.popleft()
        self.position = item.seq
        return item.item  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Cancel the producer, if it is not at its end. Idempotent."""
        await self.cancel("its stream was closed")

    async def __aenter__(self) -> AsyncStreamHandle[T]:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

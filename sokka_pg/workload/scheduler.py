"""The workload scheduler for programs without an event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
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


class WorkloadScheduler(Shell):
    __doc__ = Shell.__doc__

    def _call(self, verb: Verb[T]) -> T:
        return self._begin(verb).result()

    def _wait(self, wait: Verb[T], timeout: Duration | None = None) -> T:
        future: Future[T] = self._begin_wait(wait, timeout)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C ends the wait, not the task
            future.cancel()
            raise

    # --- tasks ------------------------------------------------------------

    def submit(self, submission: TaskSubmission) -> WorkloadHandle:
        """Accept a task, for workers of its topic; committed on return.

        Raises TaskAlreadyExists for a ``task_id`` that is taken, NoTaskFound and
        AlreadyDone for a parent that is none or not live, BadArgument.
        """
        checked_submission(submission)
        return WorkloadHandle(self, *self._call(lambda core: core.submit(submission)))

    def submit_async(
        self, submission: TaskSubmission, executor: WorkloadExecutor
    ) -> AsyncResult:
        """Accept a task and run it here, under a lease that is kept alive.

        ``executor`` takes the context of the run (a ``SyncTaskContext`` in a thread,
        or a ``TaskContext`` for a coroutine function); the payload is
        ``context.task.data``. ``topic`` of the submission does not count. Raises
        Busy when too many local tasks are unfinished, and what ``submit`` raises.
        """
        checked_submission(submission)
        work = executor_work(executor, None)
        return AsyncResult(self, *self._call(lambda core: core.submit_local(submission, work)))

    def submit_one_way(
        self, submission: TaskSubmission, executor: WorkloadExecutor
    ) -> TaskRef:
        """``submit_async`` for one who does not wait: returns when it is committed."""
        return TaskRef(self.submit_async(submission, executor).task_id)

    def attach(self, task_id: UUID | str | TaskRef) -> WorkloadHandle:
        """The handle of any task, whoever submitted it. An unknown id shows at the
        first use."""
        return WorkloadHandle(self, task_id_of(task_id))

    def cancel(self, task_id: UUID | str | TaskRef, reason: str | None = None) -> str:
        """Ask for a task to be cancelled, and all below it.

        ``cancelled``: it waited, and has failed now; ``requested`` or
        ``already_requested``: it runs, and its owner is told; ``already_done``. Raises
        NoTaskFound.
        """
        return self._call(lambda core: core.cancel(task_id, reason)).outcome

    def status(self, task_id: UUID | str | TaskRef) -> TaskStatus:
        """A snapshot. Raises NoTaskFound."""
        return self._call(lambda core: core.status(task_id))

    def list_tasks(
        self,
        *,
        topic: str | None = None,
        kind: str | None = None,
        status: Status | str | Iterable[Status | str] | None = None,
        task_group_id: UUID | str | None = None,
        limit: int = 1_000,
        cursor: str | None = None,
    ) -> TaskStatuses:
        """Snapshots of the tasks of this queue, those that changed last first.

        At most ``limit`` (1 to 10,000); where there are more, the ``cursor`` of the
        list goes into the next call. Without payloads and metadata.
        """
        filters = {
            "topic": topic, "kind": kind, "status": status, "task_group_id": task_group_id
        }
        return self._call(lambda core: core.list_tasks(filters, limit, cursor))

    # --- leases -----------------------------------------------------------

    def acquire_lease(
        self, task_id: UUID | str | TaskRef, owner: Any, duration: Duration | None = None
    ) -> TaskLease:
        """Become the owner of a task, under a new and higher token.

        An owner that acquires its own task again gets a new token, and the old one is
        dead. ``duration``: default the scheduler's. Raises LeaseHeld while another
        owner's lease is live, NotDue, AlreadyDone, NoTaskFound, BadArgument.
        """
        return self._call(lambda core: core.acquire_lease(task_id, owner, duration))

    def renew_lease(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any,
        duration: Duration | None = None,
    ) -> TaskLease:
        """Let a live lease last for ``duration`` from now, under its token. It may become
        shorter. A lease that is over stays over.

        Raises LeaseExpired, WrongOwner, StaleToken, InvalidStatusTransition,
        AlreadyDone, NoTaskFound: so do all verbs that show an owner and a token, and
        then nothing was changed.
        """
        return self._call(lambda core: core.renew_lease(task_id, owner, token, duration))

    def release_lease(self, task_id: UUID | str | TaskRef, owner: Any, token: Any) -> None:
        """Give a task back, for another owner. The attempt does not count."""
        self._call(lambda core: core.release_lease(task_id, owner, token))

    def report_progress(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, progress: TaskProgress
    ) -> None:
        """Say how far a task is; the last word stays. Does not extend the lease.

        Written at once, then no more often than ``progress_every``; what was held back
        is written a moment later, and before any other verb of the same lease. A
        lease that is lost shows in this call or in the next one.
        """
        self._call(lambda core: core.report_progress(task_id, owner, token, progress))

    def checkpoint(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, metadata: Mapping[str, str]
    ) -> TaskCheckpoint:
        """Record a safe point, in place of the last one; the next owner is handed it."""
        return self._call(lambda core: core.checkpoint(task_id, owner, token, metadata))

    def complete(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, result: Json = None
    ) -> None:
        """End a task with its result.

        A result that cannot be stored ends it failed, code ``result_not_storable``;
        then BadArgument says why.
        """
        self._call(lambda core: core.complete(task_id, owner, token, result))

    def fail(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, failure: TaskFailure
    ) -> None:
        """End a task as failed, for good."""
        self._call(lambda core: core.fail(task_id, owner, token, failure))

    # --- streams ----------------------------------------------------------

    def stream(
        self, submission: TaskSubmission, producer: StreamProducer,
        *, max_items: int = 1_000, max_bytes: int = 8 * 1024 * 1024,
    ) -> StreamHandle[Any]:
        """Produce a stream here: a local task, whose items go through the database.

        ``producer`` takes the context and emits, or is a generator of items. It waits
        while ``max_items`` or ``max_bytes`` are unread. One that starts anew, after a
        lost lease, goes on after ``context.stream_position()``.
        """
        checked_submission(submission)
        work = producer_work(producer, None, StreamBounds(max_items, max_bytes))
        return StreamHandle(self, self._call(lambda core: core.stream(submission, work)))

    def open_stream(
        self, submission: TaskSubmission, *, max_items: int = 1_000,
        max_bytes: int = 8 * 1024 * 1024,
    ) -> StreamHandle[Any]:
        """A stream whose producer is a worker's handler, which emits."""
        checked_submission(submission)
        bounds = StreamBounds(max_items, max_bytes)
        return StreamHandle(self, self._call(lambda core: core.open_stream(submission, bounds)))

    def attach_stream(
        self, task_id: UUID | str | TaskRef, after: int | None = None
    ) -> StreamHandle[Any]:
        """Read a task's stream from here. ``after``: the last number that you are done
        with; default: the last one that a reader acknowledged."""
        return StreamHandle(self, task_id_of(task_id), after)

    def append_stream(
        self, task_id: UUID | str | TaskRef, owner: Any, token: Any, items: Iterable[Json],
        after: int | None = None,
    ) -> StreamAppended:
        """Append items under a lease, as many as fit, without waiting for room.

        ``after``: what you take for the last number; TaskConcurrentlyUpdated if it is not.
        """
        return self._call(lambda core: core.append_stream(task_id, owner, token, items, after))

    # --- fan-outs ---------------------------------------------------------

    def fan_out(
        self, request: FanOutRequest, invoker: CandidateInvoker
    ) -> FanOutResult:
        """Have every candidate worked on, and wait for all the answers.

        ``invoker``: a function of ``(candidate)`` or ``(candidate, context)``, called
        here; or a ``WorkerInvoker``. What a candidate raises is its failure, not
        this call's. Raises TaskCancelled when the whole was cancelled.
        """
        return self.start_fan_out(request, invoker).result()

    def start_fan_out(
        self, request: FanOutRequest, invoker: CandidateInvoker
    ) -> FanOutHandle:
        """``fan_out`` without waiting."""
        checked_request(request, scatter=False)
        return FanOutHandle(self, self._started(request, invoker))

    def scatter_gather(
        self, request: ScatterGatherRequest, invoker: CandidateInvoker
    ) -> ScatterGatherResult:
        """Have the candidates worked on until the policy is decided; the rest is
        cancelled. The reducer is called on this thread, and what it raises passes."""
        return self.start_scatter_gather(request, invoker).result()

    def start_scatter_gather(
        self, request: ScatterGatherRequest, invoker: CandidateInvoker
    ) -> ScatterGatherHandle:
        """``scatter_gather`` without waiting."""
        checked_request(request, scatter=True)
        return ScatterGatherHandle(self, self._started(request, invoker), request.reducer)

    def attach_fan_out(self, task_id: UUID | str | TaskRef) -> FanOutHandle:
        """The handle of a fan-out that was begun elsewhere."""
        return FanOutHandle(self, task_id_of(task_id))

    def attach_scatter_gather(
        self, task_id: UUID | str | TaskRef, reducer: Reducer | None = None
    ) -> ScatterGatherHandle:
        """The handle of a scatter-gather that was begun elsewhere."""
        return ScatterGatherHandle(self, task_id_of(task_id), reducer)

    def _started(self, request: Any, invoker: Any) -> UUID:
        if not isinstance(invoker, WorkerInvoker):
            invoker = invoker_work(invoker, None)
        return self._call(lambda core: fanning.start(core, request, invoker))

    # --- the end ----------------------------------------------------------

    def close(self, grace: Duration = 0) -> None:
        """Refuse new calls (UsageError), stop local runs, give their leases back.

        Runs may end within ``grace``, then they are told to stop. Tasks that others
        work on, and leases that were acquired by hand, stay as they are. Idempotent.
        """
        self._begin_end(grace).result()

    def __enter__(self) -> WorkloadScheduler:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class TaskHandle:
    """What all handles can do. They are no more than an id and a scheduler: the task
    goes on without them, and another process may ``attach`` to it."""

    def __init__(self, scheduler: WorkloadScheduler, task_id: UUID) -> None:
        self._scheduler = scheduler
        self.task_id = task_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.task_id}>"

    def status(self) -> TaskStatus:
        """A snapshot. Raises NoTaskFound."""
        return self._scheduler.status(self.task_id)

    def done(self) -> bool:
        """Whether the task is at its end. Raises NoTaskFound."""
        return self._scheduler._call(lambda core: core.is_final(self.task_id))

    def cancel(self, reason: str | None = None) -> str:
        """Like ``WorkloadScheduler.cancel``."""
        return self._scheduler.cancel(self.task_id, reason)

    def progress(self) -> Iterator[TaskProgress]:
        """Each progress that is met, until the task is at its end; changes that follow
        each other closely may be met as one."""
        changes = ProgressReader(self.task_id)
        while not changes.ended:
            found = self._scheduler._wait(changes.next)
            if found is not None:
                yield found


class WorkloadHandle(TaskHandle):
    """A task, and the future of its result. ``created``: whether this submission made
    it; false where a ``unique_key`` stood for an earlier one, and when attached."""

    def __init__(
        self, scheduler: WorkloadScheduler, task_id: UUID, created: bool = False
    ) -> None:
        super().__init__(scheduler, task_id)
        self.created = created

    def result(self, timeout: Duration | None = None) -> Json:
        """Wait for the end; the result. Raises TaskFailed, TaskCancelled, NoTaskFound,
        and TimeoutError, which says nothing about the task."""
        return self._scheduler._wait(lambda core: core.result(self.task_id), timeout)


class AsyncResult(WorkloadHandle):
    """The future of a task that runs here. Giving up waiting for it says nothing about
    the task, which ``cancel`` asks to stop."""

    def exception(self, timeout: Duration | None = None) -> TaskFailed | None:
        """Wait for the end; why there is no result, or None. Raises TimeoutError."""
        try:
            self.result(timeout)
        except TaskFailed as failed:
            return failed
        return None


class FanOutHandle(TaskHandle):
    """A fan-out that is under way, here or elsewhere."""

    def result(self, timeout: Duration | None = None) -> FanOutResult:
        """Wait for all answers. Raises TaskCancelled, and TimeoutError, which says
        nothing about the fan-out."""
        found = self._scheduler._wait(lambda core: fanning.decided(core, self.task_id), timeout)
        return fanning.fan_out_result(found)

    def results(self) -> tuple[CandidateResult, ...]:
        """The answers so far, in order; those without one have the failure ``pending``."""
        return self._scheduler._call(lambda core: fanning.results(core, self.task_id))

    def state(self) -> Join:
        """How many have answered, and late. Raises BadArgument for a task that is no
        fan-out."""
        return self._scheduler._call(lambda core: fanning.state(core, self.task_id))


class ScatterGatherHandle(TaskHandle):
    """A scatter-gather that is under way, here or elsewhere."""

    def __init__(
        self, scheduler: WorkloadScheduler, task_id: UUID, reducer: Reducer | None = None
    ) -> None:
        super().__init__(scheduler, task_id)
        self._reducer = reducer

    def result(self, timeout: Duration | None = None) -> ScatterGatherResult:
        """Wait until it is decided. An unmet policy is a result (``satisfied`` is
        false). Raises TimeoutError, which says nothing about the task."""
        found = self._scheduler._wait(lambda core: fanning.decided(core, self.task_id), timeout)
        return fanning.scatter_gather_result(found, self._reducer)

    def results(self) -> tuple[CandidateResult, ...]:
        """Like ``FanOutHandle.results``."""
        return self._scheduler._call(lambda core: fanning.results(core, self.task_id))

    def state(self) -> Join:
        """Like ``FanOutHandle.state``."""
        return self._scheduler._call(lambda core: fanning.state(core, self.task_id))


class StreamHandle(TaskHandle, Generic[T]):
    """An iterator over the items of a stream, in order, each once.

    Asking for the next item acknowledges the ones before, which makes room for the
    producer. It ends with the producer; if that failed, with TaskFailed, after the
    last item. As a context manager it is closed at the end of the block.
    """

    def __init__(
        self, scheduler: WorkloadScheduler, task_id: UUID, after: int | None = None
    ) -> None:
        super().__init__(scheduler, task_id)
        self._items: deque[StreamItem] = deque()
        self.position: int | None = after
        """The number of the last item that was handed out: where to resume ``after``."""

    def __iter__(self) -> StreamHandle[T]:
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: Duration | None = None) -> T:
        """The next item. Raises StopIteration at the end, and TimeoutError."""
        if not self._items:
            self._items.extend(
                self._scheduler._wait(
                    lambda core: next_items(core, self.task_id, self.position), timeout
                )
            )
        if not self._items:
            raise StopIteration
        item = self._items.popleft()
        self.position = item.seq
        return item.item  # type: ignore[no-any-return]

    def close(self) -> None:
        """Cancel the producer, if it is not at its end. Idempotent."""
        self.cancel("its stream was closed")

    def __enter__(self) -> StreamHandle[T]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

"""What a scheduler does, once: both shells call this, and so does every handle.

A core lives on the loop of its process's home. Its verbs are single calls of the
store; whoever waits is told by the watcher. A verb that was begun is carried
through even if its caller stops waiting, so that a cancelled caller never cuts
off the write that ends a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from typing import Any, TypeAlias, TypeVar, cast
from uuid import UUID, uuid4

from sokka_pg import calls
from sokka_pg.connections import async_source, run_on_async
from sokka_pg.durations import Duration, to_timedelta
from sokka_pg.errors import BadArgument, SokkaError, TaskFailed, UsageError
from sokka_pg.gather import TaskFailure
from sokka_pg.model import (
    CancelOutcome,
    Json,
    Lease,
    Status,
    StreamAppended,
    Task,
    TaskLook,
    TaskSummary,
)
from sokka_pg.payload import Encoded
from sokka_pg.store import PgTaskStore
from sokka_pg.workload.calling import StreamBounds, Work
from sokka_pg.workload.home import Home
from sokka_pg.workload.local import Accepted, LocalRuns
from sokka_pg.workload.progress import ProgressLines
from sokka_pg.workload.settings import Settings
from sokka_pg.workload.stores import limited_stores
from sokka_pg.workload.sweeping import Sweeper
from sokka_pg.workload.watching import Wanted, Watcher
from sokka_pg.workload.words import (
    TOPIC,
    FencingToken,
    LeaseOwner,
    TaskCheckpoint,
    TaskLease,
    TaskProgress,
    TaskStatus,
    TaskStatuses,
    TaskSubmission,
    checked_metadata,
    checkpoint_of,
    missing,
    owner_text,
    summary_fields,
    task_id_of,
    token_number,
)

log = logging.getLogger("sokka_pg.workload")

T = TypeVar("T")

Verb: TypeAlias = "Callable[[Core], Coroutine[Any, Any, T]]"

SWEPT_AT_ONCE = 100
CLOSED = "closed"
"""Why a wait is cancelled, where its scheduler was closed."""

LEFT_WAITING = timedelta(days=1)
"""How long a local task may wait for a process that will not come back."""


def proof(task_id: object, owner: object, token: object) -> Lease:
    """The lease that a caller shows. Raises BadArgument."""
    return Lease(task_id_of(task_id), owner_text(owner), token_number(token))


class Core:
    """One scheduler at work. All but ``__init__`` on the home's loop."""

    def __init__(self, settings: Settings, home: Home) -> None:
        self.settings, self.home = settings, home
        self.store, self._stores = limited_stores(settings)
        self._source = async_source(
            settings.database_url, settings.schema, replace(settings.connections, max_size=1)
        )
        self._progress = ProgressLines(self._write_progress, settings.progress_every_s)
        self._waits: set[asyncio.Task[Any]] = set()
        self._aside: set[asyncio.Task[Any]] = set()
        self._clock: tuple[datetime, float] | None = None
        self._settled = asyncio.Event()
        self.closed = False
        self.local = LocalRuns(settings, self._stores, home.loop)
        self._watcher: Watcher | None = None
        self.sweeper = Sweeper(lambda: self.store.sweep(SWEPT_AT_ONCE))

    # --- how a call is made -----------------------------------------------

    async def carried_through(self, verb: Verb[T]) -> T:
        """A verb, which goes on if the one who waits for it is cancelled."""
        if self.closed:
            raise UsageError("this scheduler is closed")
        task = asyncio.get_running_loop().create_task(verb(self))
        self._keep(task)
        return await asyncio.shield(task)

    async def waiting(self, wait: Verb[T], within: Duration | None) -> T:
        """A wait, which ends with its caller, after so long, or when this closes."""
        task = asyncio.current_task()
        if self.closed or task is None:
            raise UsageError("this scheduler is closed")
        most_s = None if within is None else to_timedelta(within, "timeout").total_seconds()
        self._waits.add(task)
        try:
            async with asyncio.timeout(most_s):
                return await wait(self)
        except TimeoutError:
            raise TimeoutError("not within the timeout; the task goes on") from None
        except asyncio.CancelledError as cancelled:
            # a caller who has gone is told nothing: nobody would hear it
            if cancelled.args == (CLOSED,):
                raise UsageError("this scheduler was closed; the task goes on") from None
            raise
        finally:
            self._waits.discard(task)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._aside.add(task)
        task.add_done_callback(self._kept)

    def _kept(self, task: asyncio.Task[Any]) -> None:
        self._aside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # as a rule its caller was told; one that was cancelled was not
            log.debug("a call ended with %s", type(error).__name__)

    async def close(self, grace: Duration = 0) -> None:
        """Refuse new calls, stop local runs and give their leases back. Idempotent:
        a second call waits for the first."""
        grace_s = to_timedelta(grace, "grace").total_seconds()
        if self.closed:
            await self._settled.wait()
            return
        self.closed = True
        try:
            await self.local.close(grace_s)
            for wait in list(self._waits):
                wait.cancel(CLOSED)
            if self._aside:
                await asyncio.wait(set(self._aside), timeout=10.0)
            await self._progress.close()
        finally:
            if self._watcher is not None:
                await self._watcher.release()
            await self.store.close()
            await self._source.close()
            await self._close_sync_store()
            self._settled.set()

    async def _close_sync_store(self) -> None:
        close = cast(PgTaskStore, self._stores.sync).close
        try:
            await asyncio.to_thread(close)
        except RuntimeError:  # an interpreter that ends lends no more threads
            close()

    # --- submitting -------------------------------------------------------

    async def submit(self, submission: TaskSubmission) -> tuple[UUID, bool]:
        """The task's id, and whether it was created here."""
        return await self._create(submission, submission.topic or TOPIC, {})

    async def submit_local(self, submission: TaskSubmission, work: Work) -> tuple[UUID, bool]:
        """Like ``submit``, for a task that is run here."""
        task_id = UUID(str(submission.task_id)) if submission.task_id else uuid4()
        submission = replace(submission, task_id=task_id)
        defaults = await self.local_options()
        with self.local.accepting(work, [task_id], submission.kind) as accepted:
            found, created = await self._create(submission, self.settings.local_topic, defaults)
            # else its unique key stood for an earlier one
            accepted.ids = [task_id] if found == task_id else []
        self.forget_at_end(accepted, task_id)
        return found, created

    async def local_options(self) -> dict[str, Any]:
        """Without a lasting id nobody takes up what this process leaves: such tasks
        fail when their lease is lost, and wait for a day at most."""
        if self.settings.named:
            return {}
        return {"max_losses": 0, "expires_at": await self._now() + LEFT_WAITING}

    async def _create(
        self, submission: TaskSubmission, topic: str, defaults: Mapping[str, Any],
        connection: Any = None,
    ) -> tuple[UUID, bool]:
        parent = submission.parent
        if isinstance(parent, TaskLease):
            # made under the parent's lease, and refused with it
            lease = proof(parent.task_id, parent.owner, parent.token)
            if connection is None:
                async with self.store.transaction(lease) as fence:
                    return await self._create(submission, topic, defaults, fence.connection)
            await self.store.assert_lease(lease, connection=connection)
        options = {"task_id": uuid4(), **defaults, **submission.options()}
        created = await self.store.create_task(
            topic, submission.payload, connection=connection, **options
        )
        return created.task_id, created.created

    def forget_at_end(self, accepted: Accepted, of: UUID) -> None:
        """Forget what was accepted when the task ``of`` is final."""
        if accepted.ids:
            task = asyncio.get_running_loop().create_task(self._forget_at_end(accepted, of))
            self._waits.add(task)
            task.add_done_callback(self._waits.discard)

    async def _forget_at_end(self, accepted: Accepted, of: UUID) -> None:
        try:
            await self.watched(of, _final)
        except SokkaError as error:
            log.warning("local tasks are kept in mind no longer: %s", error)
        finally:
            self.local.forget(accepted)

    async def _now(self) -> datetime:
        """The database's time, asked for once and counted on from there."""
        if self._clock is None:
            at = monotonic()
            async with self._source.connection() as connection:
                now = await run_on_async(connection, calls.clock(), self.settings.schema)
            self._clock = (now, at)
        now, at = self._clock
        return now + timedelta(seconds=monotonic() - at)

    async def monotonic_of(self, at: datetime | None) -> float:
        """An instant of the database in this process's monotonic seconds; never for None."""
        if at is None:
            return inf
        return monotonic() + (at - await self._now()).total_seconds()

    # --- leases -----------------------------------------------------------

    async def acquire_lease(
        self, task_id: object, owner: object, duration: Duration | None
    ) -> TaskLease:
        task = await self.store.acquire_lease(
            task_id_of(task_id), owner_text(owner), self._lease_time(duration)
        )
        checkpoint = None
        if task.checkpoint is not None:
            # nobody else can write one while the lease is ours
            found = await self._task(task.task_id)
            checkpoint = checkpoint_of(found)
        return TaskLease.of(task, checkpoint)

    async def renew_lease(
        self, task_id: object, owner: object, token: object, duration: Duration | None
    ) -> TaskLease:
        lease = proof(task_id, owner, token)
        state = await self.store.renew_lease(lease, duration=self._lease_time(duration))
        return TaskLease(
            lease.task_id, LeaseOwner(lease.pid), FencingToken(lease.token),
            state.lease_expires_at,
        )

    async def release_lease(self, task_id: object, owner: object, token: object) -> None:
        lease = proof(task_id, owner, token)
        await self._progress.flush(lease)
        await self.store.release_lease(lease)

    def _lease_time(self, duration: Duration | None) -> Duration:
        return self.settings.lease if duration is None else duration

    # --- under a lease ----------------------------------------------------

    async def report_progress(
        self, task_id: object, owner: object, token: object, progress: TaskProgress
    ) -> None:
        if not isinstance(progress, TaskProgress):
            raise BadArgument.of("progress", "must be a TaskProgress", progress)
        text = self.settings.limits.progress(progress.as_json())
        await self._progress.report(proof(task_id, owner, token), text)

    async def _write_progress(self, lease: Lease, text: Encoded) -> None:
        await self.store.report_progress(lease, progress=text)

    async def checkpoint(
        self, task_id: object, owner: object, token: object, metadata: Mapping[str, str]
    ) -> TaskCheckpoint:
        lease = proof(task_id, owner, token)
        text = self.settings.limits.checkpoint(dict(checked_metadata(metadata)))
        await self._progress.flush(lease)
        saved = await self.store.save_checkpoint(lease, checkpoint=text)
        return TaskCheckpoint(
            lease.task_id, saved.seq, dict(metadata), FencingToken(lease.token), saved.saved_at
        )

    async def complete(self, task_id: object, owner: object, token: object, result: Json) -> None:
        lease = proof(task_id, owner, token)
        await self._progress.flush(lease)
        try:
            await self.store.terminate(lease, result=self.settings.limits.result(result))
        except BadArgument as refused:
            # nothing can mend it, and a task must not be left running for it
            await self.store.fail(
                lease, error={"code": "result_not_storable", "message": refused.message}
            )
            raise

    async def fail(
        self, task_id: object, owner: object, token: object, failure: TaskFailure
    ) -> None:
        lease = proof(task_id, owner, token)
        if not isinstance(failure, TaskFailure):
            raise BadArgument.of("failure", "must be a TaskFailure", failure)
        await self._progress.flush(lease)
        await self.store.fail(lease, error=failure.to_error())

    # --- anybody ----------------------------------------------------------

    async def cancel(self, task_id: object, reason: str | None) -> CancelOutcome:
        return await self.store.cancel(task_id_of(task_id), reason)

    async def status(self, task_id: object) -> TaskStatus:
        task = await self._task(task_id_of(task_id))
        redact = self.settings.redact
        checkpoint = checkpoint_of(task)
        if checkpoint is not None:
            checkpoint = replace(checkpoint, metadata=redact(checkpoint.metadata))
        return TaskStatus(
            **summary_fields(task), result=task.result, progress=TaskProgress.of(task.progress),
            checkpoint=checkpoint, metadata=redact(task.headers),
            parent_task_id=task.parent_task_id,
        )

    async def list_tasks(
        self, filters: Mapping[str, Any], limit: int, cursor: str | None
    ) -> TaskStatuses:
        page = await self.store.list_tasks(filters, cursor, limit, descending=True)
        return TaskStatuses([_snapshot(line) for line in page.items], page.cursor)

    async def _task(self, task_id: UUID) -> Task:
        found = await self.store.task(task_id)
        if found is None:
            raise missing(task_id)
        return found

    # --- waiting ----------------------------------------------------------

    async def watched(self, task_id: UUID, wanted: Wanted) -> TaskLook | None:
        """The first look at the task of which ``wanted`` is true."""
        if self._watcher is None:
            settings = self.settings
            self._watcher = self.home.watcher(
                settings.database_url, settings.schema, settings.connections, settings.poll_s
            )
        return await self._watcher.until(task_id, wanted)

    async def final(self, task_id: UUID) -> Task:
        """The task, when it is at its end."""
        await self.watched(task_id, _final)
        return await self._task(task_id)

    async def result(self, task_id: UUID) -> Json:
        """What the task came to. Raises TaskFailed, TaskCancelled, NoTaskFound."""
        task = await self.final(task_id)
        if task.status is Status.FAILED:
            raise TaskFailed.of(task_id, task.error)
        return task.result

    async def is_final(self, task_id: UUID) -> bool:
        looks = await self.store.peek_tasks([task_id])
        if not looks:
            raise missing(task_id)
        return looks[0].status.final

    # --- streams ----------------------------------------------------------

    async def stream(self, submission: TaskSubmission, work: Work) -> UUID:
        """A stream that is produced here."""
        task_id, created = await self.submit_local(submission, work)
        if created and work.stream is not None:
            await self._open(task_id, work.stream)
        return task_id

    async def open_stream(self, submission: TaskSubmission, bounds: StreamBounds) -> UUID:
        """A stream that a worker's handler produces; it finds these bounds."""
        async with self._source.connection() as connection, connection.transaction():
            topic = submission.topic or TOPIC
            task_id, created = await self._create(submission, topic, {}, connection)
            if created:
                await self._open(task_id, bounds, connection)
        return task_id

    async def _open(self, task_id: UUID, bounds: StreamBounds, connection: Any = None) -> None:
        await self.store.open_stream(
            task_id, bounds.max_items, bounds.max_bytes, connection=connection
        )

    async def append_stream(
        self, task_id: object, owner: object, token: object, items: Iterable[Json],
        after: int | None,
    ) -> StreamAppended:
        return await self.store.append_stream(
            proof(task_id, owner, token), items=items, after=after
        )


def _final(look: TaskLook | None) -> bool:
    return look is None or look.status.final


def _snapshot(line: TaskSummary) -> TaskStatus:
    return TaskStatus(**summary_fields(line))

"""The verbs of ``TaskStore`` for an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from typing_extensions import Unpack

from sokka_pg.calls import FanOutOptions, ScheduleSpec, TaskOptions
from sokka_pg.calls.batches import BATCH
from sokka_pg.durations import Duration
from sokka_pg.fence import FencedTransaction
from sokka_pg.model import (
    BatchesCreated,
    CancelOutcome,
    CheckpointSaved,
    CreatedId,
    CreatedTask,
    DueSchedule,
    ExtendVerdict,
    FanOutCreated,
    FireVerdict,
    Join,
    JoinResult,
    Json,
    LeasedTask,
    LeaseState,
    Lock,
    NextLook,
    Page,
    PutSchedule,
    Retained,
    ScheduleFire,
    ScheduleRow,
    SettledBatch,
    Settlement,
    SettleVerdict,
    StepRecord,
    StepRecorded,
    StreamAppended,
    StreamItem,
    StreamState,
    SweepReport,
    Task,
    TaskEvent,
    TaskLook,
    TaskOutcome,
    TaskSummary,
    TopicStat,
    TopicState,
    TreeNode,
    TriggeredRun,
)
from sokka_pg.store.protocol import ErrorLike, LeaseLike


class AsyncTaskStore(Protocol):
    """The verbs of ``TaskStore``, each with the same arguments and promise, awaited."""

    def transaction(
        self, lease: LeaseLike, *, terminate: bool = False
    ) -> AbstractAsyncContextManager[FencedTransaction[Any]]: ...

    async def close(self) -> None: ...

    async def create_task(
        self,
        topic: str,
        data: object = None,
        *,
        connection: Any = None,
        **options: Unpack[TaskOptions],
    ) -> CreatedTask: ...

    async def create_tasks(
        self, specs: Iterable[Mapping[str, Any]], *, connection: Any = None
    ) -> list[CreatedId]: ...
    async def create_tasks_in_batches(
        self,
        specs: Iterable[Mapping[str, Any]],
        *,
        batch_size: int = BATCH,
        each: Callable[[list[CreatedId]], object] | None = None,
        connection: Any = None,
    ) -> BatchesCreated: ...

    async def task(self, task_id: UUID | str, *, connection: Any = None) -> Task | None: ...

    async def tasks(self, task_group_id: UUID | str, *, connection: Any = None) -> list[Task]: ...

    async def list_tasks(
        self,
        filters: Mapping[str, Any] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        descending: bool = False,
        connection: Any = None,
    ) -> Page[TaskSummary]: ...

    async def list_leased_tasks(
        self, topic: str, cursor: str | None = None, limit: int = 100, *, connection: Any = None
    ) -> Page[TaskSummary]: ...

    async def history(self, task_id: UUID | str, *, connection: Any = None) -> list[TaskEvent]: ...

    async def topics(
        self, topic: str | None = None, *, connection: Any = None
    ) -> list[TopicStat]: ...

    async def reserve_task(
        self, topic: str, pid: str, lease: Duration | None = None, *, connection: Any = None
    ) -> LeasedTask | None: ...

    async def reserve_tasks(
        self,
        topics: Sequence[str],
        pid: str,
        max_tasks: int = 1,
        lease: Duration | None = None,
        *,
        limits: Sequence[int] | None = None,
        connection: Any = None,
    ) -> list[LeasedTask]: ...

    async def acquire_lease(
        self,
        task_id: UUID | str,
        pid: str,
        lease: Duration | None = None,
        *,
        connection: Any = None,
    ) -> LeasedTask: ...

    async def extend_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> LeaseState: ...

    async def renew_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> LeaseState: ...

    async def extend_leases(
        self,
        pid: str,
        leases: Iterable[tuple[UUID, int]],
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> list[ExtendVerdict]: ...

    async def release_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        connection: Any = None,
    ) -> TaskOutcome: ...

    async def terminate(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        result: Json = None,
        connection: Any = None,
    ) -> TaskOutcome: ...

    async def terminate_many(
        self,
        pid: str,
        leases: Iterable[tuple[UUID, int]],
        results: Sequence[Json] | None = None,
        *,
        connection: Any = None,
    ) -> list[SettleVerdict]: ...

    async def snooze(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        delay: Duration,
        connection: Any = None,
    ) -> TaskOutcome: ...

    async def fail(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        error: ErrorLike,
        connection: Any = None,
    ) -> TaskOutcome: ...

    async def retry(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        error: ErrorLike,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> TaskOutcome: ...

    async def settle_tasks(
        self, pid: str, settlements: Iterable[Settlement], *, connection: Any = None
    ) -> list[SettleVerdict]: ...

    async def settle_and_reserve(
        self,
        pid: str,
        settlements: Iterable[Settlement],
        topics: Sequence[str],
        max_tasks: int = 1,
        lease: Duration | None = None,
        *,
        limits: Sequence[int] | None = None,
        connection: Any = None,
    ) -> SettledBatch: ...

    async def report_progress(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        progress: Json,
        connection: Any = None,
    ) -> int: ...

    async def save_checkpoint(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        checkpoint: Json,
        connection: Any = None,
    ) -> CheckpointSaved: ...

    async def fan_out(
        self,
        specs: Iterable[Mapping[str, Any]],
        *,
        connection: Any = None,
        **options: Unpack[FanOutOptions],
    ) -> FanOutCreated: ...

    async def join(self, task_id: UUID | str, *, connection: Any = None) -> Join | None: ...

    async def join_results(
        self, task_id: UUID | str, after: int = 0, limit: int = 1_000, *, connection: Any = None
    ) -> list[JoinResult]: ...

    async def wait_for_task(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        waits_for: UUID | str,
        connection: Any = None,
    ) -> TaskOutcome: ...

    async def record_step(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        name: str,
        value: Json,
        connection: Any = None,
    ) -> StepRecorded: ...

    async def steps(self, task_id: UUID | str, *, connection: Any = None) -> list[StepRecord]: ...

    async def open_stream(
        self,
        task_id: UUID | str,
        max_items: int = 1_000,
        max_bytes: int = 8 * 1024 * 1024,
        *,
        connection: Any = None,
    ) -> StreamState: ...

    async def append_stream(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        items: Iterable[Json],
        after: int | None = None,
        connection: Any = None,
    ) -> StreamAppended: ...

    async def read_stream(
        self,
        task_id: UUID | str,
        after: int = 0,
        max_items: int = 100,
        max_bytes: int = 8 * 1024 * 1024,
        *,
        connection: Any = None,
    ) -> list[StreamItem]: ...

    async def stream(
        self, task_id: UUID | str, *, connection: Any = None
    ) -> StreamState | None: ...

    async def watch_tasks(
        self,
        watcher: str,
        task_ids: Iterable[UUID | str],
        duration: Duration,
        *,
        connection: Any = None,
    ) -> int: ...

    async def unwatch_tasks(
        self, watcher: str, task_ids: Iterable[UUID | str] | None = None, *, connection: Any = None
    ) -> None: ...

    async def peek_tasks(
        self, task_ids: Iterable[UUID | str], *, connection: Any = None
    ) -> list[TaskLook]: ...

    async def task_tree(
        self,
        task_id: UUID | str,
        max_rows: int = 1_000,
        max_children: int = 100,
        *,
        connection: Any = None,
    ) -> list[TreeNode]: ...

    async def assert_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        connection: Any = None,
    ) -> LeaseState: ...

    async def advance_fence(self, resource: str, token: int, *, connection: Any = None) -> int: ...

    async def revoke_lease(
        self,
        task_id: UUID | str,
        record_ver: int,
        reason: str | None = None,
        *,
        connection: Any = None,
    ) -> TaskOutcome: ...

    async def cancel(
        self, task_id: UUID | str, reason: str | None = None, *, connection: Any = None
    ) -> CancelOutcome: ...

    async def resubmit(
        self, task_id: UUID | str, reason: str | None = None, *, connection: Any = None
    ) -> CreatedTask: ...

    async def pause_topic(
        self, topic: str, reason: str | None = None, *, connection: Any = None
    ) -> TopicState: ...

    async def resume_topic(
        self, topic: str, reason: str | None = None, *, connection: Any = None
    ) -> TopicState: ...

    async def set_topic(
        self,
        topic: str,
        *,
        lease: Duration | None = None,
        retention: Duration | None = None,
        connection: Any = None,
    ) -> TopicState: ...

    async def raise_token_epoch(self, reason: str, *, connection: Any = None) -> int: ...

    async def sweep(self, max_tasks: int = 1_000, *, connection: Any = None) -> SweepReport: ...

    async def prepare_partitions(self, *, connection: Any = None) -> int: ...

    async def apply_retention(
        self, max_rows: int = 10_000, *, connection: Any = None
    ) -> list[Retained]: ...

    async def mark_idle(
        self, topics: Sequence[str], pid: str, duration: Duration, *, connection: Any = None
    ) -> bool: ...

    async def clear_idle(self, pid: str, *, connection: Any = None) -> None: ...

    async def try_lock(
        self, key: str, owner: str, ttl: Duration, *, connection: Any = None
    ) -> Lock | None: ...

    async def renew_lock(
        self, key: str, owner: str, token: int, ttl: Duration, *, connection: Any = None
    ) -> datetime: ...

    async def release_lock(
        self, key: str, owner: str, token: int, *, connection: Any = None
    ) -> None: ...

    async def assert_lock(
        self, key: str, owner: str, token: int, *, connection: Any = None
    ) -> datetime: ...

    async def put_schedule(
        self,
        name: str,
        spec: ScheduleSpec | Mapping[str, Any],
        overwrite: bool = True,
        *,
        connection: Any = None,
    ) -> PutSchedule: ...

    async def schedule(self, name: str, *, connection: Any = None) -> ScheduleRow | None: ...

    async def list_schedules(
        self,
        filters: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        connection: Any = None,
    ) -> Page[ScheduleRow]: ...

    async def delete_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> bool: ...

    async def pause_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> ScheduleRow: ...

    async def resume_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> ScheduleRow: ...

    async def trigger_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> TriggeredRun: ...

    async def clock(self, *, connection: Any = None) -> datetime: ...

    async def next_schedule_at(self, *, connection: Any = None) -> NextLook | None: ...

    async def due_schedules(self, limit: int = 500, *, connection: Any) -> list[DueSchedule]: ...

    async def fire_schedules(
        self, fires: Iterable[ScheduleFire], *, connection: Any = None
    ) -> list[FireVerdict]: ...

    async def fire_due(
        self,
        plan: Callable[[list[DueSchedule]], Iterable[ScheduleFire]],
        limit: int = 500,
    ) -> list[FireVerdict]: ...

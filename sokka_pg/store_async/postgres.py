"""The task store for an event loop: ``TaskStore`` with awaits, on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from psycopg import AsyncConnection
from typing_extensions import Unpack

from sokka_pg import calls
from sokka_pg.calls import Call, FanOutOptions, ScheduleSpec, TaskOptions
from sokka_pg.calls.arguments import proof
from sokka_pg.calls.batches import BATCH
from sokka_pg.calls.repeating import Tries
from sokka_pg.calls.statement import checked_schema
from sokka_pg.connections import AsyncPool, ConnectionOptions, async_source, run_on_async
from sokka_pg.durations import Duration
from sokka_pg.errors import SokkaError
from sokka_pg.fence import FencedTransaction, fenced_async
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
from sokka_pg.payload import DATA_LIMIT
from sokka_pg.store.protocol import ErrorLike, LeaseLike
from sokka_pg.translate import translated

T = TypeVar("T")


class AsyncPgTaskStore:
    """``AsyncTaskStore`` over psycopg, like ``PgTaskStore``; its pool is opened at
    first use in each process and event loop."""

    def __init__(
        self,
        database: str | AsyncPool,
        schema: str = "sokka",
        *,
        options: ConnectionOptions | None = None,
        max_data_bytes: int = DATA_LIMIT,
    ) -> None:
        self.schema = checked_schema(schema)
        self._source = async_source(database, schema, options)
        self._max_data_bytes = max_data_bytes

    async def _run(self, call: Call[T], connection: Any) -> T:
        if connection is not None:
            return await run_on_async(connection, call, self.schema)
        tries = Tries(call)
        while True:
            try:
                return await self._source.run(tries.call)
            except SokkaError as error:
                await asyncio.sleep(tries.wait_after(error))

    def transaction(
        self, lease: LeaseLike, *, terminate: bool = False
    ) -> AbstractAsyncContextManager[FencedTransaction[AsyncConnection[Any]]]:
        return fenced_async(self._source, proof(lease), terminate=terminate)

    @property
    def pool_stats(self) -> Mapping[str, int]:
        """The figures of the pool, as psycopg's pool names them."""
        return self._source.stats()

    async def close(self) -> None:
        await self._source.close()

    async def __aenter__(self) -> AsyncPgTaskStore:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def create_task(
        self,
        topic: str,
        data: object = None,
        *,
        connection: Any = None,
        **options: Unpack[TaskOptions],
    ) -> CreatedTask:
        return await self._run(
            calls.create_task(topic, data, max_data_bytes=self._max_data_bytes, **options),
            connection,
        )

    async def create_tasks(
        self, specs: Iterable[Mapping[str, Any]], *, connection: Any = None
    ) -> list[CreatedId]:
        return await self._run(
            calls.create_tasks(specs, max_data_bytes=self._max_data_bytes), connection
        )

    async def create_tasks_in_batches(
        self,
        specs: Iterable[Mapping[str, Any]],
        *,
        batch_size: int = BATCH,
        each: Callable[[list[CreatedId]], object] | None = None,
        connection: Any = None,
    ) -> BatchesCreated:
        batches = calls.Batches(specs, batch_size, each, max_data_bytes=self._max_data_bytes)
        for _ in batches.prepare():
            await asyncio.sleep(0)
        while (call := batches.next_call()) is not None:
            try:
                answer = await self._run_beside(call, batches.prepare(), connection)
            except SokkaError as error:
                raise batches.failed(error) from error
            batches.answered(answer)
        return batches.total

    async def _run_beside(self, call: Call[T], meanwhile: Iterator[None], connection: Any) -> T:
        if connection is not None:
            answer = await run_on_async(connection, call, self.schema)
            for _ in meanwhile:
                await asyncio.sleep(0)
            return answer
        tries = Tries(call)
        while True:
            try:
                return await self._source.run_beside(tries.call, meanwhile)
            except SokkaError as error:
                await asyncio.sleep(tries.wait_after(error))

    async def task(self, task_id: UUID | str, *, connection: Any = None) -> Task | None:
        return await self._run(calls.get_task(task_id), connection)

    async def tasks(self, task_group_id: UUID | str, *, connection: Any = None) -> list[Task]:
        return await self._run(calls.list_group(task_group_id), connection)

    async def list_tasks(
        self,
        filters: Mapping[str, Any] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        descending: bool = False,
        connection: Any = None,
    ) -> Page[TaskSummary]:
        return await self._run(calls.list_tasks(filters, cursor, limit, descending), connection)

    async def list_leased_tasks(
        self, topic: str, cursor: str | None = None, limit: int = 100, *, connection: Any = None
    ) -> Page[TaskSummary]:
        return await self._run(calls.list_leased_tasks(topic, cursor, limit), connection)

    async def history(self, task_id: UUID | str, *, connection: Any = None) -> list[TaskEvent]:
        return await self._run(calls.history(task_id), connection)

    async def topics(self, topic: str | None = None, *, connection: Any = None) -> list[TopicStat]:
        return await self._run(calls.topics(topic), connection)

    async def reserve_task(
        self, topic: str, pid: str, lease: Duration | None = None, *, connection: Any = None
    ) -> LeasedTask | None:
        return await self._run(calls.reserve_task(topic, pid, lease), connection)

    async def reserve_tasks(
        self,
        topics: Sequence[str],
        pid: str,
        max_tasks: int = 1,
        lease: Duration | None = None,
        *,
        limits: Sequence[int] | None = None,
        connection: Any = None,
    ) -> list[LeasedTask]:
        return await self._run(
            calls.reserve_tasks(topics, pid, max_tasks, lease, limits), connection
        )

    async def acquire_lease(
        self,
        task_id: UUID | str,
        pid: str,
        lease: Duration | None = None,
        *,
        connection: Any = None,
    ) -> LeasedTask:
        return await self._run(calls.acquire_lease(task_id, pid, lease), connection)

    async def extend_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> LeaseState:
        return await self._run(calls.extend_lease(proof(lease, pid, token), duration), connection)

    async def renew_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> LeaseState:
        return await self._run(calls.renew_lease(proof(lease, pid, token), duration), connection)

    async def extend_leases(
        self,
        pid: str,
        leases: Iterable[tuple[UUID, int]],
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> list[ExtendVerdict]:
        return await self._run(calls.extend_leases(pid, leases, duration), connection)

    async def release_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        connection: Any = None,
    ) -> TaskOutcome:
        return await self._run(calls.release_lease(proof(lease, pid, token)), connection)

    async def terminate(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        result: Json = None,
        connection: Any = None,
    ) -> TaskOutcome:
        return await self._run(calls.terminate(proof(lease, pid, token), result), connection)

    async def terminate_many(
        self,
        pid: str,
        leases: Iterable[tuple[UUID, int]],
        results: Sequence[Json] | None = None,
        *,
        connection: Any = None,
    ) -> list[SettleVerdict]:
        return await self._run(calls.terminate_many(pid, leases, results), connection)

    async def snooze(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        delay: Duration,
        connection: Any = None,
    ) -> TaskOutcome:
        return await self._run(calls.snooze(proof(lease, pid, token), delay), connection)

    async def fail(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        error: ErrorLike,
        connection: Any = None,
    ) -> TaskOutcome:
        return await self._run(calls.fail(proof(lease, pid, token), error), connection)

    async def retry(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        error: ErrorLike,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> TaskOutcome:
        return await self._run(calls.retry(proof(lease, pid, token), error, delay), connection)

    async def settle_tasks(
        self, pid: str, settlements: Iterable[Settlement], *, connection: Any = None
    ) -> list[SettleVerdict]:
        return await self._run(calls.settle_tasks(pid, settlements), connection)

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
    ) -> SettledBatch:
        return await self._run(
            calls.settle_and_reserve(pid, settlements, topics, max_tasks, lease, limits), connection
        )

    async def report_progress(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        progress: Json,
        connection: Any = None,
    ) -> int:
        return await self._run(
            calls.report_progress(proof(lease, pid, token), progress), connection
        )

    async def save_checkpoint(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        checkpoint: Json,
        connection: Any = None,
    ) -> CheckpointSaved:
        return await self._run(
            calls.save_checkpoint(proof(lease, pid, token), checkpoint), connection
        )

    async def fan_out(
        self,
        specs: Iterable[Mapping[str, Any]],
        *,
        connection: Any = None,
        **options: Unpack[FanOutOptions],
    ) -> FanOutCreated:
        return await self._run(
            calls.fan_out(specs, max_data_bytes=self._max_data_bytes, **options), connection
        )

    async def join(self, task_id: UUID | str, *, connection: Any = None) -> Join | None:
        return await self._run(calls.get_join(task_id), connection)

    async def join_results(
        self, task_id: UUID | str, after: int = 0, limit: int = 1_000, *, connection: Any = None
    ) -> list[JoinResult]:
        return await self._run(calls.join_results(task_id, after, limit), connection)

    async def wait_for_task(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        waits_for: UUID | str,
        connection: Any = None,
    ) -> TaskOutcome:
        return await self._run(calls.wait_for_task(proof(lease, pid, token), waits_for), connection)

    async def record_step(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        name: str,
        value: Json,
        connection: Any = None,
    ) -> StepRecorded:
        return await self._run(
            calls.record_step(proof(lease, pid, token), name, value, self._max_data_bytes),
            connection,
        )

    async def steps(self, task_id: UUID | str, *, connection: Any = None) -> list[StepRecord]:
        return await self._run(calls.list_steps(task_id), connection)

    async def open_stream(
        self,
        task_id: UUID | str,
        max_items: int = 1_000,
        max_bytes: int = 8 * 1024 * 1024,
        *,
        connection: Any = None,
    ) -> StreamState:
        return await self._run(calls.open_stream(task_id, max_items, max_bytes), connection)

    async def append_stream(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        items: Iterable[Json],
        after: int | None = None,
        connection: Any = None,
    ) -> StreamAppended:
        return await self._run(
            calls.append_stream(proof(lease, pid, token), items, after, self._max_data_bytes),
            connection,
        )

    async def read_stream(
        self,
        task_id: UUID | str,
        after: int = 0,
        max_items: int = 100,
        max_bytes: int = 8 * 1024 * 1024,
        *,
        connection: Any = None,
    ) -> list[StreamItem]:
        return await self._run(calls.read_stream(task_id, after, max_items, max_bytes), connection)

    async def stream(self, task_id: UUID | str, *, connection: Any = None) -> StreamState | None:
        return await self._run(calls.get_stream(task_id), connection)

    async def watch_tasks(
        self,
        watcher: str,
        task_ids: Iterable[UUID | str],
        duration: Duration,
        *,
        connection: Any = None,
    ) -> int:
        return await self._run(calls.watch_tasks(watcher, task_ids, duration), connection)

    async def unwatch_tasks(
        self, watcher: str, task_ids: Iterable[UUID | str] | None = None, *, connection: Any = None
    ) -> None:
        return await self._run(calls.unwatch_tasks(watcher, task_ids), connection)

    async def peek_tasks(
        self, task_ids: Iterable[UUID | str], *, connection: Any = None
    ) -> list[TaskLook]:
        return await self._run(calls.peek_tasks(task_ids), connection)

    async def task_tree(
        self,
        task_id: UUID | str,
        max_rows: int = 1_000,
        max_children: int = 100,
        *,
        connection: Any = None,
    ) -> list[TreeNode]:
        return await self._run(calls.task_tree(task_id, max_rows, max_children), connection)

    async def assert_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        connection: Any = None,
    ) -> LeaseState:
        return await self._run(calls.assert_lease(proof(lease, pid, token)), connection)

    async def advance_fence(self, resource: str, token: int, *, connection: Any = None) -> int:
        return await self._run(calls.advance_fence(resource, token), connection)

    async def revoke_lease(
        self,
        task_id: UUID | str,
        record_ver: int,
        reason: str | None = None,
        *,
        connection: Any = None,
    ) -> TaskOutcome:
        return await self._run(calls.revoke_lease(task_id, record_ver, reason), connection)

    async def cancel(
        self, task_id: UUID | str, reason: str | None = None, *, connection: Any = None
    ) -> CancelOutcome:
        return await self._run(calls.cancel(task_id, reason), connection)

    async def resubmit(
        self, task_id: UUID | str, reason: str | None = None, *, connection: Any = None
    ) -> CreatedTask:
        return await self._run(calls.resubmit(task_id, reason), connection)

    async def pause_topic(
        self, topic: str, reason: str | None = None, *, connection: Any = None
    ) -> TopicState:
        return await self._run(calls.pause_topic(topic, reason), connection)

    async def resume_topic(
        self, topic: str, reason: str | None = None, *, connection: Any = None
    ) -> TopicState:
        return await self._run(calls.resume_topic(topic, reason), connection)

    async def set_topic(
        self,
        topic: str,
        *,
        lease: Duration | None = None,
        retention: Duration | None = None,
        connection: Any = None,
    ) -> TopicState:
        return await self._run(calls.set_topic(topic, lease, retention), connection)

    async def raise_token_epoch(self, reason: str, *, connection: Any = None) -> int:
        return await self._run(calls.raise_token_epoch(reason), connection)

    async def sweep(self, max_tasks: int = 1_000, *, connection: Any = None) -> SweepReport:
        return await self._run(calls.sweep(max_tasks), connection)

    async def prepare_partitions(self, *, connection: Any = None) -> int:
        return await self._run(calls.prepare_partitions(), connection)

    async def apply_retention(
        self, max_rows: int = 10_000, *, connection: Any = None
    ) -> list[Retained]:
        return await self._run(calls.apply_retention(max_rows), connection)

    async def mark_idle(
        self, topics: Sequence[str], pid: str, duration: Duration, *, connection: Any = None
    ) -> bool:
        return await self._run(calls.mark_idle(topics, pid, duration), connection)

    async def clear_idle(self, pid: str, *, connection: Any = None) -> None:
        return await self._run(calls.clear_idle(pid), connection)

    async def try_lock(
        self, key: str, owner: str, ttl: Duration, *, connection: Any = None
    ) -> Lock | None:
        return await self._run(calls.try_lock(key, owner, ttl), connection)

    async def renew_lock(
        self, key: str, owner: str, token: int, ttl: Duration, *, connection: Any = None
    ) -> datetime:
        return await self._run(calls.renew_lock(key, owner, token, ttl), connection)

    async def release_lock(
        self, key: str, owner: str, token: int, *, connection: Any = None
    ) -> None:
        return await self._run(calls.release_lock(key, owner, token), connection)

    async def assert_lock(
        self, key: str, owner: str, token: int, *, connection: Any = None
    ) -> datetime:
        return await self._run(calls.assert_lock(key, owner, token), connection)

    async def put_schedule(
        self,
        name: str,
        spec: ScheduleSpec | Mapping[str, Any],
        overwrite: bool = True,
        *,
        connection: Any = None,
    ) -> PutSchedule:
        return await self._run(
            calls.put_schedule(name, spec, overwrite, self._max_data_bytes), connection
        )

    async def schedule(self, name: str, *, connection: Any = None) -> ScheduleRow | None:
        return await self._run(calls.get_schedule(name), connection)

    async def list_schedules(
        self,
        filters: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        connection: Any = None,
    ) -> Page[ScheduleRow]:
        return await self._run(calls.list_schedules(filters, cursor, limit), connection)

    async def delete_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> bool:
        return await self._run(calls.delete_schedule(name, reason), connection)

    async def pause_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> ScheduleRow:
        return await self._run(calls.pause_schedule(name, reason), connection)

    async def resume_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> ScheduleRow:
        return await self._run(calls.resume_schedule(name, reason), connection)

    async def trigger_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> TriggeredRun:
        return await self._run(calls.trigger_schedule(name, reason), connection)

    async def clock(self, *, connection: Any = None) -> datetime:
        return await self._run(calls.clock(), connection)

    async def next_schedule_at(self, *, connection: Any = None) -> NextLook | None:
        return await self._run(calls.next_schedule_at(), connection)

    async def due_schedules(self, limit: int = 500, *, connection: Any) -> list[DueSchedule]:
        return await run_on_async(connection, calls.due_schedules(limit), self.schema)

    async def fire_schedules(
        self, fires: Iterable[ScheduleFire], *, connection: Any = None
    ) -> list[FireVerdict]:
        return await self._run(calls.fire_schedules(fires), connection)

    async def fire_due(
        self,
        plan: Callable[[list[DueSchedule]], Iterable[ScheduleFire]],
        limit: int = 500,
    ) -> list[FireVerdict]:
        async with self._source.connection() as connection:
            with translated():
                async with connection.transaction():
                    due = await self.due_schedules(limit, connection=connection)
                    if not due:
                        return []
                    return await self.fire_schedules(plan(due), connection=connection)

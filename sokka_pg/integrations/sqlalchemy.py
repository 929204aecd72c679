"""SQLAlchemy: fenced sessions and connections, and models of the views.

Enqueueing in a session's transaction needs nothing from here: give the store's
verbs ``connection=session``. This module fences the writes of a worker that
uses SQLAlchemy, and lets Python programs read the queue's views as models.

::

    with fenced_session(session, task.lease, terminate=True) as fenced:
        session.add(Invoice(...))
        fenced.result = {"invoice": "written"}
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, event
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sokka_pg import calls
from sokka_pg.calls.arguments import proof
from sokka_pg.connections import run_on, run_on_async
from sokka_pg.errors import UsageError
from sokka_pg.fence import FencedTransaction
from sokka_pg.store import LeaseLike
from sokka_pg.translate import translated


@contextmanager
def fenced_session(
    session: Session, lease: LeaseLike, *, terminate: bool = False, schema: str = "sokka"
) -> Iterator[FencedTransaction[Session]]:
    """A transaction of ``session`` that commits only under a live lease.

    It begins here and is committed at the end of the block; ``terminate=True``
    also ends the task in it. An exception undoes everything. Raises UsageError if
    the session is in a transaction already, and what ``assert_lease`` and
    ``terminate`` raise. After a DatabaseUnavailable from the commit, with
    ``terminate=True``, the task's status tells whether it took effect.
    """
    with _begun(session), _fenced(session, lease, terminate, schema) as fenced:
        yield fenced
        if terminate:
            # Pending objects first: the end of the task is to be the last statement.
            session.flush()


@contextmanager
def fenced_connection(
    connection: Connection, lease: LeaseLike, *, terminate: bool = False, schema: str = "sokka"
) -> Iterator[FencedTransaction[Connection]]:
    """Like ``fenced_session``, for a SQLAlchemy Core connection."""
    with _begun(connection), _fenced(connection, lease, terminate, schema) as fenced:
        yield fenced


@asynccontextmanager
async def fenced_async_session(
    session: AsyncSession, lease: LeaseLike, *, terminate: bool = False, schema: str = "sokka"
) -> AsyncIterator[FencedTransaction[AsyncSession]]:
    """The async twin of ``fenced_session``."""
    async with (
        _begun_async(session),
        _fenced_async(session, lease, terminate, schema) as fenced,
    ):
        yield fenced
        if terminate:
            await session.flush()


@asynccontextmanager
async def fenced_async_connection(
    connection: AsyncConnection, lease: LeaseLike, *, terminate: bool = False, schema: str = "sokka"
) -> AsyncIterator[FencedTransaction[AsyncConnection]]:
    """The async twin of ``fenced_connection``."""
    async with (
        _begun_async(connection),
        _fenced_async(connection, lease, terminate, schema) as fenced,
    ):
        yield fenced


@contextmanager
def _fenced(
    connection: Any, lease: LeaseLike, terminate: bool, schema: str
) -> Iterator[FencedTransaction[Any]]:
    held = proof(lease)
    run_on(connection, calls.assert_lease(held), schema)
    fenced = FencedTransaction(connection, held)
    yield fenced
    if terminate:
        fenced.outcome = run_on(connection, calls.terminate(held, fenced.result), schema)


@asynccontextmanager
async def _fenced_async(
    connection: Any, lease: LeaseLike, terminate: bool, schema: str
) -> AsyncIterator[FencedTransaction[Any]]:
    held = proof(lease)
    await run_on_async(connection, calls.assert_lease(held), schema)
    fenced = FencedTransaction(connection, held)
    yield fenced
    if terminate:
        end = calls.terminate(held, fenced.result)
        fenced.outcome = await run_on_async(connection, end, schema)


@contextmanager
def _begun(connection: Session | Connection) -> Iterator[None]:
    """A transaction whose commit's errors are ours; those of the block pass as they are."""
    _refuse_open(connection)
    transaction = connection.begin()
    transaction.__enter__()
    try:
        yield
    except BaseException as error:
        transaction.__exit__(type(error), error, error.__traceback__)
        raise
    with translated():
        transaction.__exit__(None, None, None)


@asynccontextmanager
async def _begun_async(connection: AsyncSession | AsyncConnection) -> AsyncIterator[None]:
    _refuse_open(connection)
    transaction = connection.begin()
    await transaction.__aenter__()
    try:
        yield
    except BaseException as error:
        await transaction.__aexit__(type(error), error, error.__traceback__)
        raise
    with translated():
        await transaction.__aexit__(None, None, None)


def _refuse_open(connection: Any) -> None:
    if connection.in_transaction():
        raise UsageError(
            "a fenced block is a transaction of its own: commit or roll back the open one first"
        )


class View(DeclarativeBase):
    """Base of the models of the queue's views. They are for reading: a flush that
    would write one raises UsageError.

    They name the schema ``sokka``; for another give the engine, connection or
    session ``execution_options(schema_translate_map={"sokka": "other"})``.
    """

    __table_args__ = {"schema": "sokka", "info": {"is_view": True}}  # noqa: RUF012
    type_annotation_map = {  # noqa: RUF012
        dict[str, Any]: JSONB(none_as_null=True),
        Any: JSONB(none_as_null=True),
    }


class AllTask(View):
    """A task, live or finished (within retention)."""

    __tablename__ = "all_tasks"

    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    task_group_id: Mapped[UUID]
    topic: Mapped[str]
    sub_topic: Mapped[str]
    kind: Mapped[str]
    status: Mapped[str]
    priority: Mapped[int]
    data: Mapped[Any]
    headers: Mapped[dict[str, Any] | None]
    run_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    timeout: Mapped[timedelta | None]
    max_attempts: Mapped[int]
    retry: Mapped[dict[str, Any] | None]
    max_losses: Mapped[int]
    unique_key: Mapped[str | None]
    attempt: Mapped[int]
    failures: Mapped[int]
    losses: Mapped[int]
    pid: Mapped[str | None]
    token: Mapped[int | None]
    leased_at: Mapped[datetime | None]
    lease_expires_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    cancel_reason: Mapped[str | None]
    progress: Mapped[Any]
    checkpoint: Mapped[Any]
    checkpoint_seq: Mapped[int]
    checkpoint_at: Mapped[datetime | None]
    result: Mapped[Any]
    error: Mapped[dict[str, Any] | None]
    record_ver: Mapped[int]
    resubmit_of: Mapped[UUID | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    parent_task_id: Mapped[UUID | None]
    candidate: Mapped[int | None]
    depth: Mapped[int]


class FanOut(View):
    """A task that stands for many, and how far they are."""

    __tablename__ = "fan_outs"

    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    parent_task_id: Mapped[UUID | None]
    policy: Mapped[str]
    needed: Mapped[int]
    total: Mapped[int]
    max_running: Mapped[int | None]
    in_flight: Mapped[int]
    done: Mapped[int]
    succeeded: Mapped[int]
    failed: Mapped[int]
    late: Mapped[int]
    state: Mapped[str]
    outcome: Mapped[str | None]
    deadline_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    decided_at: Mapped[datetime | None]


class Schedule(View):
    """What becomes a task, and when."""

    __tablename__ = "all_schedules"

    name: Mapped[str] = mapped_column(primary_key=True)
    schedule_id: Mapped[UUID]
    generation: Mapped[int]
    state: Mapped[str]
    schedule: Mapped[str]
    next_at: Mapped[datetime | None]
    last_fire_at: Mapped[datetime | None]
    last_task_id: Mapped[UUID | None]
    runs: Mapped[int]
    skipped: Mapped[int]
    repeats: Mapped[int | None]
    expires_at: Mapped[datetime | None]
    missed: Mapped[str]
    max_catch_up: Mapped[int]
    grace: Mapped[timedelta]
    serial: Mapped[bool]
    source: Mapped[str]
    description: Mapped[str | None]
    topic: Mapped[str]
    kind: Mapped[str]
    task: Mapped[dict[str, Any]]
    anchor_at: Mapped[datetime]
    paused_at: Mapped[datetime | None]
    failing_since: Mapped[datetime | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class FiredTick(View):
    """A tick of a schedule that became a task."""

    __tablename__ = "fired_ticks"

    name: Mapped[str]
    schedule_id: Mapped[UUID] = mapped_column(primary_key=True)
    generation: Mapped[int] = mapped_column(primary_key=True)
    fire_at: Mapped[datetime] = mapped_column(primary_key=True)
    fired_at: Mapped[datetime]
    task_id: Mapped[UUID]
    extra: Mapped[bool]


class HeldLock(View):
    """A key that somebody acts for right now."""

    __tablename__ = "held_locks"

    key: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    token: Mapped[int]
    acquired_at: Mapped[datetime]
    lock_expires_at: Mapped[datetime]


class TaskEvent(View):
    """One event of a task's history."""

    __tablename__ = "task_history"

    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    event: Mapped[str]
    pid: Mapped[str | None]
    token: Mapped[int | None]
    attempt: Mapped[int | None]
    detail: Mapped[dict[str, Any] | None]


class TopicStat(View):
    """A topic at a glance."""

    __tablename__ = "topic_stats"

    topic: Mapped[str] = mapped_column(primary_key=True)
    starting: Mapped[int]
    snoozed: Mapped[int]
    running: Mapped[int]
    oldest_ready_at: Mapped[datetime | None]
    next_due_at: Mapped[datetime | None]
    oldest_lease_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    lease: Mapped[timedelta | None]
    retention: Mapped[timedelta | None]


class LiveLease(View):
    """A task that is leased right now."""

    __tablename__ = "live_leases"

    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    topic: Mapped[str]
    kind: Mapped[str]
    pid: Mapped[str]
    token: Mapped[int]
    attempt: Mapped[int]
    leased_at: Mapped[datetime]
    lease_expires_at: Mapped[datetime]
    record_ver: Mapped[int]


class OpenFence(View):
    """An expired lease that an open transaction still protects."""

    __tablename__ = "open_fences"

    task_id: Mapped[UUID] = mapped_column(primary_key=True)
    topic: Mapped[str]
    pid: Mapped[str]
    token: Mapped[int]
    lease_expires_at: Mapped[datetime]
    backend_pid: Mapped[int | None]
    xact_start: Mapped[datetime | None]
    application_name: Mapped[str | None]


class AuditEntry(View):
    """One act of an operator."""

    __tablename__ = "audit_log"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str]
    action: Mapped[str]
    task_id: Mapped[UUID | None]
    topic: Mapped[str | None]
    reason: Mapped[str | None]
    detail: Mapped[dict[str, Any] | None]


def _refuse_write(mapper: Any, connection: Any, target: View) -> None:
    raise UsageError(f"{type(target).__name__} is a view for reading; use the store's verbs")


for _moment in ("before_insert", "before_update", "before_delete"):
    event.listen(View, _moment, _refuse_write, propagate=True)

"""Fenced transactions: user writes that are committed only under a live lease.

The lease is asserted first, which holds the task's row until the transaction
ends: nobody can take the task over while it is open, and a lease that is not
live and newest opens nothing. With ``terminate`` the task ends as the last
statement of the same transaction, so its effects happen exactly once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from psycopg import AsyncConnection, Connection

from sokka_pg import calls
from sokka_pg.connections import (
    AsyncBorrowedSource,
    AsyncSource,
    BorrowedSource,
    Source,
    run_on,
    run_on_async,
)
from sokka_pg.errors import DatabaseUnavailable
from sokka_pg.model import Json, Lease, Status, Task, TaskOutcome
from sokka_pg.translate import translated

C = TypeVar("C")


@dataclass
class FencedTransaction(Generic[C]):
    """An open transaction that has asserted ``lease``.

    Write on ``connection``; set ``result`` where the transaction also ends the
    task. ``outcome`` is there after such an end. An exception in the block, a
    Ctrl-C or a cancelled await undoes everything, the task's end included.
    """

    connection: C
    lease: Lease
    result: Json = None
    outcome: TaskOutcome | None = None


@contextmanager
def fenced(
    source: Source | BorrowedSource, lease: Lease, *, terminate: bool
) -> Iterator[FencedTransaction[Connection[Any]]]:
    """See ``TaskStore.transaction``. Raises what ``assert_lease`` and ``terminate`` do."""
    outcome: TaskOutcome | None = None
    try:
        with source.connection() as connection, _committed(connection):
            run_on(connection, calls.assert_lease(lease), source.schema)
            block = FencedTransaction(connection, lease)
            yield block
            if terminate:
                end = calls.terminate(lease, block.result)
                outcome = block.outcome = run_on(connection, end, source.schema)
    except DatabaseUnavailable:
        # The answer to the commit was lost. The task ended in that transaction, so
        # its record tells whether the commit took effect.
        if outcome is None or not _ended(source.run(calls.get_task(lease.task_id)), lease):
            raise


@asynccontextmanager
async def fenced_async(
    source: AsyncSource | AsyncBorrowedSource, lease: Lease, *, terminate: bool
) -> AsyncIterator[FencedTransaction[AsyncConnection[Any]]]:
    """The async twin of ``fenced``."""
    outcome: TaskOutcome | None = None
    try:
        async with source.connection() as connection, _committed_async(connection):
            await run_on_async(connection, calls.assert_lease(lease), source.schema)
            block = FencedTransaction(connection, lease)
            yield block
            if terminate:
                end = calls.terminate(lease, block.result)
                outcome = block.outcome = await run_on_async(connection, end, source.schema)
    except DatabaseUnavailable:
        if outcome is None or not _ended(await source.run(calls.get_task(lease.task_id)), lease):
            raise


def _ended(task: Task | None, lease: Lease) -> bool:
    return task is not None and (task.status, task.pid, task.token) == (
        Status.TERMINATED,
        lease.pid,
        lease.token,
    )


@contextmanager
def _committed(connection: Connection[Any]) -> Iterator[None]:
    """A transaction whose own errors (of BEGIN and COMMIT) are ours; those of the
    block pass as they are. The connection comes back as it was given."""
    row_factory = connection.row_factory
    transaction = connection.transaction()
    with translated():
        transaction.__enter__()
    try:
        yield
    except BaseException as error:
        if not transaction.__exit__(type(error), error, error.__traceback__):
            raise
    else:
        with translated():
            transaction.__exit__(None, None, None)
    finally:
        connection.row_factory = row_factory


@asynccontextmanager
async def _committed_async(connection: AsyncConnection[Any]) -> AsyncIterator[None]:
    row_factory = connection.row_factory
    transaction = connection.transaction()
    with translated():
        await transaction.__aenter__()
    try:
        yield
    except BaseException as error:
        if not await transaction.__aexit__(type(error), error, error.__traceback__):
            raise
    else:
        with translated():
            await transaction.__aexit__(None, None, None)
    finally:
        connection.row_factory = row_factory

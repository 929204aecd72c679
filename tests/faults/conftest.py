from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from sokka_pg import Sokka, Worker, WorkerOptions
from tests.faults import programs
from tests.faults.waiting import Seen

# Said in the header of the run, by the conftest of all tests.
collect_ignore = list(programs.left_out())

Working = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
async def app(db: str, seen: Seen) -> AsyncIterator[Sokka]:
    made = Sokka(db, observers=[seen])
    yield made
    made.store.close()
    await made.async_store.close()


@pytest.fixture
def working(app: Sokka) -> Working:
    """``async with working("topic:4", lease=1)``: a worker in this loop."""

    @asynccontextmanager
    async def work(topics: Any = "t", **options: Any) -> AsyncIterator[Worker]:
        import asyncio

        worker = app.worker(topics, options=WorkerOptions(**{"grace": 0, **options}))
        run = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop(now=True)
            await run

    return work


@pytest.fixture
def row(conn: psycopg.Connection) -> Callable[[Any], dict[str, Any]]:
    """A task as the database has it."""

    def read(task: Any) -> dict[str, Any]:
        task_id = getattr(task, "task_id", task)
        with conn.cursor(row_factory=dict_row) as cursor:
            cursor.execute("select * from sokka.all_tasks where task_id = %s", (task_id,))
            found = cursor.fetchone()
        assert found is not None
        return found

    return read

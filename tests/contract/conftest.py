"""What the contract's tests share: callers, and a look at the rows themselves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
import pytest_asyncio
from psycopg.rows import dict_row

from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore
from tests.contract.callers import KINDS, Caller


@pytest.fixture(params=list(KINDS))
def caller(request: pytest.FixtureRequest, db: str) -> Iterator[Caller]:
    """A caller of each kind in turn."""
    found = KINDS[request.param](db)
    yield found
    found.close()


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as found:
        yield found


@pytest_asyncio.fixture
async def async_store(db: str) -> AsyncIterator[AsyncPgTaskStore]:
    async with AsyncPgTaskStore(db) as found:
        yield found


@pytest.fixture
def row(conn: psycopg.Connection) -> Callable[[UUID], dict[str, Any] | None]:
    """Reads a task as it stands in ``all_tasks``."""

    def read(task_id: UUID) -> dict[str, Any] | None:
        with conn.cursor(row_factory=dict_row) as cursor:
            found = cursor.execute("select * from sokka.all_tasks where task_id = %s", (task_id,))
            return found.fetchone()

    return read


@pytest.fixture
def until(conn: psycopg.Connection) -> Callable[..., None]:
    """Waits until a query answers true."""

    def wait(query: str, *params: Any, within_s: float = 10) -> None:
        deadline = time.monotonic() + within_s
        while not conn.execute(query, params).fetchone()[0]:  # type: ignore[index]
            assert time.monotonic() < deadline, f"not within {within_s} s: {query}"
            time.sleep(0.005)

    return wait


@pytest.fixture
def expired(until: Callable[..., None]) -> Callable[[UUID], None]:
    """Waits until the lease on a task is over by the server's clock."""

    def wait(task_id: UUID) -> None:
        until(
            "select lease_expires_at <= clock_timestamp() from sokka.tasks where task_id = %s",
            task_id,
        )

    return wait

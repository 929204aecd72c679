from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sokka_pg import Sokka, Worker, WorkerOptions

Working = Callable[..., AbstractAsyncContextManager[Worker]]
Value = Callable[..., float | None]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def value(registry: CollectorRegistry) -> Value:
    """A sample of the registry, by name and labels; None if there is none."""

    def look(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    return look


@pytest.fixture
async def app(db: str) -> AsyncIterator[Sokka]:
    made = Sokka(db)
    yield made
    made.store.close()
    await made.async_store.close()


@pytest.fixture
def working(app: Sokka) -> Working:
    """``async with working("topic:4", observers=[...])``: a worker in this loop."""

    @asynccontextmanager
    async def work(topics: Any = "t", observers: Any = ()) -> AsyncIterator[Worker]:
        worker = app.worker(topics, options=WorkerOptions(grace=0), observers=observers)
        run = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop(now=True)
            await run

    return work

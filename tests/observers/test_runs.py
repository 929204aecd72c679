"""Observers beside a worker at work: they are told, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sokka_pg import Snooze, Sokka
from sokka_pg.events import Called, Event, Finished, Reserved
from sokka_pg.observers import Export, LogObserver, PrometheusObserver, WorkerCollector
from sokka_pg.scheduler import Job, Scheduler
from tests.faults import handlers
from tests.faults.waiting import Seen, until_async
from tests.observers.conftest import Value, Working


class Hangs:
    """Slow beyond all measure."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def notice(self, event: Event, /) -> None:
        self.go_on.wait(60)


class Raises:
    """A companion that raises wherever it is asked."""

    def notice(self, event: Event, /) -> None:
        raise SystemExit(1)

    def enqueuing(self, *arguments: object) -> AbstractContextManager[Mapping[str, str]]:
        raise KeyboardInterrupt

    def running(self, *arguments: object) -> AbstractContextManager[object]:
        return self.Block()

    class Block:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *exc_info: object) -> bool:
            raise RuntimeError("from a companion")


class Swallows(Raises):
    """A companion that would keep exceptions from passing, and adds what is no header."""

    def enqueuing(self, *arguments: object) -> AbstractContextManager[Any]:
        return nullcontext({"a": "c", "b": 7, 8: "d"})

    class Block(Raises.Block):
        def __exit__(self, *exc_info: object) -> bool:
            return True


@pytest.mark.parametrize("flavour", [Hangs, Raises, Swallows])
async def test_whatever_observers_do_runs_end_as_they_would(
    db: str, flavour: type[Any]
) -> None:
    observer = flavour()
    app = Sokka(db, observers=[observer])

    @app.task(topic="t")
    async def fine(ctx_free: int) -> int:
        return ctx_free

    @app.task(topic="t")
    def wrong() -> None:
        raise ValueError("wrong")

    @app.task(topic="t")
    async def sleeps() -> None:
        raise Snooze(timedelta(hours=1))

    doubled = handlers.declare_process_tasks(app)["double"]
    tasks = [
        fine.enqueue(1), wrong.enqueue(), await sleeps.enqueue_async(), doubled.enqueue(21),
        fine.configure(headers={"a": "b"}).enqueue(2),
    ]
    worker = app.worker("t")
    run = asyncio.create_task(worker.run())
    rows = [app.store.task(task.task_id) for task in tasks]

    def over() -> bool:
        rows[:] = [app.store.task(task.task_id) for task in tasks]
        return all(row is not None and row.status not in ("starting", "running") for row in rows)

    try:
        await until_async(over)
    finally:
        getattr(observer, "go_on", threading.Event()).set()
        worker.stop(now=True)
        await run
        app.store.close()
        await app.async_store.close()
    assert [str(row.status) for row in rows if row is not None] == [
        "terminated", "failed", "snoozed", "terminated", "terminated"
    ]
    assert rows[4] is not None and rows[4].headers == {"a": "b"}


async def test_the_pickup_is_measured_by_the_databases_clock(
    app: Sokka, working: Working
) -> None:
    seen = Seen()

    @app.task(topic="t")
    async def at_once() -> None:
        pass

    @app.task(topic="t")
    async def twice() -> None:
        raise Snooze(timedelta(0))

    task = await at_once.enqueue_async()
    later = await twice.enqueue_async()
    async with working("t", observers=[seen]):
        await until_async(lambda: len(seen.all(Reserved, task_id=later.task_id)) > 1)
        await until_async(lambda: seen.all(Finished))
    (first,) = seen.all(Reserved, task_id=task.task_id)
    assert first.waited_s is not None and 0 <= first.waited_s < 60
    waits = [event.waited_s for event in seen.all(Reserved, task_id=later.task_id)]
    assert waits[0] is not None
    assert set(waits[1:]) == {None}
    assert sum(event.reserved for event in seen.all(Called, call="exchange")) >= 3


async def test_a_workers_own_figures_are_those_of_the_moment(
    app: Sokka, working: Working, registry: CollectorRegistry, value: Value
) -> None:
    go_on = asyncio.Event()

    @app.task(topic="t")
    async def waits() -> None:
        await go_on.wait()

    await waits.enqueue_async()
    observer = PrometheusObserver(registry)
    pools = {"sync": app.store, "async": app.async_store}
    async with working("t:3", observers=[observer]) as worker:
        registry.register(WorkerCollector(worker, pools))
        assert value("sokka_worker_slots") == 3
        await until_async(lambda: value("sokka_worker_running") == 1)
        go_on.set()
        labels = {"topic": "t", "kind": "waits", "result": "succeeded"}
        await until_async(lambda: value("sokka_attempts_total", **labels) == 1)
        assert value("sokka_worker_running") == 0
    assert value("sokka_pool_limit", pool="sync") == 10
    assert value("sokka_pool_connections", pool="async", state="idle") == 1
    assert value("sokka_pool_connections", pool="async", state="used") == 0
    assert value("sokka_pool_waiting", pool="async") == 0


async def test_an_export_uses_the_observer_that_the_app_has(
    app: Sokka, registry: CollectorRegistry, value: Value
) -> None:
    known = PrometheusObserver(registry)
    export = Export([known])
    assert export.observers == []
    app.task(topic="t")(_nothing)
    export.start(app.worker("t"), app.database_url)
    assert value("sokka_worker_slots") is not None
    export.close()
    assert value("sokka_worker_slots") is None


async def _nothing() -> None:
    pass


def test_a_scheduler_of_local_jobs_tells_the_same_observers(
    registry: CollectorRegistry, value: Value, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ValueError("secret")

    caplog.set_level("INFO", "sokka_pg.events")
    observers = [PrometheusObserver(registry), LogObserver()]
    scheduler = Scheduler(observers=observers)
    scheduler.register(Job("fine", "@every 1h", lambda: None))
    scheduler.register(Job("bad", "@every 1h", fails))
    with scheduler:
        scheduler.trigger("fine")
        with pytest.raises(Exception, match="secret"):
            scheduler.trigger("bad")
    assert value("sokka_job_runs_total", job="fine", result="succeeded") == 1
    assert value("sokka_job_runs_total", job="bad", result="failed") == 1
    assert value("sokka_job_run_duration_seconds_count", job="bad") == 1
    last = value("sokka_job_last_success_unixtime", job="fine")
    assert last is not None and abs(last - time.time()) < 600
    said = [record.getMessage() for record in caplog.records if record.name == "sokka_pg.events"]
    assert [line.split()[0] for line in said] == ["job_succeeded", "job_failed"]
    assert "secret" not in "".join(said)

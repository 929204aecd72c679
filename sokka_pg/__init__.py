"""sokka_pg: a task queue in PostgreSQL whose leases are fenced by the database.

Names are imported when they are first used, so that ``import sokka_pg`` costs
nothing for a program that only needs the errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sokka_pg.app import Sokka, Task
    from sokka_pg.connections import ConnectionOptions
    from sokka_pg.context import SyncTaskContext, TaskContext
    from sokka_pg.events import Event, Observer
    from sokka_pg.fence import FencedTransaction
    from sokka_pg.gather import (
        CandidateResult,
        FanOutRequest,
        FanOutResult,
        Policy,
        ScatterGatherRequest,
        ScatterGatherResult,
        TaskFailure,
    )
    from sokka_pg.model import Fail, Lease, LeasedTask, Retry, RetryPolicy, Snooze, Status
    from sokka_pg.scheduler import (
        AsyncScheduler,
        Job,
        JobContext,
        LeaseOptions,
        PostgresLocker,
        Scheduler,
    )
    from sokka_pg.store import PgTaskStore, TaskStore
    from sokka_pg.store_async import AsyncPgTaskStore, AsyncTaskStore
    from sokka_pg.worker import Worker, WorkerOptions

_HOMES = {
    "Sokka": "app", "Task": "app", "ConnectionOptions": "connections",
    "SyncTaskContext": "context", "TaskContext": "context", "Event": "events",
    "Observer": "events", "FencedTransaction": "fence",
    "CandidateResult": "gather", "FanOutRequest": "gather", "FanOutResult": "gather",
    "Policy": "gather", "ScatterGatherRequest": "gather", "ScatterGatherResult": "gather",
    "TaskFailure": "gather", "Fail": "model", "Lease": "model",
    "LeasedTask": "model", "Retry": "model", "RetryPolicy": "model", "Snooze": "model",
    "Status": "model", "AsyncScheduler": "scheduler", "Job": "scheduler",
    "JobContext": "scheduler", "LeaseOptions": "scheduler", "PostgresLocker": "scheduler",
    "Scheduler": "scheduler", "PgTaskStore": "store", "TaskStore": "store",
    "AsyncPgTaskStore": "store_async", "AsyncTaskStore": "store_async",
    "Worker": "worker", "WorkerOptions": "worker",
}

__all__ = [
    "AsyncPgTaskStore",
    "AsyncScheduler",
    "AsyncTaskStore",
    "CandidateResult",
    "ConnectionOptions",
    "Event",
    "Fail",
    "FanOutRequest",
    "FanOutResult",
    "FencedTransaction",
    "Job",
    "JobContext",
    "Lease",
    "LeaseOptions",
    "LeasedTask",
    "Observer",
    "PgTaskStore",
    "Policy",
    "PostgresLocker",
    "Retry",
    "RetryPolicy",
    "ScatterGatherRequest",
    "ScatterGatherResult",
    "Scheduler",
    "Snooze",
    "Sokka",
    "Status",
    "SyncTaskContext",
    "Task",
    "TaskContext",
    "TaskFailure",
    "TaskStore",
    "Worker",
    "WorkerOptions",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sokka_pg' has no attribute {name!r}")
    found = getattr(import_module(f"sokka_pg.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Jobs that run by the clock, and leases that keep replicas apart.

    scheduler = Scheduler(locker=PostgresLocker("postgresql://localhost/shop"))
    scheduler.register(Job("prices", "@every 5m", fetch_prices, lease=LeaseOptions(enabled=True)))
    with scheduler:
        ...
"""

from sokka_pg.scheduler.context import JobContext
from sokka_pg.scheduler.errors import (
    AlreadyStarted,
    HandlerExists,
    InvalidJob,
    JobAlreadyExists,
    JobNotFound,
    LockHeld,
    NotStarted,
    RunSkipped,
)
from sokka_pg.scheduler.events import Event, EventKind, Observer, ObserverFunc
from sokka_pg.scheduler.job import Handler, Job, LeaseOptions, RetryPolicy
from sokka_pg.scheduler.locker import (
    AsyncLease,
    AsyncLocker,
    AsyncPostgresLease,
    AsyncPostgresLocker,
    Lease,
    Locker,
    PostgresLease,
    PostgresLocker,
)
from sokka_pg.scheduler.locks import AsyncKeptLease, KeptLease, held_lease
from sokka_pg.scheduler.loop import ScheduleLoop
from sokka_pg.scheduler.managed import (
    AsyncRuntime,
    DeliveryFailureMode,
    DeliveryFailurePolicy,
    EventHandler,
    ManagedJob,
    Runtime,
    TriggerEvent,
)
from sokka_pg.scheduler.periodic import Periodic, PeriodicOptions, SyncReport
from sokka_pg.scheduler.scheduler import AsyncScheduler, Scheduler
from sokka_pg.scheduler.settings import Option, with_locker, with_now, with_observer

__all__ = [
    "AlreadyStarted",
    "AsyncKeptLease",
    "AsyncLease",
    "AsyncLocker",
    "AsyncPostgresLease",
    "AsyncPostgresLocker",
    "AsyncRuntime",
    "AsyncScheduler",
    "DeliveryFailureMode",
    "DeliveryFailurePolicy",
    "Event",
    "EventHandler",
    "EventKind",
    "Handler",
    "HandlerExists",
    "InvalidJob",
    "Job",
    "JobAlreadyExists",
    "JobContext",
    "JobNotFound",
    "KeptLease",
    "Lease",
    "LeaseOptions",
    "LockHeld",
    "Locker",
    "ManagedJob",
    "NotStarted",
    "Observer",
    "ObserverFunc",
    "Option",
    "Periodic",
    "PeriodicOptions",
    "PostgresLease",
    "PostgresLocker",
    "RetryPolicy",
    "RunSkipped",
    "Runtime",
    "ScheduleLoop",
    "Scheduler",
    "SyncReport",
    "TriggerEvent",
    "held_lease",
    "with_locker",
    "with_now",
    "with_observer",
]

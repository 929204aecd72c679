"""The workload scheduler: submit, lease, report, checkpoint, stream and fan out.

``WorkloadScheduler`` for programs without an event loop, ``AsyncWorkloadScheduler``
with awaits; one core does the work of both.
"""

from __future__ import annotations

from sokka_pg.gather import (
    CandidateResult,
    FanOutRequest,
    FanOutResult,
    Policy,
    ScatterGatherRequest,
    ScatterGatherResult,
    TaskFailure,
)
from sokka_pg.workload.calling import (
    CandidateInvoker,
    StreamProducer,
    WorkerInvoker,
    WorkloadExecutor,
)
from sokka_pg.workload.limits import Limits
from sokka_pg.workload.scheduler import (
    AsyncResult,
    FanOutHandle,
    ScatterGatherHandle,
    StreamHandle,
    WorkloadHandle,
    WorkloadScheduler,
)
from sokka_pg.workload.scheduler_async import (
    AsyncFanOutHandle,
    AsyncScatterGatherHandle,
    AsyncStreamHandle,
    AsyncWorkloadHandle,
    AsyncWorkloadScheduler,
    AwaitableResult,
)
from sokka_pg.workload.shell import exit_on_sigterm
from sokka_pg.workload.words import (
    FencingToken,
    LeaseOwner,
    TaskCheckpoint,
    TaskLease,
    TaskProgress,
    TaskRef,
    TaskStatus,
    TaskStatuses,
    TaskSubmission,
)

__all__ = [
    "AsyncFanOutHandle",
    "AsyncResult",
    "AsyncScatterGatherHandle",
    "AsyncStreamHandle",
    "AsyncWorkloadHandle",
    "AsyncWorkloadScheduler",
    "AwaitableResult",
    "CandidateInvoker",
    "CandidateResult",
    "FanOutHandle",
    "FanOutRequest",
    "FanOutResult",
    "FencingToken",
    "LeaseOwner",
    "Limits",
    "Policy",
    "ScatterGatherHandle",
    "ScatterGatherRequest",
    "ScatterGatherResult",
    "StreamHandle",
    "StreamProducer",
    "TaskCheckpoint",
    "TaskFailure",
    "TaskLease",
    "TaskProgress",
    "TaskRef",
    "TaskStatus",
    "TaskStatuses",
    "TaskSubmission",
    "WorkerInvoker",
    "WorkloadExecutor",
    "WorkloadHandle",
    "WorkloadScheduler",
    "exit_on_sigterm",
]

"""The words: what a task, a lease and an outcome are.

Frozen values without behaviour that touches the world. Ids are ``uuid.UUID``,
instants are aware ``datetime`` in UTC, durations are ``timedelta``, JSON is
what ``json.loads`` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

Json: TypeAlias = Any
"""None, bool, int, float, str, list or dict with string keys, nested."""

T = TypeVar("T")


class Status(StrEnum):
    """Where a task stands. ``terminated`` is success, ``failed`` the other end."""

    STARTING = "starting"
    RUNNING = "running"
    SNOOZED = "snoozed"
    FAILED = "failed"
    TERMINATED = "terminated"

    @property
    def final(self) -> bool:
        """True when nothing follows this status."""
        return not TRANSITIONS[self]


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.STARTING: frozenset({Status.RUNNING, Status.FAILED, Status.TERMINATED}),
    Status.RUNNING: frozenset(
        {Status.FAILED, Status.SNOOZED, Status.TERMINATED, Status.STARTING}
    ),
    Status.SNOOZED: frozenset({Status.STARTING, Status.FAILED, Status.TERMINATED}),
    Status.FAILED: frozenset(),
    Status.TERMINATED: frozenset(),
}
"""The legal moves. The database's triggers hold the same table."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a task, and the proof to show for it."""

    task_id: UUID
    pid: str
    token: int
    lease_expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """A task as it was handed to its owner."""

    task_id: UUID
    task_group_id: UUID
    topic: str
    sub_topic: str
    kind: str
    data: Json
    headers: dict[str, str] | None
    pid: str
    token: int
    lease_expires_at: datetime
    attempt: int
    failures: int
    max_attempts: int
    timeout: timedelta | None
    checkpoint: Json
    record_ver: int
    created_at: datetime
    cancel_requested_at: datetime | None
    priority: int
    losses: int
    leased_at: datetime
    expires_at: datetime | None
    parent_task_id: UUID | None = None
    candidate: int | None = None
    """Its number within a fan-out, from 1; None outside one."""

    @property
    def lease(self) -> Lease:
        """The proof of ownership that every later verb needs."""
        return Lease(self.task_id, self.pid, self.token, self.lease_expires_at)


@dataclass(frozen=True, slots=True)
class Task:
    """A task as the view ``all_tasks`` shows it, live or finished."""

    task_id: UUID
    task_group_id: UUID
    topic: str
    sub_topic: str
    kind: str
    status: Status
    priority: int
    data: Json
    headers: dict[str, str] | None
    run_at: datetime
    expires_at: datetime | None
    timeout: timedelta | None
    max_attempts: int
    retry: Json
    max_losses: int
    unique_key: str | None
    attempt: int
    failures: int
    losses: int
    pid: str | None
    token: int | None
    leased_at: datetime | None
    lease_expires_at: datetime | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    progress: Json
    checkpoint: Json
    checkpoint_seq: int
    checkpoint_at: datetime | None
    result: Json
    error: dict[str, Json] | None
    record_ver: int
    resubmit_of: UUID | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    parent_task_id: UUID | None = None
    candidate: int | None = None
    """Its number within a fan-out, from 1; None outside one."""
    depth: int = 0
    """How many ancestors it has."""


@dataclass(frozen=True, slots=True)
class CreatedTask:
    """The answer to ``create_task``. ``created`` is false where a unique key,
    or an earlier call with the same task id, already stood for the task."""

    task: Task
    created: bool

    @property
    def task_id(self) -> UUID:
        return self.task.task_id


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """One line of a listing: a task without its payloads."""

    task_id: UUID
    task_group_id: UUID
    topic: str
    sub_topic: str
    kind: str
    status: Status
    priority: int
    run_at: datetime
    pid: str | None
    token: int | None
    lease_expires_at: datetime | None
    attempt: int
    failures: int
    losses: int
    max_attempts: int
    record_ver: int
    cancel_requested_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    error: dict[str, Json] | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a listing. ``cursor`` goes into the next call; None at the end."""

    items: list[T]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What became of a task after an accepted verb."""

    status: Status
    record_ver: int
    run_at: datetime | None


@dataclass(frozen=True, slots=True)
class CancelOutcome:
    """``outcome``: cancelled, requested, already_requested or already_done."""

    status: Status
    record_ver: int
    run_at: datetime | None
    outcome: str


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease after it was extended or asserted."""

    lease_expires_at: datetime
    cancel_requested: bool
    record_ver: int


@dataclass(frozen=True, slots=True)
class ExtendVerdict:
    """One lease of a batch: ``verdict`` is ``ok`` or the SQLSTATE of a refusal."""

    task_id: UUID
    verdict: str
    lease_expires_at: datetime | None
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class SettleVerdict:
    """One task of a batch: ``verdict`` is ``ok`` or the SQLSTATE of a refusal."""

    task_id: UUID
    verdict: str
    detail: dict[str, Json] | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """One lease to settle in a batch.

    ``verb`` and its ``arg``: ``terminate`` (the result, None = none), ``fail``
    (an error object), ``retry`` (an object with ``error`` and ``delay``, a
    duration or None), ``snooze`` (a duration), ``release`` (None), ``wait`` (the id
    of the child to wait for).
    """

    task_id: UUID
    token: int
    verb: str
    arg: Any = None


@dataclass(frozen=True, slots=True)
class SettledBatch:
    """The answer to one call that settles and reserves: both in one commit."""

    verdicts: list[SettleVerdict]
    leases: list[LeasedTask]


@dataclass(frozen=True, slots=True)
class CreatedId:
    """One member of a batch of new tasks, in the order they were given."""

    task_id: UUID
    created: bool


@dataclass(frozen=True, slots=True)
class BatchesCreated:
    """What came of specs that were stored in batches: tasks that are new, and specs
    whose unique key an unfinished task holds."""

    created: int
    existing: int


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One line of a task's history; ``seq`` is its order within the task."""

    task_id: UUID
    seq: int
    at: datetime
    event: str
    pid: str | None
    token: int | None
    attempt: int | None
    detail: dict[str, Json] | None


@dataclass(frozen=True, slots=True)
class TopicStat:
    """A topic at a glance: how much waits, runs, sleeps, and since when."""

    topic: str
    starting: int
    snoozed: int
    running: int
    oldest_ready_at: datetime | None
    next_due_at: datetime | None
    oldest_lease_at: datetime | None
    paused_at: datetime | None
    lease: timedelta | None
    retention: timedelta | None


@dataclass(frozen=True, slots=True)
class Retained:
    """One act of retention: what was done to which partition."""

    partition: str
    action: str
    rows: int


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A recorded checkpoint: its number within the task and its time."""

    seq: int
    saved_at: datetime


@dataclass(frozen=True, slots=True)
class FanOutCreated:
    """The answer to ``fan_out``: a task that stands for many, and ends by their ends.

    ``created`` is false where an earlier call with the same task id made it.
    """

    task_id: UUID
    status: Status
    total: int
    created: bool


@dataclass(frozen=True, slots=True)
class Join:
    """Where a fan-out stands.

    ``state``: open, decided (what is left is being cancelled) or closed.
    ``outcome``: None, satisfied, unmet, deadline or cancelled. ``needed`` and
    ``succeeded`` are the policy's: successes, up to the decision. ``done`` counts all
    that are final, ``late`` those that answered after the decision.
    """

    task_id: UUID
    parent_task_id: UUID | None
    policy: str
    needed: int
    total: int
    max_running: int | None
    in_flight: int
    done: int
    succeeded: int
    failed: int
    late: int
    state: str
    outcome: str | None
    deadline_at: datetime | None
    created_at: datetime
    decided_at: datetime | None


@dataclass(frozen=True, slots=True)
class JoinResult:
    """One candidate of a fan-out, final or not yet; ``candidate`` counts from 1."""

    candidate: int
    task_id: UUID
    status: Status
    result: Json
    error: dict[str, Json] | None
    attempt: int
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A recorded step of a task, and the token of the lease that recorded it."""

    seq: int
    name: str
    value: Json
    token: int
    recorded_at: datetime


@dataclass(frozen=True, slots=True)
class StepRecorded:
    """The answer to ``record_step``. ``recorded`` is false where the name had a
    value already; then ``value`` is that one."""

    seq: int
    value: Json
    recorded_at: datetime
    recorded: bool


@dataclass(frozen=True, slots=True)
class StreamState:
    """A task's stream: how far it is written and read, and its bounds.

    ``status`` and ``error`` are those of the task: when it is final, nothing more
    will be written. ``pending_*`` is what waits to be read.
    """

    task_id: UUID
    status: Status
    last_seq: int
    consumed_seq: int
    max_items: int
    max_bytes: int
    pending_items: int
    pending_bytes: int
    error: dict[str, Json] | None


@dataclass(frozen=True, slots=True)
class StreamItem:
    """One item of a stream; ``seq`` counts from 1 without gaps."""

    seq: int
    item: Json
    written_at: datetime


@dataclass(frozen=True, slots=True)
class StreamAppended:
    """How many of the given items were taken, the first ones, and what room is left."""

    accepted: int
    last_seq: int
    free_items: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class TaskLook:
    """A short look at a task: enough to see what changed since the last one.

    ``stream_seq`` and ``stream_read`` are the last numbers that were written and
    acknowledged; None without a stream.
    """

    task_id: UUID
    status: Status
    record_ver: int
    attempt: int
    progress: Json
    cancel_requested_at: datetime | None
    updated_at: datetime
    finished_at: datetime | None
    stream_seq: int | None
    stream_read: int | None


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One task of a tree, ``level`` steps below its root.

    ``policy`` is None but for fan-outs; ``children`` counts the direct ones, shown
    or not.
    """

    level: int
    task_id: UUID
    parent_task_id: UUID | None
    candidate: int | None
    topic: str
    kind: str
    status: Status
    attempt: int
    policy: str | None
    error_code: str | None
    created_at: datetime
    finished_at: datetime | None
    children: int


@dataclass(frozen=True, slots=True)
class Lock:
    """The right to act for a key until ``lock_expires_at``, and the proof to show for it."""

    key: str
    owner: str
    token: int
    lock_expires_at: datetime


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as the view ``all_schedules`` shows it.

    ``state``: active, paused, failing (its task cannot be made, ``error`` says why) or
    finished. ``next_at`` is its next tick, ``runs`` counts the ticks that became tasks,
    ``skipped`` those that were passed over; both since this ``generation`` began.
    """

    name: str
    schedule_id: UUID
    generation: int
    state: str
    schedule: str
    next_at: datetime | None
    last_fire_at: datetime | None
    last_task_id: UUID | None
    runs: int
    skipped: int
    repeats: int | None
    expires_at: datetime | None
    missed: str
    max_catch_up: int
    grace: timedelta
    serial: bool
    source: str
    description: str | None
    topic: str
    kind: str
    task: dict[str, Json]
    anchor_at: datetime
    paused_at: datetime | None
    failing_since: datetime | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class PutSchedule:
    """The answer to ``put_schedule``. ``changed`` is false where it stood like this
    already; ``created`` is true where there was none of this name, or a finished one."""

    schedule_id: UUID
    generation: int
    created: bool
    changed: bool


@dataclass(frozen=True, slots=True)
class TriggeredRun:
    """The task of an extra run, and the instant that stands for its tick."""

    task_id: UUID
    fire_at: datetime


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """A schedule whose tick ``due_at`` has come, by the database's ``clock``.

    ``serial``: one tick at a time may become a task; ``busy``: that of its last one has
    not ended.
    """

    schedule_id: UUID
    name: str
    generation: int
    schedule: str
    anchor_at: datetime
    due_at: datetime
    missed: str
    max_catch_up: int
    grace: timedelta
    busy: bool
    repeats: int | None
    runs: int
    expires_at: datetime | None
    clock: datetime
    serial: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleFire:
    """What becomes of a due schedule; the first three say which, as it was found.

    ``ticks``, oldest first, become tasks; ``skipped`` counts those passed over;
    ``next_at`` is the next one, None for never. Or ``busy``: look again in a second.
    Or ``error``: it cannot be worked out, look again in a minute.
    """

    schedule_id: UUID
    generation: int
    due_at: datetime
    ticks: Sequence[datetime] = ()
    next_at: datetime | None = None
    skipped: int = 0
    busy: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FireVerdict:
    """One schedule of a batch: how many tasks were made, and which, by their ticks.

    ``verdict`` is ``ok``, ``SK007`` (it is not as it was found) or the SQLSTATE of what
    broke it.
    """

    schedule_id: UUID
    fired: int
    verdict: str
    task_ids: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class NextLook:
    """When schedules want to be looked at next, and the database's ``clock`` now."""

    look_at: datetime
    clock: datetime

    @property
    def wait(self) -> timedelta:
        """From now until then; zero where it has come."""
        return max(self.look_at - self.clock, timedelta(0))


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did, and when the next is worth doing."""

    woken: int
    taken_back: int
    expired: int
    failed_lost: int
    next_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class WorkLook:
    """Whether a reserve would find something, what the sweep did if there was one, and how
    many workers sleep on these topics and are told by whoever sweeps."""

    ready: bool
    swept: bool
    woken: int
    taken_back: int
    expired: int
    failed_lost: int
    next_due_at: datetime | None
    sleepers: int = 0


@dataclass(frozen=True, slots=True)
class TopicState:
    """The settings of one topic; None stands for the installation's default."""

    topic: str
    paused_at: datetime | None = None
    lease: timedelta | None = None
    retention: timedelta | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed attempt is tried again.

    ``max_attempts`` includes the first; 0 and 1 mean none. The wait before
    attempt n+1 is ``initial * multiplier ** (n - 1)``, at most ``max``, spread
    by ``jitter`` (a share of the wait, 0 to 1).
    """

    max_attempts: int = 1
    initial: timedelta = timedelta(seconds=1)
    max: timedelta = timedelta(seconds=30)
    multiplier: float = 2.0
    jitter: float = 0.0


class Outcome(Exception):
    """Base of the outcomes that a handler may return or raise."""


@dataclass(eq=False)
class Snooze(Outcome):
    """Put the task to sleep; the attempt is given back."""

    delay: timedelta
    reason: str | None = None


@dataclass(eq=False)
class Wait(Outcome):
    """Sleep until a task below this one is final; the attempt is given back."""

    task_id: UUID


@dataclass(eq=False)
class Retry(Outcome):
    """End the attempt as an error and apply the task's retry policy.

    ``delay`` replaces the policy's wait, never its limit.
    """

    error: str | dict[str, Json] = "retry requested"
    delay: timedelta | None = None


@dataclass(eq=False)
class Fail(Outcome):
    """End the task as failed, whatever its retry policy."""

    error: str | dict[str, Json] = "failed"
    details: dict[str, Json] = field(default_factory=dict)

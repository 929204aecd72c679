"""What a task store promises, whatever carries it out.

Verbs on a lease take a ``Lease``, a ``LeasedTask``, a tuple, or task_id, pid and
token one by one; everything else goes by keyword. With ``connection=`` a verb
runs in the caller's transaction (psycopg or SQLAlchemy) and is undone with it;
without, it is a transaction of its own. A refused verb changes nothing. A
duration is a ``timedelta`` or a number of seconds.

Errors are those of ``sokka_pg.errors``. Every verb may raise ``BadArgument``
before anything is sent, and ``DatabaseUnavailable``. Verbs on a lease raise
``NoTaskFound``, ``AlreadyDone``, ``InvalidStatusTransition``, ``WrongOwner``,
``StaleToken``, ``LeaseExpired`` (the last three are ``LeaseLost``) or ``Busy``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from typing_extensions import Unpack

from sokka_pg.calls import FanOutOptions, ScheduleSpec, TaskOptions
from sokka_pg.calls.batches import BATCH
from sokka_pg.durations import Duration
from sokka_pg.fence import FencedTransaction
from sokka_pg.model import (
    BatchesCreated,
    CancelOutcome,
    CheckpointSaved,
    CreatedId,
    CreatedTask,
    DueSchedule,
    ExtendVerdict,
    FanOutCreated,
    FireVerdict,
    Join,
    JoinResult,
    Json,
    Lease,
    LeasedTask,
    LeaseState,
    Lock,
    NextLook,
    Page,
    PutSchedule,
    Retained,
    ScheduleFire,
    ScheduleRow,
    SettledBatch,
    Settlement,
    SettleVerdict,
    StepRecord,
    StepRecorded,
    StreamAppended,
    StreamItem,
    StreamState,
    SweepReport,
    Task,
    TaskEvent,
    TaskLook,
    TaskOutcome,
    TaskSummary,
    TopicStat,
    TopicState,
    TreeNode,
    TriggeredRun,
)

LeaseLike = Lease | LeasedTask | tuple[UUID | str, str, int] | UUID | str
"""A lease as a verb's first argument; a bare id is followed by pid and token."""
ErrorLike = str | Mapping[str, Json] | BaseException
"""An error: a message, an object with ``code`` and ``message``, or an exception."""


class TaskStore(Protocol):
    """The verbs of the queue."""

    def create_task(
        self,
        topic: str,
        data: object = None,
        *,
        connection: Any = None,
        **options: Unpack[TaskOptions],
    ) -> CreatedTask:
        """Store a new task, never lost once this returns (or the caller commits).

        With a ``task_id`` the call is repeated by itself when its answer was lost.
        Raises TaskAlreadyExists; UniqueKeyTaken with ``on_conflict="error"``.
        """
        ...

    def create_tasks(
        self, specs: Iterable[Mapping[str, Any]], *, connection: Any = None
    ) -> list[CreatedId]:
        """Store up to 10,000 tasks, all or none; a spec maps ``create_task``'s arguments."""
        ...

    def create_tasks_in_batches(
        self,
        specs: Iterable[Mapping[str, Any]],
        *,
        batch_size: int = BATCH,
        each: Callable[[list[CreatedId]], object] | None = None,
        connection: Any = None,
    ) -> BatchesCreated:
        """Store any number of tasks, in batches that are committed one by one.

        ``specs`` (as for ``create_tasks``, from a generator for example) are taken as the
        batches go, the next one while the server works on the last; a batch has
        ``batch_size`` (1 to 10,000) of them, or 4 MiB. ``each`` is called with the ids of
        every batch that is stored, in order. A batch is stored whole or not at all,
        and the first that fails ends the call: positions count from the first spec, and
        ``detail["stored"]`` says how many specs are stored, all of them before the batch.
        If a connection broke, ``detail["unknown"]`` has the first and the last position
        of the batch that may be stored. Specs that were given before an error of the
        iterable are stored, then it is raised. On a ``connection`` of yours nothing is
        committed here: commit, and all is stored, or roll back. ``specs`` and ``each``
        run while a connection of the store is in use: they need another to call it.
        """
        ...

    def task(self, task_id: UUID | str, *, connection: Any = None) -> Task | None:
        """The task, live or finished (within retention); None when unknown."""
        ...

    def tasks(self, task_group_id: UUID | str, *, connection: Any = None) -> list[Task]:
        """All tasks of a group, oldest first; empty when there are none."""
        ...

    def list_tasks(
        self,
        filters: Mapping[str, Any] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        descending: bool = False,
        connection: Any = None,
    ) -> Page[TaskSummary]:
        """A page of tasks without payloads, by (updated_at, task_id). Filters: topic,
        sub_topic, kind, status (one or several), task_group_id, from and to (aware
        instants on updated_at, inclusive)."""
        ...

    def list_leased_tasks(
        self, topic: str, cursor: str | None = None, limit: int = 100, *, connection: Any = None
    ) -> Page[TaskSummary]:
        """A page of the topic's running and snoozed tasks."""
        ...

    def history(self, task_id: UUID | str, *, connection: Any = None) -> list[TaskEvent]:
        """Everything that happened to a task, in order; complete within retention."""
        ...

    def topics(self, topic: str | None = None, *, connection: Any = None) -> list[TopicStat]:
        """The topics (or the one named) at a glance."""
        ...

    def reserve_task(
        self, topic: str, pid: str, lease: Duration | None = None, *, connection: Any = None
    ) -> LeasedTask | None:
        """The next task of the topic, leased to ``pid``; None when nothing is ready."""
        ...

    def reserve_tasks(
        self,
        topics: Sequence[str],
        pid: str,
        max_tasks: int = 1,
        lease: Duration | None = None,
        *,
        limits: Sequence[int] | None = None,
        connection: Any = None,
    ) -> list[LeasedTask]:
        """Up to ``max_tasks`` tasks over several topics in turn; ``limits`` bounds
        each topic of its own."""
        ...

    def acquire_lease(
        self,
        task_id: UUID | str,
        pid: str,
        lease: Duration | None = None,
        *,
        connection: Any = None,
    ) -> LeasedTask:
        """Lease one named task. The owner of a live lease may acquire again: its old
        token dies. Raises NoTaskFound, AlreadyDone, LeaseHeld, NotDue, Busy."""
        ...

    def extend_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> LeaseState:
        """Keep a live lease for ``duration`` from now; never shortens, never revives."""
        ...

    def renew_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> LeaseState:
        """Set a live lease to end exactly ``duration`` from now; may shorten it."""
        ...

    def extend_leases(
        self,
        pid: str,
        leases: Iterable[tuple[UUID, int]],
        *,
        duration: Duration | None = None,
        connection: Any = None,
    ) -> list[ExtendVerdict]:
        """Extend many (task_id, token) pairs of one owner; one verdict each, in order."""
        ...

    def release_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        connection: Any = None,
    ) -> TaskOutcome:
        """Give a task back unfinished; its attempt is given back too."""
        ...

    def terminate(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        result: Json = None,
        connection: Any = None,
    ) -> TaskOutcome:
        """End a task as a success. Repeated by itself when the answer was lost."""
        ...

    def terminate_many(
        self,
        pid: str,
        leases: Iterable[tuple[UUID, int]],
        results: Sequence[Json] | None = None,
        *,
        connection: Any = None,
    ) -> list[SettleVerdict]:
        """End many (task_id, token) pairs of one owner; one verdict each, in order."""
        ...

    def snooze(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        delay: Duration,
        connection: Any = None,
    ) -> TaskOutcome:
        """Put a task to sleep; its lease ends and the attempt is given back."""
        ...

    def fail(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        error: ErrorLike,
        connection: Any = None,
    ) -> TaskOutcome:
        """End a task as failed, for good. Repeated by itself when the answer was lost."""
        ...

    def retry(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        error: ErrorLike,
        delay: Duration | None = None,
        connection: Any = None,
    ) -> TaskOutcome:
        """End the attempt as an error; the task's policy decides between another and
        the end. ``delay`` replaces the policy's wait, not its limit."""
        ...

    def settle_tasks(
        self, pid: str, settlements: Iterable[Settlement], *, connection: Any = None
    ) -> list[SettleVerdict]:
        """Settle many leases of one owner in one commit; one verdict each, in order."""
        ...

    def settle_and_reserve(
        self,
        pid: str,
        settlements: Iterable[Settlement],
        topics: Sequence[str],
        max_tasks: int = 1,
        lease: Duration | None = None,
        *,
        limits: Sequence[int] | None = None,
        connection: Any = None,
    ) -> SettledBatch:
        """Settle the last batch and reserve the next, in one commit."""
        ...

    def report_progress(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        progress: Json,
        connection: Any = None,
    ) -> int:
        """Show how far the work is; the last one stays. Returns the record's version."""
        ...

    def save_checkpoint(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        checkpoint: Json,
        connection: Any = None,
    ) -> CheckpointSaved:
        """Record a safe point, handed to the next owner should this one be lost."""
        ...

    def fan_out(
        self,
        specs: Iterable[Mapping[str, Any]],
        *,
        connection: Any = None,
        **options: Unpack[FanOutOptions],
    ) -> FanOutCreated:
        """Store up to 10,000 candidates (specs as for ``create_tasks``) and the task that
        stands for them, all or none. It sleeps until its policy is decided. Then what is
        left of the candidates is cancelled, and it ends or, with a ``kind``, is worked
        off like any other task.

        With a ``task_id`` the call can be repeated (it is by itself when its answer was
        lost): it gets the same fan-out, ``created`` false. Raises TaskAlreadyExists where
        something else has the id; with a ``parent`` what verbs on a lease raise."""
        ...

    def join(self, task_id: UUID | str, *, connection: Any = None) -> Join | None:
        """Where a fan-out stands; None where the task is none."""
        ...

    def join_results(
        self, task_id: UUID | str, after: int = 0, limit: int = 1_000, *, connection: Any = None
    ) -> list[JoinResult]:
        """The candidates numbered above ``after``, in order, those that have not ended too.
        Raises NoTaskFound where the task is no fan-out."""
        ...

    def wait_for_task(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        waits_for: UUID | str,
        connection: Any = None,
    ) -> TaskOutcome:
        """Put a task to sleep until a child of it is final (at once ready where it is).
        The lease ends and the attempt is given back."""
        ...

    def record_step(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        name: str,
        value: Json,
        connection: Any = None,
    ) -> StepRecorded:
        """Record what a step of the task came to, once and for all owners to come. The
        first value under a name stays; a later call gets it, ``recorded`` false. At most
        10,000 steps a task. Repeated by itself when the answer was lost."""
        ...

    def steps(self, task_id: UUID | str, *, connection: Any = None) -> list[StepRecord]:
        """The recorded steps of a task, in order; empty when there are none."""
        ...

    def open_stream(
        self,
        task_id: UUID | str,
        max_items: int = 1_000,
        max_bytes: int = 8 * 1024 * 1024,
        *,
        connection: Any = None,
    ) -> StreamState:
        """Give a live task a stream that holds so many items, and bytes of JSON, unread.
        One that is open stays as it is. Raises NoTaskFound, AlreadyDone."""
        ...

    def append_stream(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        items: Iterable[Json],
        after: int | None = None,
        connection: Any = None,
    ) -> StreamAppended:
        """Append 1 to 1,000 items to the task's stream, as many as there is room for, the
        first ones first; never waits. ``after``: the number of the last item so far, as
        the caller knows it. With it the call is repeated by itself when its answer was
        lost. Raises TaskConcurrentlyUpdated (``detail["last_seq"]``) where it is another."""
        ...

    def read_stream(
        self,
        task_id: UUID | str,
        after: int = 0,
        max_items: int = 100,
        max_bytes: int = 8 * 1024 * 1024,
        *,
        connection: Any = None,
    ) -> list[StreamItem]:
        """The items numbered above ``after``; those up to it are acknowledged, and make
        room for more. At least one where there is any. Raises NoTaskFound where there is
        no stream."""
        ...

    def stream(self, task_id: UUID | str, *, connection: Any = None) -> StreamState | None:
        """How far a task's stream is written and read; None where it has none."""
        ...

    def watch_tasks(
        self,
        watcher: str,
        task_ids: Iterable[UUID | str],
        duration: Duration,
        *,
        connection: Any = None,
    ) -> int:
        """Ask for notifications of what becomes of these tasks, for so long; how many are
        watched now. A hint only: look as well (``peek_tasks``)."""
        ...

    def unwatch_tasks(
        self, watcher: str, task_ids: Iterable[UUID | str] | None = None, *, connection: Any = None
    ) -> None:
        """Take that back, for these tasks or for all."""
        ...

    def peek_tasks(
        self, task_ids: Iterable[UUID | str], *, connection: Any = None
    ) -> list[TaskLook]:
        """A short look at up to 10,000 tasks, in any order; unknown ones are missing."""
        ...

    def task_tree(
        self,
        task_id: UUID | str,
        max_rows: int = 1_000,
        max_children: int = 100,
        *,
        connection: Any = None,
    ) -> list[TreeNode]:
        """The task and what stands below it, depth first; of each at most ``max_children``
        children. Raises NoTaskFound."""
        ...

    def assert_lease(
        self,
        lease: LeaseLike,
        pid: str | None = None,
        token: int | None = None,
        *,
        connection: Any = None,
    ) -> LeaseState:
        """Check that a lease is live and newest. In the caller's transaction this also
        holds the task until that transaction ends: nobody can take it over."""
        ...

    def advance_fence(self, resource: str, token: int, *, connection: Any = None) -> int:
        """Remember the highest token seen for a resource. Raises StaleFence for a lower."""
        ...

    def transaction(
        self, lease: LeaseLike, *, terminate: bool = False
    ) -> AbstractContextManager[FencedTransaction[Any]]:
        """A transaction on a connection of ours whose writes are committed only under
        a live lease; ``terminate=True`` ends the task in it, exactly once."""
        ...

    def revoke_lease(
        self,
        task_id: UUID | str,
        record_ver: int,
        reason: str | None = None,
        *,
        connection: Any = None,
    ) -> TaskOutcome:
        """Take a running or snoozed task back to starting. Raises
        TaskConcurrentlyUpdated if it changed since ``record_ver`` was read."""
        ...

    def cancel(
        self, task_id: UUID | str, reason: str | None = None, *, connection: Any = None
    ) -> CancelOutcome:
        """Cancel a task: at once if it waits, by a request to its owner if it runs."""
        ...

    def resubmit(
        self, task_id: UUID | str, reason: str | None = None, *, connection: Any = None
    ) -> CreatedTask:
        """A new task from a finished one."""
        ...

    def pause_topic(
        self, topic: str, reason: str | None = None, *, connection: Any = None
    ) -> TopicState:
        """From now on nothing of the topic is reserved; running tasks go on."""
        ...

    def resume_topic(
        self, topic: str, reason: str | None = None, *, connection: Any = None
    ) -> TopicState:
        """Undo ``pause_topic``."""
        ...

    def set_topic(
        self,
        topic: str,
        *,
        lease: Duration | None = None,
        retention: Duration | None = None,
        connection: Any = None,
    ) -> TopicState:
        """Set a topic's default lease and how long its finished tasks are kept."""
        ...

    def raise_token_epoch(self, reason: str, *, connection: Any = None) -> int:
        """After a restore that the database cannot see: a floor for all later tokens."""
        ...

    def sweep(self, max_tasks: int = 1_000, *, connection: Any = None) -> SweepReport:
        """Wake what is due, take back what expired, end what is past its deadline."""
        ...

    def prepare_partitions(self, *, connection: Any = None) -> int:
        """Make the partitions of the coming two weeks; returns how many were missing."""
        ...

    def apply_retention(self, max_rows: int = 10_000, *, connection: Any = None) -> list[Retained]:
        """One bounded step of dropping what is kept no longer; empty when done."""
        ...

    def mark_idle(
        self, topics: Sequence[str], pid: str, duration: Duration, *, connection: Any = None
    ) -> bool:
        """Ask producers of these topics for a notification. True: poll once more, then
        sleep. False: producers are at work, poll again soon."""
        ...

    def clear_idle(self, pid: str, *, connection: Any = None) -> None:
        """Take the mark back."""
        ...

    def try_lock(
        self, key: str, owner: str, ttl: Duration, *, connection: Any = None
    ) -> Lock | None:
        """Become the owner of a key for ``ttl``, if nobody is; None when it is held, be it by
        the same owner. Never waits. The token rises with each owner of the key; show it to
        what the lock protects (``assert_lock``, ``advance_fence``). When the answer was
        lost the key may be held in vain until ``ttl`` is over."""
        ...

    def renew_lock(
        self, key: str, owner: str, token: int, ttl: Duration, *, connection: Any = None
    ) -> datetime:
        """Keep a live lock for ``ttl`` from now; its new end. Never revives one. Raises
        WrongOwner (also for a key that nobody held yet), StaleToken, LeaseExpired, Busy."""
        ...

    def release_lock(self, key: str, owner: str, token: int, *, connection: Any = None) -> None:
        """Let anybody have the key at once. Raises what ``renew_lock`` does. Repeated by
        itself when the answer was lost."""
        ...

    def assert_lock(self, key: str, owner: str, token: int, *, connection: Any = None) -> datetime:
        """Check that a lock is live and newest; its end. In the caller's transaction nobody
        can take the key over before that ends. Raises what ``renew_lock`` does."""
        ...

    def put_schedule(
        self,
        name: str,
        spec: ScheduleSpec | Mapping[str, Any],
        overwrite: bool = True,
        *,
        connection: Any = None,
    ) -> PutSchedule:
        """Make a schedule, or change the one of this name; one that says the same, but for
        ``next_at`` and ``anchor_at``, stays as it is. A changed one begins anew, with
        ``next_at`` as its first tick. Raises ScheduleExists with ``overwrite=False``. When
        the answer was lost, look (``schedule``) before you put it again."""
        ...

    def schedule(self, name: str, *, connection: Any = None) -> ScheduleRow | None:
        """The schedule of this name, finished ones too; None when there is none."""
        ...

    def list_schedules(
        self,
        filters: Mapping[str, str] | None = None,
        cursor: str | None = None,
        limit: int = 100,
        *,
        connection: Any = None,
    ) -> Page[ScheduleRow]:
        """A page of schedules by name. Filters: source, state (active, paused, failing or
        finished) and prefix (of the name)."""
        ...

    def delete_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> bool:
        """It fires no more; the tasks that it made stay. False when there was none."""
        ...

    def pause_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> ScheduleRow:
        """It fires no more until it is resumed. Raises NoScheduleFound."""
        ...

    def resume_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> ScheduleRow:
        """It goes on; what it missed fires or not, by its ``missed``. Raises NoScheduleFound."""
        ...

    def trigger_schedule(
        self, name: str, reason: str | None = None, *, connection: Any = None
    ) -> TriggeredRun:
        """An extra run now, paused or not; moves no tick and counts as none. Raises
        NoScheduleFound."""
        ...

    def clock(self, *, connection: Any = None) -> datetime:
        """What time it is in the database, whose clock alone decides when anything is due."""
        ...

    def next_schedule_at(self, *, connection: Any = None) -> NextLook | None:
        """When to look for due schedules again; None when nothing is scheduled. Cheap, however
        many there are."""
        ...

    def due_schedules(self, limit: int = 500, *, connection: Any) -> list[DueSchedule]:
        """Up to ``limit`` schedules that are due. They stay locked until the caller's
        transaction (READ COMMITTED) ends; those locked by others are passed by."""
        ...

    def fire_schedules(
        self, fires: Iterable[ScheduleFire], *, connection: Any = None
    ) -> list[FireVerdict]:
        """Hand in what becomes of due schedules: the tasks of their ticks and their advance,
        each both or neither. A verdict for each, in order; a broken one stops no other."""
        ...

    def fire_due(
        self,
        plan: Callable[[list[DueSchedule]], Iterable[ScheduleFire]],
        limit: int = 500,
    ) -> list[FireVerdict]:
        """``due_schedules`` and ``fire_schedules`` in one transaction of our own: ``plan``
        says in between what becomes of those that are due (by their ``clock``). What it
        raises undoes the transaction. When the answer was lost, the next call finds out
        what is still due: no tick fires twice."""
        ...

    def close(self) -> None:
        """Close our own connections; a later call opens new ones."""
        ...

"""The words of the workload scheduler: what is submitted, leased, reported and seen.

Frozen values, checked when they are made: ``BadArgument`` names the field, the
rule, and the kind of what was given.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sokka_pg import durations
from sokka_pg import retry as retries
from sokka_pg.calls import arguments
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument, NoTaskFound
from sokka_pg.gather import TaskFailure
from sokka_pg.model import Json, LeasedTask, RetryPolicy, Status, Task, TaskSummary

TOPIC = "workload"
"""Where a submission goes that names no topic."""


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task by its id."""

    task_id: UUID

    def __post_init__(self) -> None:
        object.__setattr__(self, "task_id", arguments.uuid(self.task_id))


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """Who holds a lease: 1 to 200 characters, not blank; the ``pid`` of the task."""

    value: str

    def __post_init__(self) -> None:
        arguments.name(self.value, "owner")

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, order=True)
class FencingToken:
    """The generation of a lease: positive, and higher with every lease of a task."""

    value: int

    def __post_init__(self) -> None:
        arguments.integer(self.value, "token", 1, arguments.MOST_BIGINT)

    def __int__(self) -> int:
        return self.value


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """How far a task is. ``percent`` from 0 to 100; ``details`` are JSON."""

    percent: float | None = None
    message: str | None = None
    details: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.percent is not None:
            _percent(self.percent)
        if self.message is not None:
            arguments.free_text(self.message, "progress.message", arguments.MOST_INT)
        if not isinstance(self.details, Mapping):
            raise BadArgument.of("progress.details", "must be a mapping", self.details)

    def as_json(self) -> dict[str, Json]:
        """What is stored: the fields that say something."""
        found: dict[str, Json] = {}
        if self.percent is not None:
            found["percent"] = self.percent
        if self.message is not None:
            found["message"] = self.message
        if self.details:
            found["details"] = dict(self.details)
        return found

    @classmethod
    def of(cls, stored: Json) -> TaskProgress | None:
        """Whatever stands as a task's progress: a handler may have stored any JSON,
        which is then found under ``details``."""
        if stored is None:
            return None
        if not isinstance(stored, dict):
            return cls(details={"value": stored})
        rest = {key: value for key, value in stored.items() if key not in _PROGRESS}
        percent, message = stored.get("percent"), stored.get("message")
        if not _is_percent(percent):
            percent, rest = None, rest | ({} if percent is None else {"percent": percent})
        if not isinstance(message, str):
            message, rest = None, rest | ({} if message is None else {"message": message})
        details = stored.get("details")
        inner = details if isinstance(details, dict) else {"details": details}
        return cls(percent, message, {**(inner if details is not None else {}), **rest})


_PROGRESS = frozenset({"percent", "message", "details"})


@dataclass(frozen=True, slots=True)
class TaskCheckpoint:
    """A safe point that a task's owner recorded, whole; the next owner gets it.

    ``seq`` counts within the task. ``token`` is that of the lease which recorded
    it; None where only the task is known.
    """

    task_id: UUID
    seq: int
    metadata: Mapping[str, str]
    token: FencingToken | None
    saved_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskLease:
    """The right to work on a task, until ``expires_at`` by the database's clock."""

    task_id: UUID
    owner: LeaseOwner
    token: FencingToken
    expires_at: datetime
    attempt: int = 0
    payload: Json = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    checkpoint: TaskCheckpoint | None = None

    @classmethod
    def of(cls, task: LeasedTask, checkpoint: TaskCheckpoint | None) -> TaskLease:
        return cls(
            task.task_id, LeaseOwner(task.pid), FencingToken(task.token),
            task.lease_expires_at, task.attempt, task.data, task.headers or {}, checkpoint,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSubmission:
    """A task to be accepted. Everything but ``kind`` and ``payload`` is optional.

    ``task_id``: for a caller who may repeat the submission; ``unique_key``: at most
    one unfinished task of the topic has it, and a second submission stands for the
    first. ``parent``: the lease of the task that this one stands below, which must be
    live and newest; or just its id.
    ``deadline``: an instant; a task that still waits then fails with code
    ``expired``. ``timeout``: the longest one attempt may take. ``retry``: a policy,
    or the number of attempts. ``metadata``: strings that travel with the task.
    ``max_losses``: how many leases may be lost before it fails. Raises BadArgument.
    """

    kind: str = "default"
    payload: Json = None
    topic: str | None = None
    sub_topic: str | None = None
    task_id: UUID | str | None = None
    task_group_id: UUID | str | None = None
    parent: TaskLease | TaskRef | UUID | None = None
    priority: int | None = None
    run_at: datetime | None = None
    deadline: datetime | None = None
    timeout: Duration | None = None
    retry: RetryPolicy | Mapping[str, Any] | int | None = None
    unique_key: str | None = None
    metadata: Mapping[str, str] | None = None
    max_losses: int | None = None

    def __post_init__(self) -> None:
        arguments.name(self.kind, "kind")
        for name in ("topic", "sub_topic"):
            if getattr(self, name) is not None:
                arguments.name(getattr(self, name), name)
        for name in ("task_id", "task_group_id"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, arguments.uuid(getattr(self, name), name))
        if self.parent is not None:
            parent_of(self.parent)
        self._check_when()
        if self.metadata is not None:
            checked_metadata(self.metadata)

    def _check_when(self) -> None:
        for name in ("run_at", "deadline"):
            if getattr(self, name) is not None:
                durations.instant(getattr(self, name), name)
        if self.timeout is not None:
            durations.timeout(self.timeout)
        retries.policy_from(self.retry)
        if self.priority is not None:
            arguments.integer(self.priority, "priority", 0, 9)
        if self.max_losses is not None:
            arguments.integer(self.max_losses, "max_losses", 0, arguments.MOST_INT)
        if self.unique_key is not None:
            arguments.unique_key(self.unique_key)

    def options(self) -> dict[str, Any]:
        """What ``create_task`` takes of this beside topic and data."""
        found = {
            "kind": self.kind, "sub_topic": self.sub_topic, "task_id": self.task_id,
            "task_group_id": self.task_group_id, "priority": self.priority,
            "run_at": self.run_at, "expires_at": self.deadline, "timeout": self.timeout,
            "retry": self.retry, "unique_key": self.unique_key, "headers": self.metadata,
            "max_losses": self.max_losses,
            "parent_task_id": None if self.parent is None else parent_of(self.parent),
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as it stood when it was asked for. Metadata are redacted.

    Of a listing, ``metadata``, ``progress``, ``checkpoint``, ``result`` and
    ``parent_task_id`` are not read, and empty.
    """

    task_id: UUID
    status: Status
    kind: str
    topic: str
    sub_topic: str
    task_group_id: UUID
    attempt: int
    owner: LeaseOwner | None
    token: FencingToken | None
    lease_expires_at: datetime | None
    cancel_requested: bool
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    failure: TaskFailure | None = None
    result: Json = None
    progress: TaskProgress | None = None
    checkpoint: TaskCheckpoint | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    parent_task_id: UUID | None = None

    @property
    def done(self) -> bool:
        """Whether nothing follows."""
        return self.status.final

    @property
    def succeeded(self) -> bool:
        return self.status is Status.TERMINATED

    @property
    def cancelled(self) -> bool:
        """Whether it failed because somebody cancelled it."""
        return self.failure is not None and self.failure.code == "cancelled"


class TaskStatuses(list[TaskStatus]):
    """A part of a listing. ``cursor`` goes into the next call; None at the end."""

    def __init__(self, statuses: list[TaskStatus], cursor: str | None) -> None:
        super().__init__(statuses)
        self.cursor = cursor


def summary_fields(task: Task | TaskSummary) -> dict[str, Any]:
    """What a status takes from a row, or from a line of a listing."""
    return {
        "task_id": task.task_id, "status": task.status, "kind": task.kind,
        "topic": task.topic, "sub_topic": task.sub_topic, "task_group_id": task.task_group_id,
        "attempt": task.attempt,
        "owner": None if task.pid is None else LeaseOwner(task.pid),
        "token": FencingToken(task.token) if task.token and task.token > 0 else None,
        "lease_expires_at": task.lease_expires_at,
        "cancel_requested": task.cancel_requested_at is not None,
        "created_at": task.created_at, "updated_at": task.updated_at,
        "finished_at": task.finished_at,
        "failure": failure_of(task) if task.status is Status.FAILED else None,
    }


def failure_of(task: Task | TaskSummary) -> TaskFailure:
    """Why a failed task failed."""
    return TaskFailure.of_error(task.error)


def checkpoint_of(task: Task, token: FencingToken | None = None) -> TaskCheckpoint | None:
    """The checkpoint of a row; a handler may have stored any JSON."""
    if task.checkpoint is None:
        return None
    return TaskCheckpoint(
        task.task_id, task.checkpoint_seq, _as_metadata(task.checkpoint), token,
        task.checkpoint_at,
    )


def _as_metadata(stored: Json) -> dict[str, str]:
    if not isinstance(stored, dict):
        return {"value": _text(stored)}
    return {key: _text(value) for key, value in stored.items()}


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def checked_metadata(metadata: object, argument: str = "metadata") -> Mapping[str, str]:
    """Strings by strings. Raises BadArgument."""
    if not isinstance(metadata, Mapping):
        raise BadArgument.of(argument, "must be a mapping of str to str", metadata)
    for key, value in metadata.items():
        for each in (key, value):
            if not isinstance(each, str):
                raise BadArgument.of(argument, "must be a mapping of str to str", each)
    return metadata


def task_id_of(task: object) -> UUID:
    """The id of a task, given by any of its words. Raises BadArgument."""
    found = getattr(task, "task_id", task)
    return arguments.uuid(found)


def parent_of(parent: object) -> UUID:
    return arguments.uuid(getattr(parent, "task_id", parent), "parent")


def owner_text(owner: object) -> str:
    """An owner, as a word or as text. Raises BadArgument."""
    return owner.value if isinstance(owner, LeaseOwner) else arguments.name(owner, "owner")


def token_number(token: object) -> int:
    """A token, as a word or as a number. Raises BadArgument."""
    if isinstance(token, FencingToken):
        return token.value
    return int(arguments.integer(token, "token", -arguments.MOST_BIGINT, arguments.MOST_BIGINT))


def _percent(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadArgument.of("progress.percent", "must be a number", value)
    if not _is_percent(value):
        raise BadArgument.of("progress.percent", "must be from 0 to 100")


def _is_percent(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and 0 <= value <= 100


def checked_submission(submission: object) -> TaskSubmission:
    """Itself. Raises BadArgument."""
    if not isinstance(submission, TaskSubmission):
        raise BadArgument.of("submission", "must be a TaskSubmission", submission)
    return submission


def missing(task_id: UUID) -> NoTaskFound:
    """The error for an id that nothing has."""
    return NoTaskFound(f"task {task_id}: no such task", {"task_id": str(task_id)})

"""Calls of those who look after the queue: reading, steering, upkeep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sokka_pg import durations
from sokka_pg.calls import arguments
from sokka_pg.calls.statement import (
    Call,
    Column,
    Statement,
    array_text,
    column,
    columns_of,
    plain,
)
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument
from sokka_pg.model import (
    CancelOutcome,
    CreatedTask,
    Page,
    Retained,
    Status,
    SweepReport,
    Task,
    TaskEvent,
    TaskOutcome,
    TaskSummary,
    TopicStat,
    TopicState,
    WorkLook,
)
from sokka_pg.payload import SMALL_LIMIT, encode

_TASK = columns_of(Task)
_LISTED = (*columns_of(TaskSummary), plain("cursor"))
_VALUE = (Column("r"),)


# Reading


def get_task(task_id: UUID | str) -> Call[Task | None]:
    return Call(
        _GET_TASK,
        {"task_id": str(arguments.uuid(task_id))},
        lambda rows: Task(*rows[0]) if rows else None,
        repeatable=True,
    )


def list_group(task_group_id: UUID | str) -> Call[list[Task]]:
    params = {"task_group_id": str(arguments.uuid(task_group_id, "task_group_id"))}
    return Call(_LIST_GROUP, params, lambda rows: [Task(*row) for row in rows], repeatable=True)


_GET_TASK = Statement("get_task", _TASK, (("task_id", "uuid"),))
_LIST_GROUP = Statement("list_group", _TASK, (("task_group_id", "uuid"),))


def list_tasks(
    filters: Mapping[str, Any] | None = None,
    cursor: str | None = None,
    limit: int = 100,
    descending: bool = False,
) -> Call[Page[TaskSummary]]:
    params = {
        "filters": encode(_filters(filters or {}), "filters", SMALL_LIMIT),
        **_paging(cursor, limit),
        "descending": "true" if descending else "false",
    }
    return Call(_LIST_TASKS, params, _page(limit), repeatable=True)


def list_leased_tasks(
    topic: str, cursor: str | None = None, limit: int = 100
) -> Call[Page[TaskSummary]]:
    params = {"topic": arguments.name(topic, "topic"), **_paging(cursor, limit)}
    return Call(_LIST_LEASED, params, _page(limit), repeatable=True)


_PAGING = (("cursor", "text"), ("limit", "integer"))
_LIST_TASKS = Statement(
    "list_tasks", _LISTED, (("filters", "jsonb"), *_PAGING, ("descending", "boolean"))
)
_LIST_LEASED = Statement("list_leased_tasks", _LISTED, (("topic", "text"), *_PAGING))


def _paging(cursor: str | None, limit: int) -> dict[str, str | None]:
    return {
        "cursor": None if cursor is None else arguments.free_text(cursor, "cursor", 1_000),
        "limit": arguments.integer(limit, "limit", 1, arguments.MOST_MEMBERS),
    }


def _page(limit: int) -> Callable[[list[list[Any]]], Page[TaskSummary]]:
    def decode(rows: list[list[Any]]) -> Page[TaskSummary]:
        more = rows[-1][-1] if len(rows) >= limit else None
        return Page([TaskSummary(*row[:-1]) for row in rows], more)

    return decode


_FILTERS = frozenset({"topic", "sub_topic", "kind", "status", "task_group_id", "from", "to"})


def _filters(given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadArgument.of("filters", "must be a mapping", given)
    unknown = given.keys() - _FILTERS
    if unknown:
        raise BadArgument.of(f"filters.{min(map(str, unknown))}", "is no filter of list_tasks")
    return {name: _filter(name, value) for name, value in given.items() if value is not None}


def _filter(name: str, value: Any) -> Any:
    argument = f"filters.{name}"
    if name in ("from", "to"):
        return durations.instant(value, argument).isoformat()
    if name == "task_group_id":
        return str(arguments.uuid(value, argument))
    if name == "status":
        many = not isinstance(value, str)
        found = [_status(each) for each in (value if many else [value])]
        return found if many else found[0]
    return arguments.name(value, argument)


def _status(value: Any) -> str:
    try:
        return Status(value).value
    except ValueError:
        rule = f"must be one of {', '.join(Status)}"
        raise BadArgument.of("filters.status", rule, value) from None


def topics(topic: str | None = None) -> Call[list[TopicStat]]:
    params = {"topic": None if topic is None else arguments.name(topic, "topic")}
    return Call(_TOPICS, params, lambda rows: [TopicStat(*row) for row in rows], repeatable=True)


def history(task_id: UUID | str) -> Call[list[TaskEvent]]:
    params = {"task_id": str(arguments.uuid(task_id))}
    return Call(_HISTORY, params, lambda rows: [TaskEvent(*row) for row in rows], repeatable=True)


_TOPICS = Statement(
    "topic_stats",
    columns_of(TopicStat),
    (("topic", "text"),),
    view=True,
    suffix="where {topic} is null or r.topic = {topic} order by r.topic",
)
_HISTORY = Statement(
    "task_history",
    columns_of(TaskEvent),
    (("task_id", "uuid"),),
    view=True,
    suffix="where r.task_id = {task_id} order by r.seq",
)


def schema_version() -> Call[str]:
    return Call(_SCHEMA_VERSION, {}, lambda rows: str(rows[0][0]), repeatable=True)


def clock() -> Call[datetime]:
    return Call(_CLOCK, {}, _moment, repeatable=True)


_SCHEMA_VERSION = Statement("schema_version", _VALUE)
_CLOCK = Statement("clock", (Column("r", None, column("at").read_foreign),))


def _moment(rows: list[list[Any]]) -> datetime:
    found: datetime = rows[0][0]
    return found


# Steering. Not repeated after a lost answer: each act stands in the audit log once.


def revoke_lease(
    task_id: UUID | str, record_ver: int, reason: str | None = None
) -> Call[TaskOutcome]:
    params = {
        "task_id": str(arguments.uuid(task_id)),
        "record_ver": arguments.integer(record_ver, "record_ver", 0, arguments.MOST_BIGINT),
        "reason": arguments.reason(reason),
    }
    return Call(_REVOKE, params, lambda rows: TaskOutcome(*rows[0]))


def cancel(task_id: UUID | str, reason: str | None = None) -> Call[CancelOutcome]:
    params = {"task_id": str(arguments.uuid(task_id)), "reason": arguments.reason(reason)}
    return Call(_CANCEL, params, lambda rows: CancelOutcome(*rows[0]))


def resubmit(task_id: UUID | str, reason: str | None = None) -> Call[CreatedTask]:
    params = {"task_id": str(arguments.uuid(task_id)), "reason": arguments.reason(reason)}
    return Call(_RESUBMIT, params, lambda rows: CreatedTask(Task(*rows[0][:-1]), rows[0][-1]))


_REVOKE = Statement(
    "revoke_lease",
    columns_of(TaskOutcome),
    (("task_id", "uuid"), ("record_ver", "bigint"), ("reason", "text")),
)
_REASONED = (("task_id", "uuid"), ("reason", "text"))
_CANCEL = Statement("cancel_task", columns_of(CancelOutcome), _REASONED)
_RESUBMIT = Statement("resubmit_task", (*_TASK, column("created")), _REASONED)


def pause_topic(topic: str, reason: str | None = None) -> Call[TopicState]:
    params = {"topic": arguments.name(topic, "topic"), "reason": arguments.reason(reason)}
    return Call(_PAUSE, params, _paused)


def resume_topic(topic: str, reason: str | None = None) -> Call[TopicState]:
    params = {"topic": arguments.name(topic, "topic"), "reason": arguments.reason(reason)}
    return Call(_RESUME, params, _paused)


def set_topic(
    topic: str, lease: Duration | None = None, retention: Duration | None = None
) -> Call[TopicState]:
    kept = None if retention is None else durations.retention(retention)
    params = {
        "topic": arguments.name(topic, "topic"),
        "lease": arguments.lease_time(lease),
        "retention": None if kept is None else durations.interval_text(kept),
    }
    return Call(_SET_TOPIC, params, lambda rows: TopicState(rows[0][0], None, *rows[0][1:]))


_PAUSED = (column("topic"), column("paused_at"))
_PAUSE = Statement("pause_topic", _PAUSED, (("topic", "text"), ("reason", "text")))
_RESUME = Statement("resume_topic", _PAUSED, (("topic", "text"), ("reason", "text")))
_SET_TOPIC = Statement(
    "set_topic",
    (column("topic"), column("lease"), column("retention")),
    (("topic", "text"), ("lease", "interval"), ("retention", "interval")),
)


def _paused(rows: list[list[Any]]) -> TopicState:
    return TopicState(*rows[0])


def raise_token_epoch(reason: str) -> Call[int]:
    params = {"reason": arguments.free_text(reason, "reason", 2_000)}
    return Call(_RAISE_EPOCH, params, lambda rows: int(rows[0][0]))


_RAISE_EPOCH = Statement("raise_token_epoch", _VALUE, (("reason", "text"),))


# Upkeep


def sweep(max_tasks: int = 1_000) -> Call[SweepReport]:
    params = {"max_tasks": arguments.integer(max_tasks, "max_tasks", 1, arguments.MOST_MEMBERS)}
    return Call(_SWEEP, params, lambda rows: SweepReport(*rows[0]), repeatable=True)


_SWEEP = Statement("sweep", columns_of(SweepReport), (("max_tasks", "integer"),))


def look_around(
    topics: Sequence[str], within: Duration, *, older: bool = False
) -> Call[WorkLook]:
    """``older``: as a schema before revision 0007 has it, which knows of no sleepers."""
    params = {
        "topics": array_text(arguments.topics(topics)),
        "within": arguments.lease_time(within, "within"),
    }
    statement = _LOOK_OLDER if older else _LOOK
    return Call(statement, params, lambda rows: WorkLook(*rows[0]), repeatable=True)


_LOOK_ARGUMENTS = (("topics", "text[]"), ("within", "interval"))
_LOOK = Statement("look_around", columns_of(WorkLook), _LOOK_ARGUMENTS)
_LOOK_OLDER = Statement("look_for_work", columns_of(WorkLook)[:-1], _LOOK_ARGUMENTS)


def prepare_partitions() -> Call[int]:
    return Call(_PREPARE, {}, lambda rows: int(rows[0][0]), repeatable=True)


def apply_retention(max_rows: int = 10_000) -> Call[list[Retained]]:
    params = {"max_rows": arguments.integer(max_rows, "max_rows", 1, 100_000)}
    return Call(_RETENTION, params, lambda rows: [Retained(*row) for row in rows], repeatable=True)


_PREPARE = Statement("prepare_partitions", _VALUE)
_RETENTION = Statement("apply_retention", columns_of(Retained), (("max_rows", "integer"),))


def mark_idle(topics: Sequence[str], pid: str, duration: Duration) -> Call[bool]:
    params = {
        "topics": array_text(arguments.topics(topics)),
        "pid": arguments.name(pid, "pid"),
        "for": arguments.lease_time(duration, "duration"),
    }
    return Call(_MARK_IDLE, params, lambda rows: bool(rows[0][0]), repeatable=True)


def clear_idle(pid: str) -> Call[None]:
    return Call(
        _CLEAR_IDLE, {"pid": arguments.name(pid, "pid")}, lambda rows: None, repeatable=True
    )


_MARK_IDLE = Statement(
    "mark_idle", _VALUE, (("topics", "text[]"), ("pid", "text"), ("for", "interval"))
)
_CLEAR_IDLE = Statement("clear_idle", (Column("1"),), (("pid", "text"),))


def topic_hash(topic: str) -> Call[str]:
    return Call(
        _TOPIC_HASH,
        {"topic": arguments.name(topic, "topic")},
        lambda rows: str(rows[0][0]),
        repeatable=True,
    )


_TOPIC_HASH = Statement("topic_hash", _VALUE, (("topic", "text"),))

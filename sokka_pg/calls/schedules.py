"""Calls about schedules: what is to become a task, and when.

The database keeps them, and makes each tick a task once. What a schedule's text means
is worked out by whoever fires it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

from sokka_pg import durations
from sokka_pg.calls import arguments
from sokka_pg.calls.producers import specs_text
from sokka_pg.calls.statement import (
    Call,
    Column,
    Statement,
    column,
    columns_of,
    instant_column,
    json_column,
    plain,
    seconds_column,
    uuid_column,
)
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument
from sokka_pg.model import (
    DueSchedule,
    FireVerdict,
    Json,
    NextLook,
    Page,
    PutSchedule,
    ScheduleFire,
    ScheduleRow,
    TriggeredRun,
)
from sokka_pg.payload import DATA_LIMIT, SMALL_LIMIT, clean_text, encode

MISSED = ("skip", "one", "all")
STATES = ("active", "paused", "finished", "failing")
_MOST_REPEATS = 10**10 - 1
# A tick names the task and says when it runs; the others would let it meet another's task.
_NOT_FOR_TICKS = frozenset(
    {"run_at", "expires_at", "task_id", "parent_task_id", "unique_key", "on_conflict"}
)


class ScheduleSpec(TypedDict, total=False):
    """A schedule as ``put_schedule`` takes it; the first three are required."""

    schedule: str
    """When, in words that whoever fires it understands."""
    next_at: datetime
    """Its first tick (aware)."""
    task: Mapping[str, Any]
    """The task that a tick becomes: a spec of ``create_tasks``, with a topic, but no
    word of when it runs, of its id, its parent or a unique key."""
    anchor_at: datetime | None
    """What intervals are counted from (aware); default: the first tick."""
    missed: str
    """What becomes of ticks that nobody fired in time: ``skip``, ``one`` (default; the
    newest fires) or ``all``."""
    max_catch_up: int | None
    """How many of them fire at most, with ``all``: 1 to 10,000; default 100."""
    grace: Duration | None
    """How late a tick still fires, with ``skip``; default one minute."""
    serial: bool | None
    """A tick waits until the task of the one before has ended."""
    repeats: int | None
    """It is over after so many ticks; default: never."""
    expires_at: datetime | None
    """It is over after this instant (aware); default: never."""
    source: str | None
    """Who declared it, for those who look after their own; default ``sql``."""
    description: str | None
    """For readers: at most 2,000 characters."""


def _text(most: int) -> Callable[[Any, str], Json]:
    return lambda value, argument: arguments.free_text(value, argument, most)


def _whole(most: int) -> Callable[[Any, str], Json]:
    return lambda value, argument: int(arguments.integer(value, argument, 1, most))


def _instant(value: Any, argument: str) -> Json:
    return durations.instant(value, argument).isoformat()


def _grace(value: Any, argument: str) -> Json:
    return durations.interval_text(durations.delay(value, argument))


def _missed(value: Any, argument: str) -> Json:
    if value not in MISSED:
        raise BadArgument.of(argument, "must be skip, one or all", value)
    return str(value)


def _flag(value: Any, argument: str) -> Json:
    if not isinstance(value, bool):
        raise BadArgument.of(argument, "must be True or False", value)
    return value


_CHECKS: Mapping[str, Callable[[Any, str], Json]] = {
    "schedule": _text(500), "next_at": _instant, "anchor_at": _instant, "missed": _missed,
    "max_catch_up": _whole(arguments.MOST_MEMBERS), "grace": _grace, "serial": _flag,
    "repeats": _whole(_MOST_REPEATS), "expires_at": _instant, "source": arguments.name,
    "description": _text(2_000),
}  # fmt: skip
_REQUIRED = ("schedule", "next_at", "task")


def put_schedule(
    name: str,
    spec: Mapping[str, Any],
    overwrite: bool = True,
    max_data_bytes: int = DATA_LIMIT,
) -> Call[PutSchedule]:
    params: dict[str, str | None] = {
        "name": arguments.name(name, "name"),
        "spec": _spec_text(spec, max_data_bytes),
        "overwrite": "true" if overwrite else "false",
    }
    # Not repeated after a lost answer: one that has fired its last tick meanwhile would
    # begin anew.
    return Call(_PUT, params, lambda rows: PutSchedule(*rows[0]))


def _spec_text(spec: object, max_data_bytes: int) -> str:
    if not isinstance(spec, Mapping):
        raise BadArgument.of("spec", "must be a mapping", spec)
    for unknown in sorted(map(str, spec.keys() - ScheduleSpec.__annotations__.keys())):
        raise BadArgument.of(unknown, "is no key of a schedule")
    for needed in _REQUIRED:
        if spec.get(needed) is None:
            raise BadArgument.of(needed, "is required")
    said = {
        key: check(spec[key], key) for key, check in _CHECKS.items() if spec.get(key) is not None
    }
    members = [f"{json.dumps(key)}:{json.dumps(value)}" for key, value in said.items()]
    return "{" + ",".join([*members, f'"task":{_task_text(spec["task"], max_data_bytes)}']) + "}"


def _task_text(task: object, max_data_bytes: int) -> str:
    if not isinstance(task, Mapping):
        raise BadArgument.of("task", "must be a mapping", task)
    for name in sorted(_NOT_FOR_TICKS & task.keys()):
        raise BadArgument.of(f"task.{name}", "is not for the task of a schedule")
    try:
        return specs_text([task], max_data_bytes)[1:-1]
    except BadArgument as refused:
        message = "task." + refused.message.removeprefix("specs[1].")
        detail = {key: refused.detail[key] for key in refused.detail.keys() - {"position"}}
        raise BadArgument(message, detail) from None


# Where a column is read otherwise than one of that name of a task.
_OWN_COLUMNS = {
    "schedule_id": uuid_column, "last_task_id": uuid_column, "grace": seconds_column,
    "task": json_column, "error": plain, "clock": instant_column,
}  # fmt: skip


def _columns_of(kind: type) -> tuple[Column, ...]:
    return tuple(_OWN_COLUMNS.get(each.name, column)(each.name) for each in fields(kind))


def _uuids(values: Iterable[Any]) -> tuple[UUID, ...]:
    return tuple(arguments.uuid(str(value)) for value in values)


_ROW = _columns_of(ScheduleRow)
_NAME = ("name", "text")
_REASONED = (_NAME, ("reason", "text"))
_PUT = Statement(
    "put_schedule", _columns_of(PutSchedule), (_NAME, ("spec", "jsonb"), ("overwrite", "boolean"))
)


def get_schedule(name: str) -> Call[ScheduleRow | None]:
    return Call(
        _GET,
        {"name": arguments.name(name, "name")},
        lambda rows: ScheduleRow(*rows[0]) if rows else None,
        repeatable=True,
    )


def list_schedules(
    filters: Mapping[str, str] | None = None, cursor: str | None = None, limit: int = 100
) -> Call[Page[ScheduleRow]]:
    params: dict[str, str | None] = {
        "filters": encode(_filters(filters or {}), "filters", SMALL_LIMIT),
        "cursor": None if cursor is None else arguments.name(cursor, "cursor"),
        "limit": arguments.integer(limit, "limit", 1, arguments.MOST_MEMBERS),
    }

    def page(rows: list[list[Any]]) -> Page[ScheduleRow]:
        found = [ScheduleRow(*row) for row in rows]
        return Page(found, found[-1].name if len(found) >= limit else None)

    return Call(_LIST, params, page, repeatable=True)


def _filters(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise BadArgument.of("filters", "must be a mapping", given)
    for unknown in sorted(map(str, given.keys() - {"source", "state", "prefix"})):
        raise BadArgument.of(f"filters.{unknown}", "is no filter of list_schedules")
    said = {key: value for key, value in given.items() if value is not None}
    if said.get("state", "active") not in STATES:
        raise BadArgument.of("filters.state", f"must be one of {', '.join(STATES)}", said["state"])
    return {key: arguments.name(value, f"filters.{key}") for key, value in said.items()}


_GET = Statement("get_schedule", _ROW, (_NAME,))
_LIST = Statement(
    "list_schedules",
    _ROW,
    (("filters", "jsonb"), ("cursor", "text"), ("limit", "integer")),
    suffix="order by r.name",
)


# Steering. Not repeated after a lost answer, like other acts of operators.


def delete_schedule(name: str, reason: str | None = None) -> Call[bool]:
    return Call(_DELETE, _reasoned(name, reason), lambda rows: bool(rows[0][0]))


def pause_schedule(name: str, reason: str | None = None) -> Call[ScheduleRow]:
    return Call(_PAUSE, _reasoned(name, reason), lambda rows: ScheduleRow(*rows[0]))


def resume_schedule(name: str, reason: str | None = None) -> Call[ScheduleRow]:
    return Call(_RESUME, _reasoned(name, reason), lambda rows: ScheduleRow(*rows[0]))


def trigger_schedule(name: str, reason: str | None = None) -> Call[TriggeredRun]:
    return Call(_TRIGGER, _reasoned(name, reason), lambda rows: TriggeredRun(*rows[0]))


_DELETE = Statement("delete_schedule", (plain("deleted"),), _REASONED)
_PAUSE = Statement("pause_schedule", _ROW, _REASONED)
_RESUME = Statement("resume_schedule", _ROW, _REASONED)
_TRIGGER = Statement("trigger_schedule", columns_of(TriggeredRun), _REASONED)


def _reasoned(name: str, reason: str | None) -> dict[str, str | None]:
    return {"name": arguments.name(name, "name"), "reason": arguments.reason(reason)}


# Firing


def next_schedule_at() -> Call[NextLook | None]:
    return Call(_NEXT, {}, lambda rows: NextLook(*rows[0]) if rows else None, repeatable=True)


def due_schedules(limit: int = 500) -> Call[list[DueSchedule]]:
    params = {"limit": arguments.integer(limit, "limit", 1, arguments.MOST_MEMBERS)}
    return Call(_DUE, params, lambda rows: [DueSchedule(*row) for row in rows])


def fire_schedules(fires: Iterable[ScheduleFire]) -> Call[list[FireVerdict]]:
    found = arguments.members(fires, "fires")
    texts = (_fire_text(i, fire) for i, fire in enumerate(found, start=1))
    params = {"fires": f"[{','.join(texts)}]"}
    return Call(_FIRE, params, lambda rows: [FireVerdict(*row) for row in rows])


_NEXT = Statement("next_schedule_at", _columns_of(NextLook))
_DUE = Statement("due_schedules", _columns_of(DueSchedule), (("limit", "integer"),))
_FIRE = Statement(
    "fire_schedules",
    (*_columns_of(FireVerdict)[:-1], Column("r.task_ids", tuple, _uuids)),
    (("fires", "jsonb"),),
    suffix="order by r.ord",
)


def _fire_text(position: int, fire: object) -> str:
    at = f"fires[{position}]"
    if not isinstance(fire, ScheduleFire):
        raise BadArgument.of(at, "must be a ScheduleFire", fire)
    most = arguments.MOST_BIGINT
    said: dict[str, Json] = {
        "schedule_id": str(arguments.uuid(fire.schedule_id, f"{at}.schedule_id")),
        "generation": int(arguments.integer(fire.generation, f"{at}.generation", 1, most)),
        "due_at": _instant(fire.due_at, f"{at}.due_at"),
        "ticks": [
            _instant(tick, f"{at}.ticks") for tick in arguments.members(fire.ticks, f"{at}.ticks")
        ],
        "skipped": int(arguments.integer(fire.skipped, f"{at}.skipped", 0, most)),
        "busy": _flag(fire.busy, f"{at}.busy"),
    }
    if fire.next_at is not None:
        said["next_at"] = _instant(fire.next_at, f"{at}.next_at")
    if fire.error is not None:
        said["error"] = clean_text(fire.error, 2_000)
    return json.dumps(said)

"""Calls of those who wait for what becomes of tasks: hints to ask for, and looks."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import md5
from uuid import UUID

from sokka_pg.calls import arguments
from sokka_pg.calls.statement import Call, Column, Statement, columns_of, plain_array_text
from sokka_pg.durations import Duration
from sokka_pg.model import TaskLook


def watch_tasks(watcher: str, task_ids: Iterable[UUID | str], duration: Duration) -> Call[int]:
    params = {
        "watcher": arguments.name(watcher, "watcher"),
        "task_ids": _ids(task_ids),
        "for": arguments.lease_time(duration, "duration"),
    }
    return Call(_WATCH, params, lambda rows: int(rows[0][0]), repeatable=True)


def unwatch_tasks(watcher: str, task_ids: Iterable[UUID | str] | None = None) -> Call[None]:
    params = {
        "watcher": arguments.name(watcher, "watcher"),
        "task_ids": None if task_ids is None else _ids(task_ids),
    }
    return Call(_UNWATCH, params, lambda rows: None, repeatable=True)


def peek_tasks(task_ids: Iterable[UUID | str]) -> Call[list[TaskLook]]:
    params: dict[str, str | None] = {"task_ids": _ids(task_ids)}
    return Call(_PEEK, params, lambda rows: [TaskLook(*row) for row in rows], repeatable=True)


def task_hash(task_id: UUID) -> str:
    """What a notification says of a watched task: eight hexadecimal digits."""
    return md5(str(task_id).encode(), usedforsecurity=False).hexdigest()[:8]


_WATCH = Statement(
    "watch_tasks",
    (Column("r"),),
    (("watcher", "text"), ("task_ids", "uuid[]"), ("for", "interval")),
)
_UNWATCH = Statement(
    "unwatch_tasks", (Column("1"),), (("watcher", "text"), ("task_ids", "uuid[]"))
)
_PEEK = Statement("peek_tasks", columns_of(TaskLook), (("task_ids", "uuid[]"),))


def _ids(task_ids: Iterable[UUID | str]) -> str:
    found = arguments.members(task_ids, "task_ids")
    return plain_array_text(arguments.uuid(each, "task_ids").hex for each in found)

"""One interface over three kinds of callers: sync store, async store, raw SQL.

A caller is called with the name of a store's verb and its arguments. What the
three have in common is all that the conformance suite may use: attributes of
the answer that carry the SQL's column names, and the SQLSTATE of a refusal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from sokka_pg.errors import SokkaError
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore


class SyncCaller:
    def __init__(self, url: str) -> None:
        self.store = PgTaskStore(url)

    def __call__(self, verb: str, *arguments: Any, **options: Any) -> Any:
        return getattr(self.store, verb)(*arguments, **options)

    def close(self) -> None:
        self.store.close()


class AsyncCaller:
    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.store = AsyncPgTaskStore(url)

    def __call__(self, verb: str, *arguments: Any, **options: Any) -> Any:
        return self.runner.run(getattr(self.store, verb)(*arguments, **options))

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()


PROOF = ("task_id", "pid", "token")
LOCK = ("key", "owner", "token")
SQL_VERBS: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "create_task": ("create_task", ("topic", "data"), {}),
    "task": ("get_task", ("task_id",), {}),
    "tasks": ("list_group", ("task_group_id",), {}),
    "list_tasks": ("list_tasks", ("filters", "cursor", "limit"), {}),
    "list_leased_tasks": ("list_leased_tasks", ("topic", "cursor", "limit"), {}),
    "reserve_task": ("reserve_task", ("topic", "pid", "lease"), {}),
    "reserve_tasks": ("reserve_tasks", ("topics", "pid", "max_tasks", "lease"), {}),
    "acquire_lease": ("acquire_lease", ("task_id", "pid", "lease"), {}),
    "extend_lease": ("extend_lease", PROOF, {"duration": "lease"}),
    "renew_lease": ("renew_lease", PROOF, {"duration": "lease"}),
    "release_lease": ("release_lease", PROOF, {}),
    "terminate": ("terminate_task", PROOF, {}),
    "snooze": ("snooze_task", PROOF, {"delay": "snooze"}),
    "fail": ("fail_task", PROOF, {}),
    "retry": ("retry_task", PROOF, {}),
    "report_progress": ("report_progress", PROOF, {}),
    "save_checkpoint": ("save_checkpoint", PROOF, {}),
    "fan_out": ("fan_out", ("specs",), {}),
    "join": ("get_join", ("task_id",), {}),
    "join_results": ("join_results", ("task_id", "after", "limit"), {}),
    "wait_for_task": ("wait_for_task", PROOF, {}),
    "record_step": ("record_step", PROOF, {}),
    "steps": ("list_steps", ("task_id",), {}),
    "open_stream": ("open_stream", ("task_id", "max_items", "max_bytes"), {}),
    "append_stream": ("append_stream", PROOF, {}),
    "read_stream": ("read_stream", ("task_id", "after", "max_items", "max_bytes"), {}),
    "stream": ("get_stream", ("task_id",), {}),
    "watch_tasks": ("watch_tasks", ("watcher", "task_ids", "for"), {}),
    "unwatch_tasks": ("unwatch_tasks", ("watcher", "task_ids"), {}),
    "peek_tasks": ("peek_tasks", ("task_ids",), {}),
    "task_tree": ("task_tree", ("task_id", "max_rows", "max_children"), {}),
    "assert_lease": ("assert_lease", PROOF, {}),
    "advance_fence": ("advance_fence", ("resource", "token"), {}),
    "revoke_lease": ("revoke_lease", ("task_id", "record_ver"), {}),
    "cancel": ("cancel_task", ("task_id", "reason"), {}),
    "resubmit": ("resubmit_task", ("task_id", "reason"), {}),
    "pause_topic": ("pause_topic", ("topic", "reason"), {}),
    "resume_topic": ("resume_topic", ("topic",), {}),
    "sweep": ("sweep", ("max_tasks",), {}),
    "try_lock": ("try_lock", ("key", "owner", "ttl"), {}),
    "renew_lock": ("renew_lock", (*LOCK, "ttl"), {}),
    "release_lock": ("release_lock", LOCK, {}),
    "assert_lock": ("assert_lock", LOCK, {}),
    "put_schedule": ("put_schedule", ("name", "spec", "overwrite"), {}),
    "schedule": ("get_schedule", ("name",), {}),
    "list_schedules": ("list_schedules", ("filters", "cursor", "limit"), {}),
    "pause_schedule": ("pause_schedule", ("name", "reason"), {}),
    "resume_schedule": ("resume_schedule", ("name", "reason"), {}),
    "trigger_schedule": ("trigger_schedule", ("name", "reason"), {}),
    "delete_schedule": ("delete_schedule", ("name", "reason"), {}),
    "next_schedule_at": ("next_schedule_at", (), {}),
}
MANY = {
    "tasks", "list_tasks", "list_leased_tasks", "reserve_tasks", "join_results", "steps",
    "read_stream", "peek_tasks", "task_tree", "list_schedules",
}  # fmt: skip
VALUES = {
    "watch_tasks": "watch_tasks", "unwatch_tasks": "unwatch_tasks",
    "renew_lock": "lock_expires_at", "assert_lock": "lock_expires_at",
    "delete_schedule": "deleted",
}  # fmt: skip
JSON_ARGUMENTS = {
    "data", "result", "error", "progress", "checkpoint", "filters", "headers", "specs", "value",
    "items", "spec",
}  # fmt: skip
DURATIONS = {"lease", "snooze", "delay", "timeout", "deadline", "for", "ttl"}


class SqlCaller:
    """A program that knows nothing but the SQL functions."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def __call__(self, verb: str, *arguments: Any, **options: Any) -> Any:
        function, names, renamed = SQL_VERBS[verb]
        given = dict(zip(names, arguments, strict=False))
        given |= {renamed.get(name, name): value for name, value in options.items()}
        if "parent" in given:
            proof = ("parent_task_id", "pid", "token")
            given |= dict(zip(proof, given.pop("parent"), strict=True))
        named = ", ".join(f"p_{name} => %({name})s" for name in given)
        params = {name: _sql_value(name, value) for name, value in given.items()}
        rows = self.connection.execute(
            f"select * from sokka.{function}({named})", params
        ).fetchall()
        if verb in VALUES:
            return rows[0][VALUES[verb]]
        found = [SimpleNamespace(**row) for row in rows]
        return found if verb in MANY else (found[0] if found else None)

    def close(self) -> None:
        self.connection.close()


def _sql_value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in JSON_ARGUMENTS:
        return Jsonb(value, lambda found: json.dumps(found, default=datetime.isoformat))
    return f"{value} seconds" if name in DURATIONS else value


Caller = SyncCaller | AsyncCaller | SqlCaller
KINDS: dict[str, Callable[[str], Caller]] = {
    "sync": SyncCaller,
    "async": AsyncCaller,
    "sql": SqlCaller,
}


def new_task(caller: Caller, topic: str, **options: Any) -> UUID:
    """The id of a new task."""
    created: UUID = caller("create_task", topic, {"n": 1}, **options).task_id
    return created


def leased(caller: Caller, topic: str, pid: str = "w1", lease: float = 60) -> Any:
    """A new task, as its owner has it."""
    new_task(caller, topic)
    return caller("reserve_task", topic, pid, lease)


def refusal(call: Callable[..., Any], *arguments: Any, **options: Any) -> str | None:
    """The SQLSTATE with which a call was refused; None if it was accepted."""
    try:
        call(*arguments, **options)
    except (SokkaError, psycopg.Error) as error:
        return error.sqlstate
    return None

"""The other end of the pipe: what a child process does."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any

from sokka_pg.context import SyncTaskContext
from sokka_pg.engine import outcomes
from sokka_pg.engine.words import Reason, Settlement
from sokka_pg.errors import UsageError
from sokka_pg.model import LeasedTask
from sokka_pg.registry import TaskSpec
from sokka_pg.runner.attempt import Attempt, read_arguments, run_sync
from sokka_pg.store import PgTaskStore


@dataclass(frozen=True, slots=True)
class Job:
    """What a child is sent."""

    import_path: str
    task: LeasedTask


@dataclass(frozen=True, slots=True)
class Reply:
    """What a child sends back; ``verb`` None: a transaction of it ended the task."""

    verb: str | None
    arg: Any = None
    lost: str | None = None


def serve(pipe: Connection[Any, Any], database_url: str, schema: str) -> None:
    """Run jobs until the parent closes the pipe or dies."""
    # Ctrl-C goes to the whole group; the parent decides what to do about it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    store = PgTaskStore(database_url, schema)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        pipe.send(_attempt(job, store, database_url, schema))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _attempt(job: Job, store: PgTaskStore, database_url: str, schema: str) -> Reply:
    attempt: Attempt | None = None
    try:
        spec = find_spec(job.import_path, database_url, schema)
        attempt = _prepared(job.task, spec, store)
        arguments = read_arguments(job.task, spec, attempt.context)
        settlement = (
            arguments if isinstance(arguments, Settlement) else run_sync(attempt, arguments)
        )
    except BaseException as exc:  # an import may raise anything
        settlement = outcomes.from_exception(job.task, exc)
    if settlement is not None:
        return Reply(settlement.verb, settlement.arg)
    lost = attempt is not None and attempt.reason is Reason.LOST
    return Reply(None, lost="lost" if lost else None)


def _prepared(task: LeasedTask, spec: TaskSpec, store: PgTaskStore) -> Attempt:
    def lost(_token: int, _reason: str) -> None:
        attempt.reason = Reason.LOST

    attempt = Attempt(task, spec, SyncTaskContext(task, store, lost), monotonic())
    return attempt


def find_spec(import_path: str, database_url: str, schema: str) -> TaskSpec:
    """The handler of ``module:qualname``: what stands there is the decorated task."""
    module, _, name = import_path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    spec = getattr(found, "spec", None)
    if not isinstance(spec, TaskSpec):
        raise UsageError(f"{import_path} is not a task: keep the decorated name")
    connect_to = getattr(found, "connect_to", None)
    if connect_to is not None:
        connect_to(database_url, schema)
    return spec

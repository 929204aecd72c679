"""The demo's one handler: parse a file, and write its row in the transaction
that ends the task."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from sokka_pg.app import Sokka
from sokka_pg.context import SyncTaskContext
from sokka_pg.demo.measure import measure
from sokka_pg.demo.table import INSERT

KIND = "measure"


class Stage(Protocol):
    """What surrounds the handler's write: see ``process``."""

    def writing(self, task: SyncTaskContext, name: str) -> AbstractContextManager[None]: ...


def make_app(stage: Stage) -> Sokka:
    """An app with the handler; the environment names its database."""
    app = Sokka()

    @app.task(kind=KIND, retry=5)
    def measure_file(task: SyncTaskContext, name: str, path: str) -> None:
        found = measure(Path(path))
        with stage.writing(task, name), task.transaction(terminate=True) as fenced:
            fenced.connection.execute(INSERT, {
                "task_id": task.lease.task_id, "token": task.token, "worker": task.lease.pid,
                "name": name, **dataclasses.asdict(found),
            })
            fenced.result = {"nodes": found.nodes, "error": found.error}

    return app

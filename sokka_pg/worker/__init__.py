"""The worker: reserves tasks, runs their handlers, settles them."""

from __future__ import annotations

from sokka_pg.worker.core import Worker
from sokka_pg.worker.options import WorkerOptions, new_pid, parse_topics

__all__ = ["Worker", "WorkerOptions", "new_pid", "parse_topics"]

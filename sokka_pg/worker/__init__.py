"""The worker: reserves tasks, runs their handlers, settles them."""

from __future__ import annotations

from sokka_pg.worker.core import Worker
from sokka_pg.worker.options import WorkerOptions, new_pid, parse_topics
from sokka_pg.worker.process import LoopFactory, fastest_loop, spare_collector
from sokka_pg.worker.supervisor import Supervisor, process_number, when_supervisor_ends

__all__ = [
    "LoopFactory",
    "Supervisor",
    "Worker",
    "WorkerOptions",
    "fastest_loop",
    "new_pid",
    "parse_topics",
    "process_number",
    "spare_collector",
    "when_supervisor_ends",
]

"""A worker process of the demo: ``python -m sokka_pg.demo.process NAME``.

An ordinary worker, with two things around the handler's write. Refusals are
noted in the worker's journal. And a worker that is to be killed or frozen holds
its handlers just before their writes, so that it surely has leases in hand when
that happens.

Standard input gives the orders, one JSON object on the first line; then
``begin``, and ``go`` to let held handlers write. Its end means that the demo is
gone, and ends this process too.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from sokka_pg.context import SyncTaskContext
from sokka_pg.demo.handlers import make_app
from sokka_pg.demo.journal import Journal
from sokka_pg.errors import AlreadyDone, InvalidStatusTransition, LeaseLost
from sokka_pg.worker import Worker, WorkerOptions

STACK_BYTES = 16 * 1024 * 1024
ENDING_S = 5.0


@dataclass(frozen=True, slots=True)
class Orders:
    """What the demo tells a worker at its start. ``hold_after``: how many tasks
    it may end before its handlers are held; None: all."""

    name: str
    journal: str
    topic: str
    slots: int
    lease_s: float
    hold_after: int | None = None

    def line(self) -> str:
        """As the first line of standard input."""
        return json.dumps(asdict(self)) + "\n"


class Gate:
    """Where handlers are held before they write."""

    def __init__(self, hold_after: int | None) -> None:
        self._free = hold_after
        self._lock = threading.Lock()
        self._held: list[threading.Event] = []

    def admit(self) -> bool:
        """Whether one more may write now."""
        with self._lock:
            if self._free is None:
                return True
            self._free -= 1
            return self._free >= 0

    def hold(self, task: SyncTaskContext) -> None:
        """Wait for ``open``, or for the worker's word that the task is lost."""
        released = threading.Event()
        with self._lock:
            if self._free is None:
                return
            self._held.append(released)
        task.on_stop(released.set)
        released.wait()

    def open(self) -> None:
        """Let everybody through from now on."""
        with self._lock:
            self._free = None
            held, self._held = self._held, []
        for released in held:
            released.set()


class Stage:
    """What surrounds the handler's write."""

    def __init__(self, journal: Journal, gate: Gate) -> None:
        self._journal, self._gate = journal, gate

    @contextmanager
    def writing(self, task: SyncTaskContext, name: str) -> Iterator[None]:
        if not self._gate.admit():
            lease = task.lease
            self._journal.note("held", task_id=lease.task_id, name=name, token=lease.token)
            self._gate.hold(task)
        try:
            yield
        except (LeaseLost, AlreadyDone, InvalidStatusTransition) as refusal:
            self._note(task, name, refusal)
            raise

    def _note(
        self, task: SyncTaskContext, name: str,
        refusal: LeaseLost | AlreadyDone | InvalidStatusTransition,
    ) -> None:
        self._journal.note(
            "refused", task_id=task.lease.task_id, name=name, worker=task.lease.pid,
            stale_token=task.token, sqlstate=refusal.sqlstate, error=type(refusal).__name__,
            message=refusal.message, current_token=refusal.detail.get("token"),
            current_worker=refusal.detail.get("pid"), status=refusal.detail.get("status"),
        )


def main() -> None:
    first = sys.stdin.readline()
    if not first:
        return
    orders = Orders(**json.loads(first))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    warnings.simplefilter("ignore")  # about invalid escapes in other people's files
    # Nested code is parsed by recursion in C: give threads what the main thread has.
    threading.stack_size(STACK_BYTES)
    gate = Gate(orders.hold_after)
    journal = Journal(Path(orders.journal))
    app = make_app(Stage(journal, gate))
    worker = app.worker(
        {orders.topic: orders.slots},
        pid=f"{orders.name}:{os.getpid()}:{secrets.token_hex(2)}",
        options=WorkerOptions(lease=orders.lease_s, grace=ENDING_S / 2),
    )
    journal.note("ready", pid=worker.pid)
    if sys.stdin.readline().strip() != "begin":
        return
    listener = threading.Thread(
        target=listen, args=(sys.stdin, gate, worker), name="orders", daemon=True
    )
    listener.start()
    app.run(worker)


def listen(orders: IO[str], gate: Gate, worker: Worker) -> None:
    """Follow the orders; when they end, end."""
    for line in orders:
        if line.strip() == "go":
            gate.open()
    worker.stop(now=True)
    end = threading.Timer(ENDING_S, os._exit, (1,))
    end.daemon = True
    end.start()


if __name__ == "__main__":
    main()

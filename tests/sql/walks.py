"""Random walks of a task through its verbs, and a model that knows what must come of it.

The model is told nothing but which verb was accepted; it predicts status,
counters and the whole history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue
from tests.sql.states import ERROR

LEASE = "10 s"


@dataclass
class Model:
    """What is known of one task."""

    max_attempts: int
    max_losses: int
    status: str = "starting"
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    cancel_requested: bool = False
    code: str | None = None
    checkpoint: Any = None
    token: int = 0
    pid: str = ""
    events: list[tuple[str, str | None, int | None]] = field(
        default_factory=lambda: [("created", None, None)]
    )
    bonus: int = 0  # starts that count against no limit
    starts: int = 0

    @property
    def finished(self) -> bool:
        return self.status in ("failed", "terminated")

    def reserved(self, pid: str, token: int) -> None:
        assert token > self.token, "a token did not rise"
        self.status, self.pid, self.token = "running", pid, token
        self.attempt += 1
        self.starts += 1
        self.events.append(("reserved", pid, token))

    def end_lease(self, event: str, status: str) -> None:
        if self.cancel_requested:
            self.finish("failed", "cancelled")
            return
        self.events.append((event, self.pid, self.token))
        self.status = status

    def finish(self, status: str, code: str | None, owned: bool = True) -> None:
        self.status, self.code = status, code
        self.events.append((status, self.pid if owned else None, self.token if owned else None))

    def revoked(self) -> None:
        self.events.append(("revoked", self.pid, self.token))
        if self.cancel_requested:
            self.finish("failed", "cancelled", owned=False)
        else:
            self.status = "starting"

    def lost(self) -> None:
        self.events.append(("lease_lost", self.pid, self.token))
        self.losses += 1
        if self.cancel_requested:
            self.finish("failed", "cancelled", owned=False)
        elif self.losses > self.max_losses:
            self.finish("failed", "lease_lost", owned=False)
        else:
            self.status = "starting"


class Walk:
    """One task, led at random, and its model."""

    def __init__(self, queue: Queue, clock: Clock, random: Random, name: str) -> None:
        self.queue, self.clock, self.random, self.topic = queue, clock, random, name
        self.model = Model(random.choice([0, 1, 2, 5]), random.choice([0, 1, 3]))
        self.task_id: UUID = queue.create(
            name, max_attempts=self.model.max_attempts, max_losses=self.model.max_losses,
            retry={"initial": 0, "max": 0},
        )  # fmt: skip

    def step(self) -> None:
        steps = {
            "starting": [self.reserve, self.reserve, self.acquire, self.cancel],
            "snoozed": [self.wake, self.wake, self.revoke, self.cancel],
            "running": [
                self.extend, self.checkpoint, self.release, self.snooze, self.retry, self.revoke,
                self.lose, self.lose, self.cancel, self.acquire, self.terminate, self.fail,
            ],
        }  # fmt: skip
        # Ends are rare, so that walks are long.
        act = self.random.choice(steps[self.model.status])
        if act in (self.cancel, self.terminate, self.fail) and self.random.random() < 0.7:
            return
        act()

    def verb(self, name: str, **options: Any) -> None:
        self.queue.one(
            name, task_id=self.task_id, pid=self.model.pid, token=self.model.token, **options
        )

    def reserve(self) -> None:
        pid = f"w{self.random.randrange(3)}"
        lease = self.queue.reserve(self.topic, pid, LEASE)
        self.model.reserved(pid, lease.token)
        assert lease.attempt == self.model.attempt
        assert lease.checkpoint == self.model.checkpoint

    def acquire(self) -> None:
        if self.model.status == "running":
            pid = self.model.pid
            arguments = {"task_id": self.task_id, "pid": pid, "lease": LEASE}
            if self.model.cancel_requested:
                assert self.queue.refused("acquire_lease", **arguments).sqlstate == "SK002"
                return
            self.model.events.append(("released", pid, self.model.token))
            self.model.attempt -= 1
        else:
            pid = "w9"
            arguments = {"task_id": self.task_id, "pid": pid, "lease": LEASE}
        self.model.reserved(pid, self.queue.one("acquire_lease", **arguments).token)

    def extend(self) -> None:
        self.verb("extend_lease", lease=LEASE)

    def checkpoint(self) -> None:
        self.model.checkpoint = self.random.randrange(1000)
        self.verb("save_checkpoint", checkpoint=Jsonb(self.model.checkpoint))

    def release(self) -> None:
        self.verb("release_lease")
        if not self.model.cancel_requested:
            self.model.attempt -= 1
            self.model.bonus += 1
        self.model.end_lease("released", "starting")

    def snooze(self) -> None:
        self.verb("snooze_task", snooze="5 s")
        if not self.model.cancel_requested:
            self.model.attempt -= 1
            self.model.losses = 0
            self.model.bonus += 1
        self.model.end_lease("snoozed", "snoozed")

    def retry(self) -> None:
        self.verb("retry_task", error=ERROR, delay="3 s")
        self.model.failures += 1
        if self.model.cancel_requested:
            self.model.finish("failed", "cancelled")
            return
        if self.model.failures >= self.model.max_attempts:
            self.model.finish("failed", "boom")
            return
        self.model.losses = 0
        self.model.end_lease("retried", "snoozed")

    def revoke(self) -> None:
        version = self.queue.row(self.task_id).record_ver
        self.queue.one("revoke_lease", task_id=self.task_id, record_ver=version)
        if self.model.status == "snoozed":
            self.model.events.append(("revoked", None, None))
            self.model.status = "starting"
        else:
            self.model.revoked()

    def wake(self) -> None:
        self.clock.advance("5 s")
        assert self.queue.one("sweep").woken == 1
        self.model.status = "starting"

    def lose(self) -> None:
        self.clock.advance("10 s")
        swept = self.queue.one("sweep")
        assert swept.taken_back + swept.failed_lost == 1
        self.model.lost()

    def cancel(self) -> None:
        self.queue.one("cancel_task", task_id=self.task_id, reason="enough")
        if self.model.status != "running":
            self.model.finish("failed", "cancelled", owned=False)
        elif not self.model.cancel_requested:
            self.model.cancel_requested = True
            self.model.events.append(("cancel_requested", self.model.pid, self.model.token))

    def terminate(self) -> None:
        self.verb("terminate_task", result=Jsonb("done"))
        self.model.finish("terminated", None)

    def fail(self) -> None:
        self.verb("fail_task", error=ERROR)
        self.model.failures += 1
        self.model.finish("failed", "boom")

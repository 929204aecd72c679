"""A database that has been lived in: every event of a history, every way to end."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

DEADLINE_S = 30.0
BOOM = Jsonb({"code": "boom", "message": "it broke"})


class Life:
    """Tasks by name, made through the verbs alone."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, row_factory=namedtuple_row)
        self.tasks: dict[str, Any] = {}

    def close(self) -> None:
        self.connection.close()

    def live(self) -> None:
        """One task of each fate."""
        self._plain_work()
        self._errors()
        self._changes_of_hands()
        self._acts_of_operators()

    def call(self, function: str, **arguments: object) -> Any:
        named = ", ".join(f"p_{name} => %({name})s" for name in arguments)
        statement = f"select * from sokka.{function}({named})"
        return self.connection.execute(statement.encode(), arguments).fetchone()

    def create(self, name: str, topic: str = "mail", **arguments: object) -> Any:
        made = self.call("create_task", topic=topic, unique_key=name, kind="send", **arguments)
        self.tasks[name] = made.task_id
        return made

    def acquire(self, name: str, pid: str, lease: str = "1 minute") -> dict[str, Any]:
        """The proof of a new lease on the task, as arguments of a verb."""
        leased = self.call("acquire_lease", task_id=self.tasks[name], pid=pid, lease=lease)
        return {"task_id": leased.task_id, "pid": pid, "token": leased.token}

    def lost(self, name: str, pid: str) -> None:
        """The task's lease runs out, and a sweep takes it back."""
        self.acquire(name, pid, "1 ms")
        deadline = time.monotonic() + DEADLINE_S
        while self.status(name) == "running":
            assert time.monotonic() < deadline, "no sweep took the lease back"
            self.call("sweep")

    def status(self, name: str) -> str:
        return str(self.call("get_task", task_id=self.tasks[name]).status)

    def _plain_work(self) -> None:
        for number in range(3):
            self.create(f"plain {number}", data=Jsonb({"to": number}))
            self.call("terminate_task", **self.acquire(f"plain {number}", "w1"))
        self.create("waiting")
        self.create("later", run_at="9000-01-01 00:00+00")
        self.create("running")
        self.acquire("running", "w1")

    def _errors(self) -> None:
        self.create("failed")
        self.call("fail_task", **self.acquire("failed", "w1"), error=BOOM)
        self.create("retried", max_attempts=2)
        self.call("retry_task", **self.acquire("retried", "w1"), error=BOOM, delay="0 s")
        self.call("retry_task", **self.acquire("retried", "w2"), error=BOOM)
        self.create("expired", topic="reports", expires_at="1990-01-01 00:00+00")
        self.call("sweep")

    def _changes_of_hands(self) -> None:
        self.create("lost and found")
        self.lost("lost and found", "w1")
        self.call("terminate_task", **self.acquire("lost and found", "w2"))
        self.create("poison", topic="reports", max_losses=1)
        self.lost("poison", "w1")
        self.lost("poison", "w2")
        self.create("given back")
        self.call("release_lease", **self.acquire("given back", "w1"))
        self.call("snooze_task", **self.acquire("given back", "w2"), snooze="0 s")
        self.call("terminate_task", **self.acquire("given back", "w3"))

    def _acts_of_operators(self) -> None:
        self.create("revoked")
        self.acquire("revoked", "w1")
        version = self.call("get_task", task_id=self.tasks["revoked"]).record_ver
        self.call("revoke_lease", task_id=self.tasks["revoked"], record_ver=version, reason="hangs")
        self.create("cancelled")
        self.call("cancel_task", task_id=self.tasks["cancelled"], reason="sent twice")
        self.create("asked to stop")
        proof = self.acquire("asked to stop", "w1")
        self.call("cancel_task", task_id=self.tasks["asked to stop"])
        self.call("release_lease", **proof)
        self.call("resubmit_task", task_id=self.tasks["failed"], reason="mended")
        self.call("pause_topic", topic="reports", reason="printer broken")

"""Tasks in every state, each with the proof that a caller would show for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from tests.sql.calling import Queue, Row, topic

ERROR = {"code": "boom", "message": "it broke"}


@dataclass(frozen=True)
class Claim:
    """What a caller says: this task, under this pid and token."""

    task_id: UUID
    pid: str
    token: int

    def arguments(self) -> dict[str, Any]:
        return {"task_id": self.task_id, "pid": self.pid, "token": self.token}


def of(lease: Row, **changed: Any) -> Claim:
    return Claim(**({"task_id": lease.task_id, "pid": lease.pid, "token": lease.token} | changed))


def starting(queue: Queue) -> Claim:
    return Claim(queue.create(topic()), "w1", 1)


def released(queue: Queue) -> Claim:
    lease = queue.leased(topic())
    queue.verb("release_lease", lease)
    return of(lease)


def snoozed(queue: Queue) -> Claim:
    lease = queue.leased(topic())
    queue.verb("snooze_task", lease, snooze="1 hour")
    return of(lease)


def running(queue: Queue) -> Claim:
    return of(queue.leased(topic()))


def running_of_another(queue: Queue) -> Claim:
    return of(queue.leased(topic(), "w2"), pid="w1")


def running_under_an_older_token(queue: Queue) -> Claim:
    lease = queue.leased(topic())
    return of(lease, token=lease.token - 1)


def running_under_a_token_never_granted(queue: Queue) -> Claim:
    lease = queue.leased(topic())
    return of(lease, token=lease.token + 1000)


def expired(queue: Queue) -> Claim:
    lease = queue.leased(topic(), lease="1 ms")
    queue.until_expired(lease.task_id)
    return of(lease)


def failed(queue: Queue) -> Claim:
    lease = queue.leased(topic())
    queue.verb("fail_task", lease, error=ERROR)
    return of(lease)


def terminated(queue: Queue) -> Claim:
    lease = queue.leased(topic())
    queue.verb("terminate_task", lease, result=Jsonb(7))
    return of(lease)


def unknown(queue: Queue) -> Claim:
    return Claim(uuid4(), "w1", 1)


State = Callable[[Queue], Claim]

# The SQLSTATE with which every verb on a lease is refused, by state.
WRONG_STATES: dict[State, str] = {
    unknown: "SK001",
    failed: "SK002",
    terminated: "SK002",
    starting: "SK006",
    released: "SK006",
    snoozed: "SK006",
    running_of_another: "SK003",
    running_under_an_older_token: "SK005",
    running_under_a_token_never_granted: "SK005",
    expired: "SK004",
}

LEASE_VERBS: dict[str, dict[str, Any]] = {
    "extend_lease": {},
    "renew_lease": {"lease": "2 hours"},
    "release_lease": {},
    "terminate_task": {"result": Jsonb({"ok": True})},
    "snooze_task": {"snooze": "1 minute"},
    "fail_task": {"error": ERROR},
    "retry_task": {"error": ERROR},
    "report_progress": {"progress": Jsonb(50)},
    "save_checkpoint": {"checkpoint": Jsonb({"page": 3})},
    "record_step": {"name": "load", "value": Jsonb(7)},
    "append_stream": {"items": Jsonb([1, 2])},
    "assert_lease": {},
}

"""Acts made by hand, for the tests of the judge: what a client said, and what a row did.

Times are seconds since the act began. A call takes 2 ms, and the server's part of it lies in
the middle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.faults.chaos.judging.verdict import judge_act
from tests.faults.chaos.words import OK, Act, After, Call, Change, Effect, Transaction

TASK = "11111111-1111-4111-8111-111111111111"
CHILD = "22222222-2222-4222-8222-222222222222"
ZERO_US = 1_900_000_000_000_000
LEASE_S = 10
TOOK_S = 0.002
NEW: dict[str, Any] = {
    "id": TASK, "status": "starting", "token": None, "ver": 1, "until": None, "pid": None,
    "attempt": 0, "failures": 0, "losses": 0, "max_attempts": 1, "max_losses": 5,
    "checkpoint_seq": 0, "checkpoint": None, "progress": None, "run_at": ZERO_US,
    "expires_at": None, "now": ZERO_US, "code": None, "cancel": None, "topic": "a", "key": None,
    "data": {"n": 1}, "parent": None, "candidate": None, "is_join": False, "waits_for": None,
    "kind": "default", "fire": None, "aside": False, "resubmit_of": None,
}  # fmt: skip
GIVEN_UP: dict[str, Any] = {"token": None, "pid": None, "until": None}


def us(at: float) -> int:
    return ZERO_US + round(at * 1e6)


class Making:
    """An act in the making; ``row`` is the task as it stands."""

    def __init__(self) -> None:
        self.act = Act(
            "made", 18, LEASE_S, 0, 10**11, ZERO_US, after=After(present=[], drained_at=1)
        )
        self.row: dict[str, Any] = {}
        self._xid = 100

    def call(
        self,
        function: str,
        at: float,
        *,
        outcome: str = OK,
        rows: Sequence[dict[str, Any]] = (),
        sqlstate: str = "",
        took: float | None = TOOK_S,
        transaction: int | None = None,
        process: str = "w1-1",
        **arguments: Any,
    ) -> Call:
        call = Call(
            process, len(self.act.calls) + 1, function, arguments, round(at * 1e9),
            None if took is None else round((at + took) * 1e9), outcome, list(rows), sqlstate,
            transaction=transaction,
        )  # fmt: skip
        self.act.calls.append(call)
        return call

    def transaction(self, number: int, at: float, outcome: str, process: str = "w1-1") -> None:
        began, ended = round(at * 1e9), round((at + 0.1) * 1e9)
        self.act.transactions.append(Transaction(process, number, began, ended, outcome))

    def add(
        self, source: str, at: float, function: str, old: Any, new: Any, same: bool = False
    ) -> Change:
        """``same``: in the transaction of the change before."""
        self._xid += not same
        change = Change(
            len(self.act.changes) + 1, us(at) + 1_100, str(self._xid), 1, "0/1", function,
            source, old, new, us(at) + 900,
        )  # fmt: skip
        self.act.changes.append(change)
        return change

    def change(self, at: float, function: str, *, same: bool = False, **columns: Any) -> Change:
        old = self.row or None
        if not self.row or columns.get("status", self.row["status"]) != self.row["status"]:
            columns.setdefault("now", us(at) + 1_000)
        self.row = {**self.row, "ver": self.row.get("ver", 0) + 1, **columns}
        return self.add("tasks", at, function, old, self.row, same)

    def end(self, at: float, function: str, *, same: bool = False, **columns: Any) -> Change:
        self.add("tasks", at, function, self.row, None, same)
        left = {"now": us(at) + 1_000, "ver": self.row["ver"] + 1, "result": None}
        if columns.get("status") == "failed" and self.row["status"] == "running":
            left["failures"] = self.row["failures"] + 1
        self.row = {**self.row, **left, **columns}
        return self.add("finished_tasks", at, function, None, self.row, same=True)

    # What every task goes through

    def made(self, at: float = 0.0, task: str = TASK, **columns: Any) -> None:
        data = columns.get("data", {"n": 1})
        self.call(
            "create_task", at, rows=[{"task_id": task, "created": True}], process="producer-1",
            topic="a", task_id=task, data=json.dumps(data),
        )  # fmt: skip
        self.row = {}
        self.change(at, "create_task", **{**NEW, "id": task, "run_at": us(at), **columns})

    def granted(
        self, at: float = 1.0, token: int = 7, pid: str = "w1", told: bool = True, **row: Any
    ) -> None:
        self.change(
            at, "reserve_tasks", status="running", token=token, pid=pid,
            attempt=self.row["attempt"] + 1, until=us(at) + 1_000 + LEASE_S * 1_000_000,
        )  # fmt: skip
        handed = {
            "task_id": self.row["id"], "pid": pid, "token": token, "data": self.row["data"],
            "checkpoint": self.row["checkpoint"], "lease_expires_at": self.row["until"],
            "record_ver": self.row["ver"], **row,
        }  # fmt: skip
        self.call(
            "reserve_tasks", at, rows=[handed] if told else [], process=f"{pid}-1", pid=pid,
            topics="{a}", max_tasks="1", lease=f"PT{LEASE_S}S",
        )  # fmt: skip

    def swept(self, at: float, function: str = "sweep", **columns: Any) -> None:
        """A sweep takes the lease back."""
        self.call(function, at, rows=[{"woken": 0}], process="w2-1", max_tasks="1000")
        self.change(
            at, function,
            **{"status": "starting", "losses": self.row["losses"] + 1, "run_at": us(at) + 1_000,
               **GIVEN_UP, **columns},
        )  # fmt: skip

    def owner(self, function: str, at: float, token: int = 7, **said: Any) -> Call:
        arguments = {"task_id": self.row["id"], "pid": "w1", "token": str(token)}
        return self.call(function, at, **{**arguments, **said})

    def terminated(self, at: float, token: int = 7, **said: Any) -> None:
        """Its owner ends it, and is told so."""
        self.owner("terminate_task", at, token, **{"rows": [self.outcome("terminated")], **said})
        self.end(at, "terminate_task", status="terminated")

    def outcome(self, status: str, more: int = 1) -> dict[str, Any]:
        return {"status": status, "record_ver": self.row["ver"] + more, "run_at": None}

    def effect(self, kind: str, at: float, token: int = 7, task: str = TASK) -> None:
        self.act.effects.append(Effect(kind, task, token, 1, "w1", round(at * 1e9), "w1-1"))

    def rules(self) -> set[str]:
        return {fault.rule for fault in judge_act(self.act).broken}

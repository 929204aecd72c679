"""The checker alone, on histories made by hand: it must say no, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.proof import rest
from tests.proof.checker import check, story
from tests.proof.history import FAIL, INFO, OK, Call, Change, History
from tests.proof.wire import Json

TASK = "11111111-1111-4111-8111-111111111111"
SECOND = 1_000_000
NEW: dict[str, Any] = {
    "id": TASK,
    "status": "starting",
    "token": None,
    "ver": 1,
    "until": None,
    "pid": None,
    "attempt": 0,
    "failures": 0,
    "losses": 0,
    "max_attempts": 1,
    "max_losses": 5,
    "checkpoint_seq": 0,
    "checkpoint": None,
    "progress": None,
    "run_at": 0,
    "expires_at": None,
    "code": None,
    "cancel": None,
    "topic": "a",
    "key": None,
    "data": {"n": 1},
    "parent": None,
    "candidate": None,
    "is_join": False,
    "waits_for": None,
    "kind": "default",
    "fire": None,
}


class Writing:
    """A history in the making: one task, created and leased to w1 under token 7."""

    def __init__(self) -> None:
        self.history = History()
        self.row: dict[str, Any] = {}
        self.call(
            "create_task",
            rows=[{"task_id": TASK, "created": True}],
            data=Json({"n": 1}),
            topic="a",
            task_id=TASK,
        )
        self.change(0, **NEW)
        self.call(
            "reserve_task", rows=[self.leased(7, 10)], topic="a", pid="w1", lease="10 seconds"
        )
        self.change(0, status="running", token=7, pid="w1", attempt=1, until=10 * SECOND)

    def leased(self, token: int, until_s: int) -> dict[str, Any]:
        ends = f"2030-01-01T00:00:{until_s}+00:00"
        return {"task_id": TASK, "token": token, "pid": "w1", "lease_expires_at": ends}

    def call(
        self,
        function: str,
        at: int = 0,
        outcome: str = OK,
        rows: Any = (),
        sqlstate: str = "",
        **arguments: Any,
    ) -> None:
        number = len(self.history.calls) + 1
        clock = at * SECOND
        self.history.calls.append(
            Call(
                number,
                f"actor {number}",
                function,
                arguments,
                number,
                clock,
                number,
                clock,
                outcome,
                list(rows),
                sqlstate,
            )
        )

    def change(self, at: int, **columns: Any) -> None:
        number = len(self.history.calls)
        old = self.row or None
        self.row = {**self.row, **columns, "ver": self.row.get("ver", 0) + 1}
        self.add("tasks", at, number, old, self.row)

    def end(self, at: int, **columns: Any) -> None:
        number = len(self.history.calls)
        self.add("tasks", at, number, self.row, None)
        final = {**self.row, **columns, "ver": self.row["ver"] + 1}
        self.add("finished_tasks", at, number, None, final)

    def add(self, source: str, at: int, number: int, old: Any, new: Any) -> None:
        pos = len(self.history.changes) + 1
        self.history.changes.append(
            Change(pos, at * SECOND, f"x{number}", 1, number, source, old, new)
        )

    def rules(self) -> set[str]:
        return {fault.rule for fault in check(self.history)}


@pytest.fixture
def writing() -> Iterator[Writing]:
    yield Writing()


def terminate(writing: Writing, at: int, token: int = 7, **told: Any) -> None:
    writing.call("terminate_task", at, task_id=TASK, pid="w1", token=token, result=None, **told)


def test_a_task_that_just_works_breaks_no_rule(writing: Writing) -> None:
    terminate(writing, 5, rows=[{"status": "terminated"}])
    writing.end(5, status="terminated")
    assert writing.rules() == set()


@pytest.mark.parametrize(("at", "token"), [(10, 7), (5, 6)], ids=["too late", "a stale token"])
def test_an_end_without_a_live_lease_is_seen_by_both_witnesses(
    writing: Writing, at: int, token: int
) -> None:
    terminate(writing, at, token, rows=[{"status": "terminated"}])
    writing.end(at, status="terminated")
    assert writing.rules() == {"I3", "L1"}


def test_a_change_by_a_refused_call_is_seen(writing: Writing) -> None:
    terminate(writing, 5, outcome=FAIL, sqlstate="SK004")
    writing.end(5, status="terminated")
    assert {"I9", "L1"} <= writing.rules()


def test_an_answer_without_its_row_is_seen(writing: Writing) -> None:
    terminate(writing, 5, rows=[{"status": "terminated"}])
    assert writing.rules() == {"P3"}


def test_a_refusal_that_nothing_explains_is_seen_without_the_trigger(writing: Writing) -> None:
    terminate(writing, 5, outcome=FAIL, sqlstate="SK002")
    assert writing.rules() == {"L1"}


def test_a_lost_answer_explains_what_came_of_it(writing: Writing) -> None:
    terminate(writing, 5, outcome=INFO)
    writing.end(5, status="terminated")
    terminate(writing, 5, outcome=FAIL, sqlstate="SK002")
    assert writing.rules() == set()


def test_a_grant_with_an_older_token_is_seen(writing: Writing) -> None:
    writing.call("sweep", 10, max_tasks=1)
    writing.change(
        10, status="starting", token=None, pid=None, until=None, losses=1, run_at=10 * SECOND
    )
    writing.call(
        "reserve_task", 10, rows=[writing.leased(6, 20)], topic="a", pid="w1", lease="10 seconds"
    )
    writing.change(10, status="running", token=6, pid="w1", attempt=2, until=20 * SECOND)
    assert writing.rules() == {"I2", "L1"}


def test_a_live_lease_that_is_taken_back_is_seen(writing: Writing) -> None:
    writing.call("sweep", 9, max_tasks=1)
    writing.change(9, status="starting", token=None, pid=None, until=None, losses=1)
    assert "I1" in writing.rules()


@pytest.mark.parametrize("own", [True, False], ids=["its own transaction", "another"])
def test_a_write_under_a_token_that_is_not_current_is_seen(own: bool) -> None:
    """A transaction that holds the fence of a lock which is over may take the lock anew."""
    history = History()

    def add(xid: str, source: str, old: Any, new: Any) -> None:
        pos = len(history.changes) + 1
        history.changes.append(Change(pos, pos, xid, 1, None, source, old, new))

    first = {"id": "x", "owner": "w1", "token": 7, "until": 1}
    add("1", "locks", None, first)
    add("2" if own else "3", "locks", first, first | {"token": 8, "until": 9})
    add("2", "note", None, {"id": "x", "what": "lock", "token": 7})
    assert {fault.rule for fault in rest.fences(history)} == (set() if own else {"F2"})


def test_a_change_that_no_call_made_is_seen(writing: Writing) -> None:
    writing.add("tasks", 1, 99, writing.row, {**writing.row, "ver": 3})
    assert "P1" in writing.rules()


def test_a_story_holds_the_calls_and_the_rows_of_one_task(writing: Writing) -> None:
    terminate(writing, 10, rows=[{"status": "terminated"}])
    writing.end(10, status="terminated")
    told = "\n".join(story(writing.history, f"task {TASK}"))
    assert "terminate_task" in told
    assert "status starting -> running" in told
    assert "finished_tasks inserted" in told

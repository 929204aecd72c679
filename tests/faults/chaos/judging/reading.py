"""The calls of an act, read as what each said about each task.

A call becomes one ``Word`` for every task that it names or was answered with. A word is
*ok* where the caller was told yes and its transaction was committed; *undone* where it
certainly left nothing behind; otherwise *open*: it may have happened, later too, or never.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from tests.brief import spelled_out
from tests.faults.chaos.words import FAIL, INFO, OK, Act, Call, Transaction
from tests.proof.replay import GRANTERS

NEVER = 1 << 62
# How far the clocks of a process and of the server may be apart, offset and all. They are
# one host's: the difference is what its real time was slewed during the run.
SLACK_US = 100_000
_DURATION = re.compile(r"PT([0-9.]+)S|([0-9.]+)(?: seconds?)?")

VERBS = {
    "extend_lease": "extend", "extend_leases": "extend", "renew_lease": "renew",
    "report_progress": "progress", "save_checkpoint": "checkpoint", "record_step": "step",
    "append_stream": "append", "assert_lease": "assert", "release_lease": "release",
    "snooze_task": "snooze", "retry_task": "retry", "wait_for_task": "wait",
    "terminate_task": "terminate", "terminate_tasks": "terminate", "fail_task": "fail",
    "revoke_lease": "revoke", "cancel_task": "cancel",
}  # fmt: skip
SETTLERS = {"settle_tasks", "settle_and_reserve", "exchange_leases", "exchange_work"}
CREATORS = {
    "create_task", "create_tasks", "fan_out", "fire_schedules", "trigger_schedule", "resubmit_task",
}  # fmt: skip
ENDINGS = {"release", "snooze", "retry", "wait", "terminate", "fail"}
KEEPINGS = {"extend", "renew", "progress", "checkpoint"}


@dataclass(slots=True)
class Word:
    """What one call said of one task, and was told."""

    call: Call
    task: str
    verb: str
    state: str
    """ok, fail or info: of the call together with its transaction."""
    told: str = "ok"
    """ok, or the SQLSTATE of the refusal of this member."""
    pid: str = ""
    token: int = 0
    ver: int = 0
    """The version that an answer named; of a revoke the one that it asked for."""
    status: str = ""
    """What became of it; of a cancel its outcome; "existing" where nothing was made."""
    until: int = 0
    wait: int | None = None
    """How long it was to sleep, or the lease to last; None: not said."""
    data: Any = None
    has_data: bool = False
    low: int = 0
    """The server's clock, in microseconds, was between these when it was decided."""
    high: int = NEVER
    ended: int = NEVER
    """The nanosecond after which everybody sees it."""

    @property
    def ok(self) -> bool:
        return self.state == OK and self.told == "ok"

    @property
    def open(self) -> bool:
        return self.state == INFO and self.told in ("ok", "?")


@dataclass
class Reading:
    """All words of an act, and the calls that name no task."""

    act: Act
    of_task: dict[str, list[Word]] = field(default_factory=dict)
    calls: dict[str, list[Call]] = field(default_factory=dict)
    states: dict[tuple[str, int], str] = field(default_factory=dict)
    spans: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def state(self, call: Call) -> str:
        return self.states[call.process, call.number]

    def span(self, call: Call) -> tuple[int, int]:
        """The server's clock, in microseconds, while it and its transaction went on."""
        return self.spans[call.process, call.number]


def read(act: Act) -> Reading:
    held = {(t.process, t.number): t for t in act.transactions}
    reading = Reading(act)
    for call in act.calls:
        transaction = None
        if call.transaction is not None:
            transaction = held.get(
                (call.process, call.transaction),
                # its begin was lost, or never written: nobody knows how it ended
                Transaction(call.process, call.transaction, call.began),
            )
        state, base = _base(act, call, transaction)
        key = (call.process, call.number)
        reading.states[key] = state
        reading.spans[key] = (
            base.low,
            NEVER if state == INFO else us(act, base.ended, call.slack_ns),
        )
        reading.calls.setdefault(call.function, []).append(call)
        for word in _words(base):
            reading.of_task.setdefault(word.task, []).append(word)
    return reading


def us(act: Act, ns: int, slack_ns: int = 0) -> int:
    """The latest that the server's clock can have said at this moment of a process."""
    return ns // 1000 + act.offset_us + slack_ns // 1000 + SLACK_US


def _base(act: Act, call: Call, transaction: Transaction | None) -> tuple[str, Word]:
    state, ended = call.outcome, call.ended
    if transaction is not None:
        if transaction.outcome == FAIL or state == FAIL:
            # A statement that failed took its transaction with it, or its savepoint.
            state = FAIL
        elif transaction.outcome == INFO:
            state = INFO
        ended = transaction.ended if state != FAIL else call.ended
    heard = call.outcome != INFO and call.ended is not None
    return state, Word(
        call, "", "", state,
        told=call.sqlstate if call.outcome == FAIL else "ok" if heard else "?",
        low=call.began // 1000 + act.offset_us - call.slack_ns // 1000 - SLACK_US,
        high=us(act, call.ended, call.slack_ns) if heard and call.ended is not None else NEVER,
        ended=NEVER if state == INFO or ended is None else ended,
    )  # fmt: skip


# From a call to its words


def _words(base: Word) -> Iterator[Word]:
    call = base.call
    said = call.arguments
    if call.function in CREATORS:
        yield from _made(base, call)
    elif call.function == "acquire_lease":
        yield from _acquired(base, call)
    elif call.function in SETTLERS or call.function in ("extend_leases", "terminate_tasks"):
        yield from _members(base, call)
    elif call.function in VERBS:
        yield _single(base, call, said)
    if call.function in GRANTERS:
        yield from _granted(base, call)


def _single(base: Word, call: Call, said: dict[str, Any]) -> Word:
    row = call.rows[0] if call.rows else {}
    word = replace(
        base, task=uuid(said["task_id"]), verb=VERBS[call.function], pid=said.get("pid") or "",
        token=int(said.get("token") or 0), ver=int(row.get("record_ver") or 0),
        status=row.get("status") or "", until=instant(row.get("lease_expires_at")),
        wait=duration(said.get("lease") or said.get("snooze") or said.get("delay")),
    )  # fmt: skip
    if word.verb == "revoke":
        word.ver = int(said["record_ver"])
    elif word.verb == "checkpoint":
        word.ver = int(row.get("seq") or 0)
    elif word.verb == "cancel" and row:
        word.status = row["outcome"]
    return word


def _acquired(base: Word, call: Call) -> Iterator[Word]:
    """Its answer is a grant; this is what it says without one."""
    if not call.rows:
        yield replace(
            base, task=uuid(call.arguments["task_id"]), verb="acquire",
            pid=call.arguments["pid"], wait=duration(call.arguments.get("lease")),
        )  # fmt: skip


def _members(base: Word, call: Call) -> Iterator[Word]:
    said = call.arguments
    ids, tokens = array(said.get("task_ids")), array(said.get("tokens"))
    verbs = array(said.get("verbs")) or [VERBS.get(call.function, "")] * len(ids)
    heard = call.outcome == OK
    # in any order where a position comes with them, else in that of the members
    answers = enumerate(spelled_out(call.rows, ids), 1)
    rows = {row.get("ord") or n: row for n, row in answers} if heard else {}
    for place, (task, token, verb) in enumerate(zip(ids, tokens, verbs, strict=True), start=1):
        row = rows.get(place, {})
        detail = row.get("detail") if isinstance(row.get("detail"), dict) else None
        yield replace(
            base, task=uuid(task), verb=verb, pid=said["pid"], token=int(token),
            told=row["verdict"] if row else base.told if not heard else "none",
            ver=int((detail or {}).get("record_ver") or 0) if row.get("verdict") == "ok" else 0,
            status=(detail or {}).get("status") or "",
            until=instant(row.get("lease_expires_at")),
            wait=duration(said.get("lease")) if verb == "extend" else None,
        )  # fmt: skip


def _granted(base: Word, call: Call) -> Iterator[Word]:
    if call.outcome != OK:
        return
    for row in call.rows:
        if row.get("token") is not None and row.get("verdict", "reserved") == "reserved":
            yield replace(
                base, task=uuid(row["task_id"]), verb="grant", pid=row["pid"],
                token=int(row["token"]), ver=int(row.get("record_ver") or 0),
                until=instant(row["lease_expires_at"]), data=row, has_data=True,
                wait=duration(call.arguments.get("lease")),
            )  # fmt: skip


def _made(base: Word, call: Call) -> Iterator[Word]:
    word = replace(base, verb="make")
    if call.function not in ("create_task", "create_tasks"):
        join = call.arguments.get("task_id") if call.function == "fan_out" else None
        for task in _answered(call) or ([join] if join else []):
            yield replace(word, task=uuid(task), status="" if _created(call, 0) else "existing")
        return
    for place, spec in enumerate(attempted(call)):
        row = call.rows[place] if place < len(call.rows) else {}
        task = row.get("task_id") or spec.get("task_id")
        if task:
            yield replace(
                word, task=uuid(task), data=spec.get("data"), has_data="data" in spec,
                status="" if _created(call, place) else "existing",
            )  # fmt: skip


def _created(call: Call, place: int) -> bool:
    return bool(place >= len(call.rows) or call.rows[place].get("created", True))


def _answered(call: Call) -> list[str]:
    if call.function == "fire_schedules":
        return [task for row in call.rows for task in row.get("task_ids") or ()]
    return [row["task_id"] for row in call.rows if row.get("task_id")]


def _spec(said: dict[str, Any]) -> dict[str, Any]:
    spec = {
        name: said[name] for name in ("task_id", "topic", "unique_key", "headers") if said.get(name)
    }
    if said.get("data") is not None:
        spec["data"] = json.loads(said["data"]) if isinstance(said["data"], str) else said["data"]
    return spec


def _specs(function: str, text: Any) -> list[dict[str, Any]]:
    if function not in ("create_tasks", "fan_out") or text is None:
        return []
    found = json.loads(text) if isinstance(text, str) else text
    return list(found)


def attempted(call: Call) -> list[dict[str, Any]]:
    """What a call of a producer wanted to make: topic, data and id, as far as said."""
    if call.function == "create_task":
        return [_spec(call.arguments)]
    return _specs(call.function, call.arguments.get("specs"))


# Forms of values


@lru_cache(maxsize=100_000)
def uuid(text: str) -> str:
    """With dashes, in lower case."""
    found = str(text).lower()
    if len(found) == 32:
        return f"{found[:8]}-{found[8:12]}-{found[12:16]}-{found[16:20]}-{found[20:]}"
    return found


def array(text: Any) -> list[str]:
    """The members of an array literal that need no quotes."""
    if text is None:
        return []
    if isinstance(text, list):
        return [str(member) for member in text]
    inner = str(text).strip("{}")
    return inner.split(",") if inner else []


@lru_cache(maxsize=10_000)
def duration(text: str | None) -> int | None:
    """Microseconds; None where nothing was said."""
    found = _DURATION.fullmatch(str(text)) if text is not None else None
    return round(float(found[1] or found[2]) * 1_000_000) if found else None


def instant(value: Any) -> int:
    """Microseconds since 1970; 0 where there is none."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    moment = datetime.fromisoformat(value)
    offset = moment.utcoffset()
    since = moment.replace(tzinfo=None) - datetime(1970, 1, 1)
    whole = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return whole - (round(offset.total_seconds()) * 1_000_000 if offset else 0)

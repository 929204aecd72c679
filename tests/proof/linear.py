"""A control that does not trust the trigger: is there an order of the clients' calls, each
somewhere between its begin and its answer, in which a register with one holder would have
given these answers? The search is Wing and Gong's, task by task; a call of which nothing
was heard may have happened at any later moment, or never.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from .history import INFO, OK, Call, Fault, History
from .moves import BEGIN
from .replay import CREATORS, GRANTERS, microseconds

FOREVER = 10**9
# Beyond this the verdict on a task is left open, and counted.
NODES = 50_000

OWNERS = {
    "extend_lease": "extend",
    "renew_lease": "extend",
    "report_progress": "keep",
    "save_checkpoint": "keep",
    "record_step": "keep",
    "append_stream": "keep",
    "assert_lease": "keep",
    "release_lease": "leave",
    "snooze_task": "leave",
    "retry_task": "leave",
    "wait_for_task": "leave",
    "terminate_task": "end",
    "fail_task": "end",
}


@dataclass(frozen=True)
class Register:
    """One task, as its clients know it."""

    phase: str = "absent"
    pid: str = ""
    token: int = 0
    until: int = 0
    highest: int = 0


@dataclass(frozen=True)
class Op:
    """One answer about one task. ``low`` and ``high``: what the clock can have said."""

    call: int
    actor: str
    verb: str
    told: str
    began: int
    ended: int
    low: int
    high: int
    pid: str = ""
    token: int = 0
    until: int = 0
    optional: bool = False
    after: str = ""


def check(history: History) -> Iterator[Fault]:
    ops: dict[str, list[Op]] = defaultdict(list)
    fated = _ends_by_itself(history)
    for call in history.calls:
        if call.undone and not (call.sqlstate and call.transaction is None):
            continue
        for task, op in _ops(call, history):
            ops[task].append(op)
    unheard = [
        _base(call)
        for call in history.calls
        if call.outcome == INFO and call.function in ("fire_schedules", "resubmit_task")
    ]
    for task, of_task in ops.items():
        if not any(op.verb == "make" for op in of_task):
            of_task += [replace(op, verb="make") for op in unheard]
        if order(of_task, task in fated) is False:
            yield Fault("L1", f"task {task}", "no order of its calls explains the answers")


def _ends_by_itself(history: History) -> set[str]:
    """Tasks that may end while nobody holds them: children, joins, those with a deadline."""
    found: set[str] = set()
    for call in history.calls:
        said = call.arguments
        if call.function == "create_task" and said.get("expires_at"):
            found.add(said["task_id"])
        elif call.function == "fan_out":
            found |= {said["task_id"], *(spec["task_id"] for spec in said["specs"].value)}
    return found


def instant(text: str) -> int:
    """An instant as JSON has it, in microseconds since the beginning."""
    since = datetime.fromisoformat(text) - BEGIN
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _base(call: Call) -> Op:
    said = call.arguments
    lost = call.outcome == INFO or (
        call.transaction is not None and call.transaction.outcome == INFO
    )
    return Op(
        call.number,
        call.actor,
        "",
        "ok",
        call.began,
        FOREVER if lost else call.settled,
        call.clock,
        FOREVER * 1_000_000 if call.outcome == INFO else call.clock_ended,
        pid=said.get("pid") or "",
        token=said.get("token") or 0,
        optional=lost,
    )


def _ops(call: Call, history: History) -> Iterator[tuple[str, Op]]:
    said, base = call.arguments, _base(call)
    yield from _made(call, base)
    if call.function in GRANTERS:
        yield from _granted(call, base, history)
    if call.function in OWNERS:
        op = _owner(call, replace(base, verb=OWNERS[call.function]))
        yield from _either(said["task_id"], op, call)
    elif "task_ids" in said and call.outcome == OK:
        yield from _members(call, base)
    elif "task_ids" in said and call.outcome == INFO:
        for place, task in enumerate(said["task_ids"]):
            op = replace(
                base,
                verb=_verb(call, place),
                token=said["tokens"][place],
                until=call.clock + microseconds(said.get("lease")),
            )
            yield from _either(task, op, call)
    elif call.function in ("revoke_lease", "cancel_task"):
        verb = call.function.partition("_")[0]
        told = call.sqlstate or (call.rows[0]["outcome"] if verb == "cancel" and call.rows else "")
        after = call.rows[0]["status"] if call.rows else ""
        if call.sqlstate in ("", "SK001", "SK002"):
            op = replace(base, verb=verb, told=told or "ok", after=after)
            yield from _either(said["task_id"], op, call)


def _either(task: str, op: Op, call: Call) -> Iterator[tuple[str, Op]]:
    """Where no answer came, the task may have gone either way: waiting, or to its end."""
    yield task, op
    if call.outcome == INFO and op.verb in ("leave", "revoke"):
        yield task, replace(op, after="failed")


KINDS = {"terminate": "end", "fail": "end", "retry": "leave", "snooze": "leave", "release": "leave"}


def _verb(call: Call, place: int) -> str:
    if verbs := call.arguments.get("verbs"):
        return KINDS[verbs[place]]
    return "extend" if call.function == "extend_leases" else "end"


def _made(call: Call, base: Op) -> Iterator[tuple[str, Op]]:
    said, made = call.arguments, replace(base, verb="make")
    if call.function not in CREATORS:
        return
    if call.outcome == INFO:
        specs = said["specs"].value if "specs" in said else []
        ids = [said.get("task_id"), *(spec["task_id"] for spec in specs)]
    elif call.function == "fire_schedules":
        ids = [task for row in call.rows for task in row["task_ids"]]
    else:
        ids = [row["task_id"] for row in call.rows if row.get("created", True)]
        if call.function == "fan_out" and ids:
            ids += [spec["task_id"] for spec in said["specs"].value]
    for task in ids:
        if task and (call.outcome != INFO or call.function != "resubmit_task"):
            yield task, made


def _granted(call: Call, base: Op, history: History) -> Iterator[tuple[str, Op]]:
    said = call.arguments
    verb = "acquire" if call.function == "acquire_lease" else "grant"
    lease = microseconds(said["lease"])
    if call.outcome == INFO:
        # To whom it went, and under which token, nobody has heard.
        tasks = [said["task_id"]] if verb == "acquire" else _all_tasks(history)
        for task in tasks:
            yield task, replace(base, verb=verb, token=-call.number, until=call.clock + lease)
        return
    if call.sqlstate:
        if verb == "acquire" and call.sqlstate in ("SK001", "SK009"):
            yield said["task_id"], replace(base, verb=verb, told=call.sqlstate)
        return
    for row in call.rows:
        given = row.get("lease") or row
        if given.get("token") is not None:
            yield (
                row["task_id"],
                replace(
                    base, verb=verb, token=given["token"], until=instant(given["lease_expires_at"])
                ),
            )


def _all_tasks(history: History) -> list[str]:
    found: dict[str, None] = {}
    for call in history.calls:
        for task, _ in _made(call, Op(0, "", "", "", 0, 0, 0, 0)):
            found[task] = None
    return list(found)


def _owner(call: Call, op: Op) -> Op:
    # SK001 of wait_for_task may be about the child.
    unclear = call.function == "wait_for_task" and call.sqlstate == "SK001"
    if unclear or call.sqlstate in ("57014", "SK007", "55P03", "22023"):
        return replace(op, optional=True, verb="nothing")
    if call.sqlstate:
        return replace(op, told=call.sqlstate)
    row: dict[str, Any] = call.rows[0] if call.rows else {}
    if op.verb == "extend":
        until = (
            instant(row["lease_expires_at"])
            if row
            else op.low + microseconds(call.arguments["lease"])
        )
        return replace(op, until=until)
    if op.verb == "leave":
        return replace(op, after=row.get("status", ""))
    return op


def _members(call: Call, base: Op) -> Iterator[tuple[str, Op]]:
    said = call.arguments
    for row in call.rows:
        place = row.get("ord")
        if place is None or row["verdict"] in ("55P03", "22023"):
            continue
        verb = _verb(call, place - 1)
        told = row["verdict"]
        until = instant(row["lease_expires_at"]) if verb == "extend" and told == "ok" else 0
        after = (row.get("detail") or {}).get("status") or "" if told == "ok" else ""
        yield (
            row["task_id"],
            replace(
                base,
                verb=verb,
                told=told,
                token=said["tokens"][place - 1],
                until=until,
                after=after,
            ),
        )


# The register


def _apply(state: Register, op: Op, fated: bool) -> Register | None:
    """The register after an op, or None where it would not have answered so."""
    over = state.phase == "running" and state.until <= op.high
    live = state.phase == "running" and state.until > op.low
    mine = (state.pid, state.token) == (op.pid, op.token)
    if op.told == "SK001":
        return state if state.phase == "absent" else None
    if op.told in ("SK002", "already_done"):
        if state.phase == "done":
            return state
        # A lease that is over may end a task for good, and so may its own deadline.
        if over or (fated and state.phase in ("waiting", "running")):
            return replace(state, phase="done")
        return None
    if op.told == "SK003":
        return state if state.phase == "running" and state.pid != op.pid else None
    if op.told == "SK005":
        return (
            state
            if state.phase == "running" and state.pid == op.pid and state.token != op.token
            else None
        )
    if op.told == "SK004":
        return state if over and mine else None
    if op.told == "SK006":
        if state.phase == "waiting":
            return state
        return _waiting(state) if over else None
    if op.told == "SK009":
        return state if live and state.pid != op.pid else None
    return _accept(state, op, over, live and mine)


def _waiting(state: Register) -> Register:
    return replace(state, phase="waiting", pid="", token=0, until=0)


def _accept(state: Register, op: Op, over: bool, held: bool) -> Register | None:
    waits = state.phase == "waiting" or over
    if op.verb == "make":
        return replace(state, phase="waiting") if state.phase == "absent" else None
    if op.verb in ("grant", "acquire"):
        again = op.verb == "acquire" and state.phase == "running" and state.pid == op.pid
        if not (waits or again) or 0 < op.token <= state.highest:
            return None
        return Register("running", op.pid, op.token, op.until, max(state.highest, op.token))
    if op.verb == "extend":
        return replace(state, until=op.until) if held else None
    if op.verb == "keep":
        return state if held else None
    if op.verb == "leave":
        if not held:
            return None
        return replace(state, phase="done") if op.after == "failed" else _waiting(state)
    if op.verb == "end":
        return replace(state, phase="done") if held else None
    if op.verb == "revoke":
        if state.phase not in ("waiting", "running"):
            return None
        return replace(state, phase="done") if op.after == "failed" else _waiting(state)
    if op.verb == "cancel":
        if op.told in ("requested", "already_requested"):
            return state if state.phase == "running" else None
        if op.told == "cancelled":
            return replace(state, phase="done") if waits else None
        return replace(state, phase="done") if waits else state
    return state


# The search


def order(ops: list[Op], fated: bool, nodes: int = NODES) -> bool | None:
    """Whether there is an order; None where the search was given up. ``fated``: the task may
    end while nobody holds it."""
    ops = sorted(ops, key=lambda op: (op.began, op.call))
    before = [
        sum(
            1 << m
            for m, other in enumerate(ops)
            if m != n
            and not other.optional
            and (other.ended < op.began or (other.actor == op.actor and other.call < op.call))
        )
        for n, op in enumerate(ops)
    ]
    needed = sum(1 << n for n, op in enumerate(ops) if not op.optional)
    seen: set[tuple[int, Register]] = set()
    todo: list[tuple[int, Register]] = [(0, Register())]
    while todo:
        done, state = todo.pop()
        if done & needed == needed:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if len(seen) > nodes:
            return None
        for n in reversed(range(len(ops))):
            if done >> n & 1 or before[n] & ~done:
                continue
            after = _apply(state, ops[n], fated)
            if after is not None:
                todo.append((done | 1 << n, after))
    return False

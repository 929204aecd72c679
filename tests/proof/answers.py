"""What clients were told, against what the witness saw: every ok has its rows, no other
member of a batch has one, and what was granted was handed out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .history import FAIL, Call, Change, Fault, History
from .replay import GRANTERS

ALWAYS = {"57014"}  # the simulator's patience, not the product's
LEASED = {"SK001", "SK002", "SK003", "SK004", "SK005", "SK006"}
REFUSALS: dict[str, set[str]] = {
    "create_task": {"SK008"},
    "create_tasks": {"SK008"},
    "cancel_task": {"SK001"},
    "resubmit_task": {"SK001", "SK006", "22023", "SK012"},
    "fan_out": LEASED | {"SK008"},
    "acquire_lease": {"SK001", "SK002", "SK009", "SK010"},
    "revoke_lease": {"SK001", "SK002", "SK006", "SK007", "55P03"},
    "renew_lease": LEASED | {"55P03"},
    "append_stream": LEASED | {"SK007"},
    "wait_for_task": LEASED | {"22023"},
    "read_stream": {"SK001"},
    "pause_schedule": {"SK015"},
    "resume_schedule": {"SK015"},
    "renew_lock": {"SK003", "SK004", "SK005"},
    "release_lock": {"SK003", "SK004", "SK005"},
    "assert_lock": {"SK003", "SK004", "SK005"},
    "write": {"SK013"},
}
NEVER_REFUSED = {
    "reserve_task",
    "reserve_tasks",
    "settle_and_reserve",
    "exchange_leases",
    "exchange_work",
    "sweep",
    "extend_leases",
    "terminate_tasks",
    "settle_tasks",
    "try_lock",
    "due_schedules",
    "fire_schedules",
    "put_schedule",
    "pause_topic",
    "resume_topic",
    "raise_token_epoch",
}
CHANGING = {
    "extend_lease",
    "renew_lease",
    "release_lease",
    "terminate_task",
    "fail_task",
    "retry_task",
    "snooze_task",
    "wait_for_task",
    "report_progress",
    "save_checkpoint",
    "acquire_lease",
    "revoke_lease",
}
# They pass an open fence; so nothing that only a fence holds may keep them waiting.
PASSING = {
    "extend_lease",
    "report_progress",
    "save_checkpoint",
    "record_step",
    "append_stream",
    "assert_lease",
    "cancel_task",
    "extend_leases",
    "fan_out",
}


def check(history: History) -> Iterator[Fault]:
    by_call: dict[int, list[Change]] = defaultdict(list)
    for change in history.changes:
        by_call[change.call or 0].append(change)
    for call in history.calls:
        made = by_call.get(call.number, [])
        for rule, about, message in (*refusal(call), *answer(call, made)):
            yield Fault(rule, about, message, made[0].pos if made else 0)
    yield from waits(history)


def refusal(call: Call) -> Iterator[tuple[str, str, str]]:
    if call.outcome != FAIL or call.sqlstate in ALWAYS:
        return
    allowed = set() if call.function in NEVER_REFUSED else REFUSALS.get(call.function, LEASED)
    if call.sqlstate not in allowed:
        yield "P2", _about(call), f"{call.function} was refused: {call.sqlstate} {call.detail}"


def answer(call: Call, made: list[Change]) -> Iterator[tuple[str, str, str]]:
    if not call.happened:
        return
    tasks = {c.id for c in made if c.source in ("tasks", "finished_tasks")}
    if call.function in CHANGING and call.arguments["task_id"] not in tasks:
        yield "P3", _about(call), f"{call.function} was accepted, and has changed nothing"
    if call.function in GRANTERS:
        yield from grants(call, made)
    if call.function in ("create_task", "create_tasks", "fan_out"):
        for row in call.rows:
            if row["created"] and row["task_id"] not in tasks:
                yield "I19", f"task {row['task_id']}", f"{call.function}: it was never made"
    if call.function in ("extend_leases", "terminate_tasks", "settle_tasks"):
        yield from members(call, made, tasks)
    if call.function == "try_lock":
        took = [c.row["token"] for c in made if c.source == "locks"]
        if took != [row["token"] for row in call.rows]:
            yield "P3", _about(call), f"told {call.rows}, but took {took}"


def grants(call: Call, made: list[Change]) -> Iterator[tuple[str, str, str]]:
    granted = {
        (c.id, c.new["token"])
        for c in made
        if c.source == "tasks"
        and c.old
        and c.new
        and c.new["token"] != c.old["token"]
        and c.new["token"] is not None
    }
    given = [row.get("lease") or row for row in call.rows]
    told = {(row["task_id"], row["token"]) for row in given if row.get("token") is not None}
    for task, token in granted ^ told:
        what = "handed out but not granted" if (task, token) in told else "granted to nobody"
        yield "P3", f"task {task}", f"{call.function}: token {token} was {what}"


def members(call: Call, made: list[Change], tasks: set[str]) -> Iterator[tuple[str, str, str]]:
    accepted = {row["task_id"] for row in call.rows if row["verdict"] == "ok"}
    refused = {row["task_id"] for row in call.rows} - accepted
    if len(call.rows) != len(call.arguments["task_ids"]):
        yield "P3", _about(call), f"{len(call.rows)} verdicts for its members"
    for task in accepted - tasks:
        yield "P3", f"task {task}", f"{call.function}: accepted, and nothing changed"
    # A child may have been cancelled by the end of another member.
    plain = {c.id for c in made if c.source == "tasks" and not c.row["parent"]}
    for task in refused & plain:
        yield "I9", f"task {task}", f"{call.function}: refused, and changed"


def waits(history: History) -> Iterator[Fault]:
    """Heartbeats, progress and cancel requests pass an open fence; and no two calls that
    hold no transaction open ever wait for one another."""
    calls = {call.number: call for call in history.calls}
    for waiter, number in history.waits:
        call = calls[waiter]
        held = {
            c.function
            for c in history.calls
            if c.transaction and c.transaction.number == number and c.began <= call.began
        }
        own = {
            c.function
            for c in history.calls
            if c.transaction is call.transaction and c.transaction and c.number < waiter
        }
        if call.function in PASSING and held <= {"assert_lease", "write"} and not own:
            yield Fault("W1", _about(call), f"{call.function} waited for a fence")
    for ring in history.deadlocks:
        if all(calls[number].transaction is None for number in ring):
            names = ", ".join(calls[number].function for number in ring)
            yield Fault("W2", _about(calls[ring[0]]), f"a deadlock of {names}")


def _about(call: Call) -> str:
    said = call.arguments
    if said.get("task_id"):
        return f"task {said['task_id']}"
    return f"lock {said['key']}" if "key" in said else f"call {call.number}"

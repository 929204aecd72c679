"""Fences, locks, streams, steps, schedules, and what must be over after the drain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .history import Call, Change, Fault, History
from .replay import microseconds


def check(history: History) -> Iterator[Fault]:
    calls = {call.number: call for call in history.calls}
    yield from fences(history)
    yield from locks(history, calls)
    yield from streams(history, calls)
    yield from steps(history)
    yield from schedules(history, calls)
    for left in history.unfinished:
        yield Fault("I20", left, "it was not over after the drain")


def fences(history: History) -> Iterator[Fault]:
    """From the first write under a fence to the end of its transaction nobody else ends
    that lease; and at the first write it was the current one, or had been until the writing
    transaction itself ended it or took the next."""
    last = {c.xid: c.pos for c in history.changes}
    first: dict[tuple[str, str, str, int], Change] = {}
    for change in history.changes:
        if change.source == "note" and change.row["what"] in ("lease", "lock"):
            row = change.row
            first.setdefault((change.xid, row["what"], row["id"], row["token"]), change)
    for (xid, what, name, token), note in first.items():
        source = "tasks" if what == "lease" else "locks"
        current: list[int | None] = [None]
        for change in history.changes:
            if change.source != source or change.id != name:
                continue
            if change.pos < note.pos:
                left = change.new["token"] if change.new else None
                current = [*current, left] if change.xid == xid else [left]
            elif change.pos < last[xid] and change.xid != xid and not _keeps(change, token):
                yield Fault(
                    "F1", f"{what} {name}", "taken over while its fence was open", change.pos
                )
        if token not in current:
            message = f"written under {token}, but {current[-1]} is current"
            yield Fault("F2", f"{what} {name}", message, note.pos)


def _keeps(change: Change, token: int) -> bool:
    old, new = change.old, change.new
    if old is None or old["token"] != token:
        return True
    if new is None or new["token"] != token:
        return False
    return change.source == "tasks" or new["until"] >= old["until"] or new["until"] > change.clock


def locks(history: History, calls: dict[int, Call]) -> Iterator[Fault]:
    highest: dict[str, int] = {}
    for change in history.changes:
        if change.source != "locks":
            continue
        call, old, new = calls.get(change.call or 0), change.old, change.new
        for rule, message in _lock(change, call):
            yield Fault(rule, f"lock {change.id}", message, change.pos)
        if new and (old is None or new["token"] != old["token"]):
            if new["token"] <= highest.get(change.id, 0):
                yield Fault("I2", f"lock {change.id}", "its token did not rise", change.pos)
            highest[change.id] = new["token"]


def _lock(change: Change, call: Call | None) -> Iterator[tuple[str, str]]:
    old, new = change.old, change.new
    if call is None:
        return
    if new is None:
        yield "I2", "its row is gone"
        return
    said = call.arguments
    if old is None or new["token"] != old["token"]:
        if old is not None and old["until"] > change.clock:
            yield "I1", "taken while it was live"
        if call.function != "try_lock" or new["owner"] != said["owner"]:
            yield "I1", f"{call.function} took it"
        return
    if (old["owner"], old["token"]) != (said.get("owner"), said.get("token")):
        yield "I3", f"{call.function} without the current token"
    if old["until"] <= change.clock:
        yield "I4", f"{call.function} when it was over"
    want = change.clock + (microseconds(said["ttl"]) if call.function == "renew_lock" else 0)
    if new["until"] != want:
        yield "I4", f"{call.function} moved its end to {new['until']}, not to {want}"


def streams(history: History, calls: dict[int, Call]) -> Iterator[Fault]:
    items: dict[str, list[Change]] = defaultdict(list)
    token: dict[str, object] = {}
    written: dict[int, list[Change]] = defaultdict(list)
    for change in history.changes:
        if change.source == "tasks":
            token[change.id] = change.new["token"] if change.new else None
        elif change.source == "stream_items":
            about = f"task {change.id}"
            items[change.id].append(change)
            written[change.call or 0].append(change)
            if change.row["seq"] != len(items[change.id]):
                yield Fault("S1", about, f"item {change.row['seq']} is not next", change.pos)
            if change.row["token"] != token.get(change.id):
                yield Fault("I3", about, "an item without the current lease", change.pos)
    for call in history.calls:
        if call.happened and call.function == "append_stream":
            made, said = written[call.number], call.rows[0]
            about = f"task {call.arguments['task_id']}"
            if len(made) != said["accepted"]:
                yield Fault("P3", about, f"{said['accepted']} items accepted, {len(made)} written")
            after = call.arguments["after"]
            if made and after is not None and made[0].row["seq"] != after + 1:
                yield Fault("S2", about, f"appended after {after} at {made[0].row['seq']}")
        elif call.happened and call.function == "read_stream":
            about, place = f"task {call.arguments['task_id']}", call.arguments["after"]
            known = [c.row["item"] for c in items[call.arguments["task_id"]]]
            for row in call.rows:
                place += 1
                if row["seq"] != place or place > len(known) or row["item"] != known[place - 1]:
                    yield Fault("S3", about, f"read {row}, out of order or never written")


def steps(history: History) -> Iterator[Fault]:
    seen: set[tuple[str, str]] = set()
    token: dict[str, object] = {}
    for change in history.changes:
        if change.source == "tasks":
            token[change.id] = change.new["token"] if change.new else None
        elif change.source == "task_steps":
            key = (change.id, change.row["name"])
            if change.old is not None or key in seen:
                yield Fault("S4", f"task {change.id}", "a step was recorded twice", change.pos)
            if change.row["token"] != token.get(change.id):
                yield Fault(
                    "I3", f"task {change.id}", "a step without the current lease", change.pos
                )
            seen.add(key)


def schedules(history: History, calls: dict[int, Call]) -> Iterator[Fault]:
    """I13: a tick becomes one task, and each such task has its tick's row."""
    ticks: set[tuple[object, ...]] = set()
    tasks: dict[str, str] = {}
    rows = {c.id for c in history.changes if c.source == "schedule_fires"}
    for change in history.changes:
        if change.source == "schedule_fires":
            tick = tuple(change.row[k] for k in ("name", "generation", "at", "extra"))
            if tick in ticks:
                yield Fault("I13", f"fire {change.id}", f"{tick} fired twice", change.pos)
            ticks.add(tick)
        elif change.source == "tasks" and change.old is None and change.row["fire"]:
            fire = change.row["fire"]
            call = calls.get(change.call or 0)
            if call and call.function == "resubmit_task":
                continue
            if fire in tasks:
                yield Fault("I13", f"task {change.id}", f"{fire} became two tasks", change.pos)
            if change.id not in rows:
                yield Fault(
                    "I13", f"task {change.id}", "a task of a tick without its row", change.pos
                )
            tasks.setdefault(fire, change.id)

"""What stands beside the tasks: guarded writes, locks, steps, streams, joins.
F1, F2, I1 to I4 of locks, I14, I15, S1, S4."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.faults.chaos.judging.replay import SKEW_US
from tests.faults.chaos.judging.rules import Broken, Fault
from tests.faults.chaos.words import Change
from tests.proof import joins


def check(act: str, of_task: dict[str, list[Change]], changes: Sequence[Change]) -> Iterator[Fault]:
    of_source: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        if change.source not in ("tasks", "finished_tasks"):
            of_source[change.source].append(change)
    yield from guarded(act, of_task, of_source["guarded"])
    yield from locks(act, of_source["locks"])
    yield from steps(act, of_task, of_source["task_steps"])
    yield from streams(act, of_task, of_source["stream_items"])
    for fault in joins.check_changes(changes):  # type: ignore[arg-type]
        yield Fault(fault.rule, act, fault.about.split()[-1], fault.message, fault.pos)


def _token_before(changes: Sequence[Change], pos: int) -> int | None:
    """The token of the lease that a task had before a position."""
    token = None
    for change in changes:
        if change.pos >= pos:
            break
        token = change.new["token"] if change.new else None
    return token


# Writes of handlers in fenced transactions


def guarded(
    act: str, of_task: dict[str, list[Change]], writes: Sequence[Change]
) -> Iterator[Fault]:
    """A guarded write carries the current token, and until its transaction was over nobody
    else ended that lease."""
    first: dict[tuple[str, str], Change] = {}
    last: dict[tuple[str, str], Change] = {}
    for write in writes:
        first.setdefault((write.xid, write.id), write)
        last[write.xid, write.id] = write
    for (xid, task), write in first.items():
        token, changes = write.row["token"], of_task.get(task, [])
        found = _token_before(changes, write.pos)
        if found != token:
            message = f"written under token {token}, but {found} is current"
            yield Fault("F2", act, task, message, write.pos)
        for change in changes:
            if (
                write.pos < change.pos < _end(changes, xid, last[xid, task])
                and change.xid != xid
                and (change.new is None or change.new["token"] != token)
            ):
                message = "taken over while its fence was open"
                yield Fault("F1", act, task, message, change.pos)


def _end(changes: Sequence[Change], xid: str, write: Change) -> int:
    return max((c.pos for c in changes if c.xid == xid), default=0) or write.pos


# Locks


def locks(act: str, changes: Sequence[Change]) -> Iterator[Fault]:
    highest: dict[str, int] = {}
    for change in changes:
        for rule, message in _lock(change):
            yield Fault(rule, act, change.id, message, change.pos)
        new, old = change.new, change.old
        if new and (old is None or new["token"] != old["token"]):
            if new["token"] <= highest.get(change.id, 0):
                yield Fault("I2", act, change.id, "the token of a lock did not rise", change.pos)
            highest[change.id] = new["token"]


def _lock(change: Change) -> Broken:
    old, new = change.old, change.new
    if new is None:
        yield "I2", "the row of a lock is gone"
    elif old is None or new["token"] != old["token"]:
        if old is not None and old["until"] > new["now"]:
            yield "I1", "a lock was taken while it was live"
        if change.function != "try_lock":
            yield "I1", f"{change.function or 'somebody'} took a lock"
    elif change.function not in ("renew_lock", "release_lock"):
        yield "I3", f"{change.function or 'somebody'} changed a lock"
    elif old["until"] <= change.began - SKEW_US:
        yield "I4", f"{change.function} of a lock that was over"
    elif new["owner"] != old["owner"]:
        yield "I1", "a lock passed on under its token"


# Steps, streams


def steps(act: str, of_task: dict[str, list[Change]], changes: Sequence[Change]) -> Iterator[Fault]:
    seen: set[tuple[str, str]] = set()
    for change in changes:
        key = (change.id, change.row["name"])
        if change.new is None:
            continue
        if change.old is not None or key in seen:
            yield Fault("S4", act, change.id, "a step was recorded twice", change.pos)
        seen.add(key)
        yield from _held(act, of_task, change, "a step")


def streams(
    act: str, of_task: dict[str, list[Change]], changes: Sequence[Change]
) -> Iterator[Fault]:
    last: dict[str, int] = defaultdict(int)
    for change in changes:
        if change.new is None:
            continue
        last[change.id] += 1
        if change.row["seq"] != last[change.id]:
            message = f"item {change.row['seq']} is not next"
            yield Fault("S1", act, change.id, message, change.pos)
        yield from _held(act, of_task, change, "an item")


def _held(act: str, of_task: dict[str, list[Change]], change: Change, what: str) -> Iterator[Fault]:
    found = _token_before(of_task.get(change.id, []), change.pos)
    if found != change.row["token"]:
        message = f"{what} under token {change.row['token']}, but {found} is current"
        yield Fault("I3", act, change.id, message, change.pos)

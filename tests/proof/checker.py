"""Decides whether a history kept the rules. Pure: no database, no clock, no chance.

Two witnesses are compared. The trigger saw every row change, in the transaction that made
it; the clients say what they called and what they were told. First the changes must make
sense by themselves, task by task, as moves of a model; then each answer must fit to them;
and last, without any trust in the trigger, the answers alone must have an order in which a
register with one holder could have given them (linear.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from . import answers, joins, linear, replay, rest
from .history import Call, Change, Fault, History


def check(history: History) -> list[Fault]:
    """Every rule that did not hold, in the order of the changes."""
    found = [
        *labels(history),
        *replay.check(history),
        *answers.check(history),
        *joins.check(history),
        *rest.check(history),
        *linear.check(history),
    ]
    return sorted(found, key=lambda fault: fault.pos or 10**9)


def labels(history: History) -> Iterator[Fault]:
    """Nobody changes a row but a call, and none that was refused or rolled back."""
    calls = {call.number: call for call in history.calls}
    for change in history.changes:
        call = calls.get(change.call or 0)
        if call is None:
            yield Fault("P1", _about(change), "a change that no call made", change.pos)
        elif call.undone:
            yield Fault(
                "I9",
                _about(change),
                f"{call.function} was refused or rolled back, and has changed this",
                change.pos,
            )


def _about(change: Change) -> str:
    return f"{change.source} {change.row.get('id')}"


def story(history: History, about: str, last: int = 10**9) -> list[str]:
    """What happened to a task, a lock or a join, as short as it goes: the calls that concern
    it, in order, and under each the rows that it changed, up to the change ``last``."""
    name = about.split()[-1]
    shown = {change.call for change in history.changes if name in _names(change.row)}
    lines: dict[int, list[str]] = defaultdict(list)
    for call in history.calls:
        if call.number in shown or name in str(call.arguments):
            lines[call.number].append(_told(call))
    ends = 10**9
    for change in history.changes:
        if change.pos == last:
            ends = change.call or ends
        if name in _names(change.row) and change.pos <= last:
            lines[change.call or 0].append(
                f"    | {change.clock / 1e6:.6f} s: {change.source}"
                f" {_difference(change.old, change.new)}"
            )
    return [line for number in sorted(lines) if number <= ends for line in lines[number]]


def _told(call: Call) -> str:
    held = f" in transaction {call.transaction.number}" if call.transaction else ""
    return (
        f"{call.began:3}-{call.settled:<3} {call.actor:9} {call.function}"
        f"({_short(call.arguments)}){held}: {call.sqlstate or call.outcome}"
    )


def _names(row: Mapping[str, object]) -> set[str]:
    return {str(row.get("id")), str(row.get("parent")), str(row.get("fire"))}


def _short(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={str(value)[:60]}" for name, value in arguments.items())


def _difference(old: Mapping[str, object] | None, new: Mapping[str, object] | None) -> str:
    if new is None:
        return "deleted"
    if old is None:
        return "inserted " + _short({k: v for k, v in new.items() if v not in (None, 0, False)})
    return ", ".join(f"{k} {old[k]} -> {v}" for k, v in new.items() if old.get(k) != v)


def shortest(history: History, faults: Iterable[Fault]) -> list[str]:
    """The shortest story among the faults."""
    stories = (story(history, fault.about, fault.pos or 10**9) for fault in faults)
    return min(stories, key=len, default=[])

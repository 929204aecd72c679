"""What happened to one task, in as few lines as it takes: the calls that concern it, and the
rows that changed, by the clock of the act."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.faults.chaos.judging.reading import uuid
from tests.faults.chaos.words import Act, Call, Change

QUIET = ("ver", "now")
MOST = 120
# What a caller did after the fault shows nothing of it.
AFTERWARDS_US = 500_000


def tell(act: Act, task: str, last: int = 0) -> list[str]:
    """The story up to the change ``last``; 0: all of it."""
    began_us = act.began // 1000 + act.offset_us
    changes = [change for change in act.changes if change.id == task]
    ends = next((c.at for c in changes if c.pos == last), None)
    lines = [(c.at, f"    | {_told(c)}") for c in changes if not last or c.pos <= last]
    for call in act.calls:
        at = call.began // 1000 + act.offset_us
        if (ends is None or at <= ends + AFTERWARDS_US) and _concerns(call, task):
            lines.append((at, _called(act, call, task)))
    lines.sort(key=lambda line: line[0])
    told = [f"{(at - began_us) / 1e6:9.4f} s {text}" for at, text in lines]
    if len(told) > MOST:
        told[MOST // 2 : -MOST // 2] = [f"    … {len(told) - MOST} lines …"]
    return told


def _concerns(call: Call, task: str) -> bool:
    plain = task.replace("-", "")
    return any(
        task in text or plain in text
        for text in (str(value) for value in call.arguments.values() if value)
    ) or any(uuid(str(row.get("task_id"))) == task for row in call.rows)


def _called(act: Act, call: Call, task: str) -> str:
    ended = "" if call.ended is None else f" +{(call.ended - call.began) / 1e9:.4f} s"
    held = f" in transaction {call.transaction}" if call.transaction is not None else ""
    said = ", ".join(f"{n}={_short(v)}" for n, v in call.arguments.items() if v is not None)
    return f"{call.process}{ended} {call.function}({said}){held}: {_answer(call, task)}"


def _answer(call: Call, task: str) -> str:
    if call.sqlstate or call.outcome != "ok":
        return f"{call.outcome} {call.sqlstate} {call.message[:80]}".strip()
    for row in call.rows:
        if uuid(str(row.get("task_id"))) == task:
            shown = ("verdict", "token", "status", "created", "record_ver", "lease_expires_at")
            return ", ".join(f"{n}={row[n]}" for n in shown if row.get(n) is not None) or "ok"
    row = call.rows[0] if len(call.rows) == 1 else {}
    return ", ".join(f"{n}={_short(v)}" for n, v in list(row.items())[:4]) or "ok"


def _told(change: Change) -> str:
    difference = ", ".join(_differences(change.old, change.new))
    return (
        f"change {change.pos} by {change.function or '?'} (xid {change.xid}): "
        f"{change.source} {difference}"
    )


def _differences(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[str]:
    if new is None:
        yield "deleted"
    elif old is None:
        yield "inserted"
        for name in ("status", "token", "pid", "attempt", "code", "result"):
            if new.get(name) is not None:
                yield f"{name} {_short(new[name])}"
    else:
        for name, value in new.items():
            if old.get(name) != value and name not in QUIET:
                yield f"{name} {_short(old.get(name))} -> {_short(value)}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."

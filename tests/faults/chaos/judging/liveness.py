"""What the drain found: I20 to I24."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import Act

# A fault that lasts is told of once in a while, not at each try.
LOG_LINES_PER_S = 10.0


def check(act: Act) -> Iterator[Fault]:
    name, after = act.name, act.after
    for row in after.stuck:
        message = f"nobody can ever take it: {row}"
        yield Fault("I20", name, str(row.get("task_id")), message)
    for row in after.slots:
        yield Fault(
            "I21", name, str(row.get("task_id") or row.get("topic") or ""), f"a slot is left: {row}"
        )
    for left in after.left:
        yield Fault("I21", name, "", f"{left.what} is left: {left.about}")
    yield from _workers(act)
    for who, most in after.connections_max.items():
        bound = after.connections_bound.get(who)
        if bound is not None and most > bound:
            yield Fault("I24", name, "", f"{who} had {most} connections, of {bound}")
    for who, rate in after.log_lines_per_s.items():
        if rate > LOG_LINES_PER_S:
            yield Fault("I24", name, "", f"{who} wrote {rate:.1f} log lines a second")


def _workers(act: Act) -> Iterator[Fault]:
    last = {}
    for life in act.after.lives:
        if life.ended is not None and not life.asked:
            message = f"{life.worker} ended by itself, with code {life.code}"
            yield Fault("I22", act.name, "", message)
        last[life.worker.partition(".")[0]] = life
    for life in last.values():
        if life.reserved_after_ns is None:
            message = f"{life.worker} ({life.variant}) did not reserve again after the faults"
            yield Fault("I22", act.name, "", message)

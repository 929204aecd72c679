"""Total-queue accounting: what was asked for, acknowledged, started and ended (I7, I8, I19)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.chaos.judging.reading import Reading, attempted
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import FAIL, INFO, OK, Change

COUNTED = (
    "attempted", "acknowledged", "started", "ended", "lost", "unexpected", "recovered",
    "duplicated_starts", "duplicated_ends", "refused_stale_writes", "infos",
)  # fmt: skip
STALE = {"SK002", "SK003", "SK004", "SK005", "SK006", "SK011", "SK013"}
OWNERS = {
    "extend", "renew", "progress", "checkpoint", "step", "append", "assert", "release", "snooze",
    "retry", "wait", "terminate", "fail",
}  # fmt: skip


@dataclass
class Queue:
    """What became of the tasks of an act."""

    counts: Counter[str] = field(default_factory=Counter)
    acknowledged: set[str] = field(default_factory=set)


def account(reading: Reading, of_task: dict[str, list[Change]]) -> Queue:
    queue, counts = Queue(), Counter(dict.fromkeys(COUNTED, 0))
    for name in ("create_task", "create_tasks", "fan_out"):
        for call in reading.calls.get(name, ()):
            counts["attempted"] += len(attempted(call)) + (name == "fan_out")
    for name in ("fire_schedules", "trigger_schedule", "resubmit_task"):
        for call in reading.calls.get(name, ()):
            tasks = sum(len(row.get("task_ids") or [1]) for row in call.rows)
            counts["attempted"] += tasks
    counts["infos"] = sum(state == INFO for state in reading.states.values())
    for task, words in reading.of_task.items():
        makes = [w for w in words if w.verb == "make" and w.status != "existing"]
        if any(w.ok for w in makes):
            queue.acknowledged.add(task)
        elif makes and task in of_task and all(w.state != OK for w in makes):
            counts["recovered"] += 1
        counts["refused_stale_writes"] += sum(
            w.verb in OWNERS and w.told in STALE and w.state != INFO for w in words
        )
    for task, changes in of_task.items():
        _count(counts, changes)
        told = any(w.verb == "make" and w.state != FAIL for w in reading.of_task.get(task, ()))
        if not told and changes[0].function in ("create_task", "create_tasks"):
            counts["recovered"] += 1  # an enqueue without an id that was not answered
    counts["acknowledged"] = len(queue.acknowledged)
    queue.counts = counts
    return queue


def _count(counts: Counter[str], changes: list[Change]) -> None:
    grants = sum(
        1 for c in changes
        if c.source == "tasks" and c.old and c.new
        and c.old["token"] is None and c.new["token"] is not None
    )  # fmt: skip
    finals = sum(1 for c in changes if c.source == "finished_tasks" and c.old is None)
    counts["started"] += grants > 0
    counts["duplicated_starts"] += max(grants - 1, 0)
    counts["ended"] += finals > 0
    counts["duplicated_ends"] += max(finals - 1, 0)


def check(
    reading: Reading, queue: Queue, of_task: dict[str, list[Change]], gone: set[str]
) -> Iterator[Fault]:
    """What was acknowledged is there after the drain, as the tables say, and is over.

    ``gone``: tasks whose making an asynchronous failover has lost.
    """
    act, after = reading.act.name, reading.act.after
    lost: set[str] = set()
    if after.present:
        lost |= queue.acknowledged - gone - set(after.present) - set(after.purged)
    for task in lost:
        yield Fault("I19", act, task, "acknowledged, and not in the tables after the drain")
    for task in after.present:
        if task not in of_task:
            yield Fault("P1", act, task, "it is in the tables, and the witness never saw it")
    for row in after.unfinished:
        task = str(row.get("task_id"))
        rule = "I19" if task in queue.acknowledged else "I20"
        yield Fault(rule, act, task, f"it was {row.get('status')} after the drain: {row}")
    open_still = {str(row.get("task_id")) for row in after.unfinished}
    for task, changes in of_task.items() if after.present else ():
        if changes[-1].source != "finished_tasks" and task not in open_still:
            pos = changes[-1].pos
            yield Fault("P1", act, task, "it was over after the drain, and no end was seen", pos)
    queue.counts["lost"] = len(lost) + sum(
        task in queue.acknowledged and task not in gone and task not in lost
        for task in queue.acknowledged - of_task.keys()
    )

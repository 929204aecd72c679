"""What failovers lost: I2, I3 and I19 across a switch.

After an asynchronous failover only what was committed beyond the point of the switch may be
missing; after a synchronous one nothing that was acknowledged. In both, tokens rise also
above those that were granted on the lost tail alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.faults.chaos.accounting import contradictions
from tests.faults.chaos.judging.answers import SILENT, Seen
from tests.faults.chaos.judging.reading import Reading
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import Act, Change, Loss


def lost_changes(act: Act) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = defaultdict(list)
    for loss in act.losses:
        for change in loss.lost_changes:
            if change.source in ("tasks", "finished_tasks"):
                found[change.id].append(change)
    return dict(found)


def grants(changes: list[Change]) -> Iterator[Change]:
    for change in changes:
        old, new = change.old, change.new
        if old and new and new["token"] is not None and new["token"] != old["token"]:
            yield change


def check(reading: Reading, of_task: dict[str, list[Change]]) -> Iterator[Fault]:
    act = reading.act
    for loss in act.losses:
        for message in contradictions(loss):
            yield Fault("F9", act.name, "", f"at the {loss.mode} failover {message}")
        yield from _tokens(act, loss, of_task)
        if loss.mode == "sync":
            yield from _acknowledged(reading, loss, of_task)


def _tokens(act: Act, loss: Loss, of_task: dict[str, list[Change]]) -> Iterator[Fault]:
    """The new timeline grants above what the lost tail had granted."""
    switched = loss.at // 1000 + act.offset_us
    tails: dict[str, list[Change]] = defaultdict(list)
    for change in loss.lost_changes:
        if change.source in ("tasks", "locks"):
            tails[change.id].append(change)
    taken = {c.row["token"] for changes in tails.values() for c in grants(changes)}
    for changes in of_task.values():
        for change in grants(changes):
            if change.row["token"] in taken:
                message = f"token {change.row['token']} was granted again after a failover"
                yield Fault("I2", act.name, change.id, message, change.pos)
    for task, tail in tails.items():
        highest = max((c.row["token"] for c in grants(tail)), default=0)
        for change in grants(of_task.get(task, [])):
            if change.at > switched and change.row["token"] <= highest:
                message = f"token {change.row['token']} after {highest}, which a failover lost"
                yield Fault("I2", act.name, task, message, change.pos)


def _acknowledged(
    reading: Reading, loss: Loss, of_task: dict[str, list[Change]]
) -> Iterator[Fault]:
    tails: dict[str, list[Change]] = defaultdict(list)
    for change in loss.lost_changes:
        if change.source in ("tasks", "finished_tasks"):
            tails[change.id].append(change)
    for task, tail in tails.items():
        seen, gone = Seen.of(of_task.get(task, [])), Seen.of(tail)
        for word in reading.of_task.get(task, ()):
            if not word.ok or word.verb in SILENT or word.status.startswith("already"):
                continue
            if seen.shown_by(word) is None and gone.shown_by(word) is not None:
                message = (
                    f"{word.call.function} was acknowledged, and lost at a synchronous failover"
                )
                yield Fault("I19", reading.act.name, task, message)


def forgotten(act: Act, of_task: dict[str, list[Change]]) -> set[str]:
    """Tasks of whose making an asynchronous failover left nothing."""
    return {
        task for task, changes in lost_changes(act).items()
        if task not in of_task and any(c.old is None and c.source == "tasks" for c in changes)
    }  # fmt: skip

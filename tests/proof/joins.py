"""Fan-outs: I14. A join fires once, when its policy says so, and counts each child once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from .history import Change, Fault, History, Image
from .replay import UNTIL_TOLD

ORDER = ("open", "decided", "closed")


def check(history: History) -> Iterator[Fault]:
    yield from check_changes(history.changes)


def check_changes(changes_of_all: Sequence[Change]) -> Iterator[Fault]:
    """The same of changes alone, whoever saw them."""
    children: dict[str, dict[str, list[Change]]] = defaultdict(lambda: defaultdict(list))
    tasks: dict[str, list[Change]] = defaultdict(list)
    joins: dict[str, list[Change]] = defaultdict(list)
    for change in changes_of_all:
        if change.source == "joins":
            joins[change.id].append(change)
        elif change.source in ("tasks", "finished_tasks"):
            if change.row.get("is_join"):
                tasks[change.id].append(change)
            if change.row.get("candidate") is not None:
                children[change.row["parent"]][change.id].append(change)
    for join, changes in joins.items():
        for rule, message, pos in _join(changes, children[join]):
            yield Fault(rule, f"join {join}", message, pos)
        yield from _fired(tasks[join], join, changes)
        limit = changes[0].row["max_running"]
        if limit is not None:
            yield from _room(join, children[join], limit)


def _join(
    changes: list[Change], children: dict[str, list[Change]]
) -> Iterator[tuple[str, str, int]]:
    ends = [c for of_child in children.values() for c in of_child if c.source == "finished_tasks"]
    for change in changes:
        old, new = change.old, change.row
        final = [c for c in ends if c.pos < change.pos]
        if new["done"] > len(final) or new["done"] > new["total"]:
            yield "I14", f"counts {new['done']} final of {len(final)}", change.pos
        if old is None:
            continue
        if ORDER.index(new["state"]) < ORDER.index(old["state"]) or new["done"] < old["done"]:
            yield "I14", "it went back", change.pos
        if old["state"] != "open" and new["outcome"] != old["outcome"]:
            yield "I14", "its outcome changed after it was decided", change.pos
        if old["state"] == "open" and new["state"] != "open":
            good = sum(c.row["status"] == "terminated" for c in final)
            if not _just(new, len(final), good, change.clock):
                yield "I14", f"{new['outcome']} with {good} of {len(final)} good", change.pos


def _just(join: Image, final: int, good: int, clock: int) -> bool:
    policy = join["policy"]
    total, needed = int(join["total"]), int(join["needed"])
    if join["outcome"] == "satisfied":
        return (
            final >= total
            if policy == "settled"
            else good >= 1
            if policy == "any"
            else good >= needed
        )
    if join["outcome"] == "unmet":
        if policy == "any":
            return final > good or total == 0
        return policy != "settled" and total - (final - good) < needed
    if join["outcome"] == "deadline":
        return join["deadline_at"] is not None and int(join["deadline_at"]) <= clock
    return str(join["outcome"]) == "cancelled"


def _fired(of_task: list[Change], join: str, changes: list[Change]) -> Iterator[Fault]:
    """The join's task ends or is ready only when it is decided; cancelled at any time."""
    decided = next((c.pos for c in changes if c.row["state"] != "open"), None)
    fires = 0
    for change in of_task:
        if change.source == "finished_tasks" and change.row["code"] != "cancelled":
            if decided is None or decided > change.pos:
                yield Fault("I14", f"join {join}", "it ended undecided", change.pos)
        elif (
            change.old
            and change.new
            and change.old["status"] == "snoozed"
            and change.old["run_at"] > UNTIL_TOLD
        ):
            fires += 1
            if decided is None or decided > change.pos or fires > 1:
                yield Fault("I14", f"join {join}", "it was woken undecided, or twice", change.pos)


def _room(join: str, children: dict[str, list[Change]], limit: int) -> Iterator[Fault]:
    going: set[str] = set()
    for change in sorted((c for of in children.values() for c in of), key=lambda c: c.pos):
        if change.source == "finished_tasks" or change.new is None:
            going.discard(change.id)
        elif change.new["status"] != "snoozed" or change.new["run_at"] < UNTIL_TOLD:
            going.add(change.id)
            if len(going) > limit:
                yield Fault("I15", f"join {join}", f"{len(going)} go, of {limit}", change.pos)

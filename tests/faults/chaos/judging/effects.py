"""What handlers did outside of the queue: E1, I8. How often two attempts were at the same
work at once shows that the faults bit; the fenced store never goes back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import Change, Effect


def overlaps(effects: Sequence[Effect]) -> int:
    """Of how many leases the handler was still seen at work after that of a newer one had
    begun."""
    starts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    lasts: dict[tuple[str, int], int] = {}
    for effect in effects:
        if effect.kind == "start":
            starts[effect.task].append((effect.token, effect.at))
        if effect.kind != "fenced":
            key = (effect.task, effect.token)
            lasts[key] = max(lasts.get(key, 0), effect.at)
    return sum(
        any(newer > token and at < last for newer, at in starts[task])
        for (task, token), last in lasts.items()
    )


def refused(effects: Sequence[Effect]) -> int:
    return sum(effect.kind == "refused" for effect in effects)


def check(
    act: str,
    effects: Sequence[Effect],
    of_task: dict[str, list[Change]],
    lost: Collection[tuple[str, int]],
) -> Iterator[Fault]:
    """``lost``: grants that only a primary has that is no more."""
    highest: dict[str, int] = {}
    for effect in effects:
        if effect.kind == "fenced":
            if effect.token < highest.get(effect.task, 0):
                message = f"a write of token {effect.token} after one of {highest[effect.task]}"
                yield Fault("E1", act, effect.task, message)
            highest[effect.task] = max(highest.get(effect.task, 0), effect.token)
    granted = {
        (task, change.new["token"])
        for task, changes in of_task.items()
        for change in changes
        if change.new is not None and change.new["token"] is not None
    }
    for task, token in {(e.task, e.token) for e in effects} - granted - set(lost):
        yield Fault("I8", act, task, f"a handler ran under token {token}, which was never granted")

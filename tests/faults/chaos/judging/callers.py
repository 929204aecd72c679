"""Each row that the witness saw change has a caller, who was told yes or nothing (P1, P3,
I3, I5, I8, I9, I17). What a statement does after its first move of a task follows from that
move; what sweeps do, any caller of theirs may have done."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from tests.faults.chaos.judging.reading import (
    CREATORS,
    ENDINGS,
    NEVER,
    SETTLERS,
    VERBS,
    Reading,
    Word,
    attempted,
)  # fmt: skip
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import FAIL, INFO, Change
from tests.proof.replay import SWEEPERS

Said = tuple[str, str, int]


class Open:
    """Calls that may have happened, and name no task: sweeps, and reserves that were not
    answered. Asked by function and instant."""

    def __init__(self, reading: Reading) -> None:
        self._lows: dict[str, list[int]] = {}
        self._highs: dict[str, list[int]] = {}
        self._unheard_lows: dict[str, list[int]] = {}
        self._reserves: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.creates: Counter[tuple[str, str]] = Counter()
        for function, calls in reading.calls.items():
            spans = sorted(reading.span(call) for call in calls if reading.state(call) != FAIL)
            self._lows[function] = [low for low, _ in spans]
            highest, highs = 0, []
            for _, high in spans:
                highest = max(highest, high)
                highs.append(highest)
            self._highs[function] = highs
            self._unheard_lows[function] = [low for low, high in spans if high == NEVER]
            for call in calls:
                if reading.state(call) == INFO:
                    self._unheard(reading, call, function)

    def _unheard(self, reading: Reading, call: Any, function: str) -> None:
        if "pid" in call.arguments:
            self._reserves[function, call.arguments["pid"]].append(reading.span(call)[0])
        for spec in attempted(call) if function in ("create_task", "create_tasks") else ():
            self.creates[wanted(spec.get("topic"), spec.get("data"))] += 1

    def any_at(self, change: Change) -> bool:
        """Whether some call of its function was going on when the change was made."""
        lows = self._lows.get(change.function, [])
        place = bisect_right(lows, change.at)
        return place > 0 and self._highs[change.function][place - 1] >= change.began

    def unheard_at(self, change: Change) -> bool:
        """Whether a call of its function that was not answered may have made it."""
        lows = self._unheard_lows.get(change.function)
        return bool(lows) and lows[0] <= change.at

    def spare(self, function: str, pid: str) -> list[int]:
        """When the reserves of a caller that were not answered began, in order."""
        return sorted(self._reserves.get((function, pid), ()))


def wanted(topic: Any, data: Any) -> tuple[str, str]:
    return str(topic), json.dumps(data, sort_keys=True)


def check(reading: Reading, of_task: dict[str, list[Change]]) -> Iterator[Fault]:
    act, calls, untold = reading.act.name, Open(reading), list[Change]()
    for task, changes in of_task.items():
        words = reading.of_task.get(task, [])
        for rule, message, pos in explained(changes, words, calls, untold):
            yield Fault(rule, act, task, message, pos)
    for change in granted_to_nobody(untold, calls):
        message = f"token {change.row['token']} was granted to nobody"
        yield Fault("P3", act, change.id, message, change.pos)


def explained(
    changes: list[Change], words: list[Word], calls: Open, untold: list[Change]
) -> Iterator[Said]:
    """``untold`` gets the grants of which nobody was told."""
    last: tuple[str, bool] = ("", False)
    heard = [word for word in words if word.ok]
    unheard = [word for word in words if word.open]
    for change in changes:
        if change.source != "tasks":
            continue
        # What a statement does after its first move of a task follows from that.
        good = last == (change.xid, True) or _explained(change, heard, unheard, calls)
        if _is_grant(change) and not _told_of(change, heard, unheard):
            untold.append(change)
        last = (change.xid, good)
        if not good:
            yield _unexplained(change, words)


def _explained(change: Change, heard: list[Word], unheard: list[Word], calls: Open) -> bool:
    old, new, function = change.old, change.new, change.function
    if old is None:
        return _made(change, heard, unheard, calls)
    if _is_grant(change):
        return True  # granted_to_nobody() looks at them all
    if function in ("revoke_lease", "cancel_task"):
        # An end by a cancel reaches what stands below, the join, and who waits for it.
        related = old.get("parent") or old.get("is_join") or old.get("waits_for")
        return _operated(change, heard, unheard) or (bool(related) and calls.any_at(change))
    if old["status"] == "running":
        if new is not None and new["cancel"] != old["cancel"]:
            return bool(old.get("parent")) and calls.any_at(change)
        if function in VERBS or function in SETTLERS:
            if any(_fits(w, change) for w in heard):
                return True
            if any(_may_fit(w, change) for w in unheard):
                return True
        return function == "acquire_lease" or (_over(change) and calls.any_at(change))
    return calls.any_at(change)


def _over(change: Change) -> bool:
    """Whether it is what anybody's sweep does: a lease is taken back whose time is over."""
    old, new = change.old, change.new
    assert old is not None
    return (
        change.function in SWEEPERS
        and new is not None
        and new["status"] == "starting"
        and bool(old["until"] <= new["now"])
    )


def _is_grant(change: Change) -> bool:
    old, new = change.old, change.new
    return bool(old and new and old["status"] == "starting" and new["status"] == "running")


def _told_of(change: Change, heard: list[Word], unheard: list[Word]) -> bool:
    new = change.row
    if change.function == "acquire_lease" and any(
        w.verb == "acquire" and w.pid == new["pid"] and w.low <= change.at for w in unheard
    ):
        return True
    return any(
        w.verb == "grant"
        and w.token == new["token"]
        and w.call.function == change.function
        and w.state != FAIL
        for w in (*heard, *unheard)
    )


def granted_to_nobody(untold: list[Change], calls: Open) -> Iterator[Change]:
    """A reserve that was not answered explains the grants of one transaction to its caller,
    later than it began."""
    spare: dict[tuple[str, str], list[int]] = {}
    taken: set[tuple[str, str]] = set()
    for change in sorted(untold, key=lambda change: change.pos):
        who = (change.function, change.row["pid"])
        if (change.xid, who[1]) in taken:
            continue
        left = spare.setdefault(who, calls.spare(*who))
        if left and left[0] <= change.at:
            left.pop(0)
            taken.add((change.xid, who[1]))
        else:
            yield change


def _made(change: Change, heard: list[Word], unheard: list[Word], calls: Open) -> bool:
    function = change.function
    if any(w.verb == "make" and w.call.function == function for w in (*heard, *unheard)):
        return True
    if function in ("create_task", "create_tasks"):
        row = change.row
        key = wanted(row["topic"], row["data"])
        if row.get("aside"):
            return any(topic == row["topic"] for topic, _ in calls.creates)
        return calls.creates[key] > 0
    if function == "fan_out" and change.row.get("parent") and not change.row.get("is_join"):
        return calls.any_at(change)  # a candidate: its join is asked after
    return function in CREATORS and calls.unheard_at(change)


def _operated(change: Change, heard: list[Word], unheard: list[Word]) -> bool:
    verb = VERBS[change.function]
    old, new = change.old, change.new
    assert old is not None
    for word in heard if verb == "revoke" else ():
        if word.verb == verb and word.ver == old["ver"]:
            return True
    if verb == "cancel":
        ver = new["ver"] if new is not None else old["ver"] + 1
        if any(w.verb == verb and w.ver == ver for w in heard):
            return True
    return any(
        w.verb == verb and (verb != "revoke" or w.ver == old["ver"]) and w.low <= change.at
        for w in unheard
    )


def _fits(word: Word, change: Change) -> bool:
    """Whether the answer speaks of this change, under the lease that it had."""
    old, new = change.old, change.new
    assert old is not None
    if word.call.function != change.function or (word.token, word.pid) != (
        old["token"],
        old["pid"],
    ):
        return False
    if word.verb in ENDINGS:
        return new is None or new["token"] is None
    if new is None:
        return False
    if word.verb == "checkpoint":
        return word.ver == int(new["checkpoint_seq"])
    return word.ver == new["ver"] if word.ver else word.until == new["until"]


def _may_fit(word: Word, change: Change) -> bool:
    old, new = change.old, change.new
    assert old is not None
    ends = new is None or new["token"] is None
    return (
        word.call.function == change.function
        and (word.token, word.pid) == (old["token"], old["pid"])
        and (word.verb in ENDINGS) == ends
        and word.low <= change.at
    )


def _unexplained(change: Change, words: list[Word]) -> Said:
    what = f"{change.function or 'somebody'} changed it"
    if change.old is None:
        if any(w.verb == "make" and w.state == FAIL for w in words):
            return "I17", "it was made, but its caller was refused or rolled back", change.pos
        return "I8", f"{change.function or 'somebody'} made it, and nobody had asked", change.pos
    same = [
        w for w in words
        if w.call.function == change.function and w.low <= change.at and w.high >= change.began
    ]  # fmt: skip
    refused = [w for w in same if w.state == FAIL or w.told not in ("ok", "?")]
    token = change.old["token"]
    for word in same:
        if word.ok and word.token and word.token != token:
            return "I3", f"{what} for a caller with token {word.token}, not {token}", change.pos
        if word.ok and word.verb == "revoke":
            return (
                "I5",
                f"revoked by version {word.ver}, but it was at {change.old['ver']}",
                change.pos,
            )
    if refused:
        return "I9", f"{what}, but its caller was refused: {refused[0].told}", change.pos
    return "P1", f"{what}, and no call explains it", change.pos

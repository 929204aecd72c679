"""What clients were told, against what the witness saw: each yes has its row, each row has
a caller who was told yes or nothing, and what was handed out was granted (P1, P3, I3, I5,
I8, I9, I16, I19)."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.chaos.judging.reading import (
    CREATORS,
    ENDINGS,
    SETTLERS,
    SWEEPERS,
    VERBS,
    Reading,
    Word,
    attempted,
)
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import FAIL, INFO, Change

Said = tuple[str, str, int]
# They change no row of the task.
SILENT = {"step", "append", "assert", "acquire", ""}


@dataclass
class Seen:
    """The changes of one task, by what an answer may say of them."""

    made: Change | None = None
    final: Change | None = None
    grants: dict[int, Change] = field(default_factory=dict)
    ended: dict[int, Change] = field(default_factory=dict)
    versions: dict[int, Change] = field(default_factory=dict)
    checkpoints: dict[int, Change] = field(default_factory=dict)
    untils: dict[tuple[int, int], Change] = field(default_factory=dict)
    revoked: dict[int, Change] = field(default_factory=dict)

    @classmethod
    def of(cls, changes: Sequence[Change]) -> Seen:
        seen = cls()
        for change in changes:
            seen._add(change)
        return seen

    def _add(self, change: Change) -> None:
        old, new = change.old, change.new
        if new is not None:
            self.versions[new["ver"]] = change
        if change.source == "finished_tasks":
            self.final = change
            return
        if old is None:
            self.made = change
            return
        token, now = old["token"], new["token"] if new else None
        if token is not None and now != token:
            self.ended[token] = change
        elif token is not None and new is not None:
            self.untils[token, new["until"]] = change
        if now is not None and now != token and new is not None:
            self.grants[now] = change
        if new is not None and new["checkpoint_seq"] != old["checkpoint_seq"]:
            self.checkpoints[new["checkpoint_seq"]] = change
        if change.function == "revoke_lease":
            self.revoked.setdefault(old["ver"], change)

    def shown_by(self, word: Word) -> Change | None:
        """The change that an accepted word speaks of."""
        verb = word.verb
        if verb == "make":
            return self.made
        if verb == "grant":
            return self.grants.get(word.token)
        if verb in ENDINGS:
            return self.ended.get(word.token)
        if verb == "checkpoint":
            return self.checkpoints.get(word.ver)
        if verb == "revoke":
            return self.revoked.get(word.ver)
        if verb == "extend" and not word.ver:
            return self.untils.get((word.token, word.until))
        return self.versions.get(word.ver)


class Open:
    """Calls that may have happened, and name no task: sweeps, and reserves that were not
    answered. Asked by function and instant."""

    def __init__(self, reading: Reading) -> None:
        self._lows: dict[str, list[int]] = {}
        self._highs: dict[str, list[int]] = {}
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

    def reserve_at(self, change: Change, pid: str) -> bool:
        return any(low <= change.at for low in self._reserves.get((change.function, pid), ()))


def wanted(topic: Any, data: Any) -> tuple[str, str]:
    return str(topic), json.dumps(data, sort_keys=True)


def check(
    reading: Reading, of_task: dict[str, list[Change]], lost: dict[str, list[Change]]
) -> Iterator[Fault]:
    """``lost``: changes that only a primary has that is no more."""
    act, calls = reading.act.name, Open(reading)
    nothing = Seen()
    for task in of_task.keys() | reading.of_task.keys():
        changes, words = of_task.get(task, []), reading.of_task.get(task, [])
        seen = Seen.of(changes) if changes else nothing
        gone = Seen.of(lost[task]) if task in lost else nothing
        for rule, message, pos in (*explained(changes, words, calls), *shown(words, seen, gone)):
            yield Fault(rule, act, task, message, pos)


# Each row has a caller


def explained(changes: list[Change], words: list[Word], calls: Open) -> Iterator[Said]:
    last: tuple[str, bool] = ("", False)
    heard = [word for word in words if word.ok]
    unheard = [word for word in words if word.open]
    for change in changes:
        if change.source != "tasks":
            continue
        # What a statement does after its first move of a task follows from that.
        good = last == (change.xid, True) or _explained(change, heard, unheard, calls)
        last = (change.xid, good)
        if not good:
            yield _unexplained(change, words)


def _explained(change: Change, heard: list[Word], unheard: list[Word], calls: Open) -> bool:
    old, new, function = change.old, change.new, change.function
    if old is None:
        return _made(change, heard, unheard, calls)
    if old["status"] == "starting" and new is not None:
        return any(
            w.verb == "grant" and w.token == new["token"] and w.call.function == function
            for w in heard
        ) or (
            calls.reserve_at(change, new["pid"])
            if function != "acquire_lease"
            else any(w.verb == "acquire" and w.pid == new["pid"] for w in unheard)
        )
    if function in ("revoke_lease", "cancel_task"):
        return _operated(change, heard, unheard) or (
            bool(old.get("parent") or old.get("is_join")) and calls.any_at(change)
        )
    if old["status"] == "running":
        if new is not None and new["cancel"] != old["cancel"]:
            return bool(old.get("parent")) and calls.any_at(change)
        if function in VERBS or function in SETTLERS:
            if any(_fits(w, change) for w in heard):
                return True
            if any(_may_fit(w, change) for w in unheard):
                return True
        return function == "acquire_lease" or _over(change) and calls.any_at(change)
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
    return function in CREATORS and calls.any_at(change)


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
    token, new = change.old["token"], change.new
    if new is not None and change.old["status"] == "starting":
        return "P3", f"token {new['token']} was granted to nobody", change.pos
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


# Each yes has its row


def shown(words: list[Word], seen: Seen, gone: Seen) -> Iterator[Said]:
    for word in words:
        if word.told == "none" and word.state != FAIL:
            yield "P3", f"{word.call.function} gave no verdict for it", 0
        if not word.ok or word.verb in SILENT or word.status.startswith("already"):
            continue
        change = seen.shown_by(word)
        if change is None or not _agrees(word, change):
            if gone.shown_by(word) is None:
                yield _missing(word, change)
        elif word.verb == "grant":
            yield from _handed_out(word, change)
        elif word.verb == "make" and word.has_data and word.status != "existing":
            if not change.row.get("aside") and change.row["data"] != word.data:
                yield "I8", "it does not carry the data that were given", change.pos


def _agrees(word: Word, change: Change) -> bool:
    if word.verb == "make":
        return True
    if word.verb in ENDINGS:
        return change.function == word.call.function
    if word.verb == "grant":
        return change.row["pid"] == word.pid
    return change.old is None or not word.token or change.old["token"] == word.token


def _missing(word: Word, change: Change | None) -> Said:
    name, pos = word.call.function, change.pos if change else 0
    if word.verb == "make":
        return "I19", f"{name} was acknowledged, and it was never made", pos
    if word.verb == "grant":
        return "P3", f"token {word.token} was handed out to {word.pid}, but not granted", pos
    if change is not None and word.verb not in ENDINGS:
        return "I3", f"{name} was accepted under token {word.token}", pos
    return "P3", f"{name} was accepted under token {word.token}, and changed nothing", pos


def _handed_out(word: Word, change: Change) -> Iterator[Said]:
    new, row = change.new, word.data
    assert new is not None
    if word.until and word.until != new["until"]:
        yield "P3", f"told a lease until {word.until}, granted until {new['until']}", change.pos
    if "data" in row and not new.get("aside") and row["data"] != new["data"]:
        yield "I8", f"{word.pid} was handed other data than were enqueued", change.pos
    if "checkpoint" in row and row["checkpoint"] != new["checkpoint"]:
        yield "I16", f"{word.pid} was handed another checkpoint than the last", change.pos
    if word.wait is not None and new["until"] - new["now"] != word.wait:
        yield "I4", f"asked for {word.wait} us, and got {new['until'] - new['now']}", change.pos

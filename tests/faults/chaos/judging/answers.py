"""Each yes that a client was told has its row, as the witness saw it, and what was handed
out was granted (P3, I3, I4, I8, I16, I19)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.faults.chaos.judging.reading import ENDINGS, Reading, Word
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import FAIL, Change

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


def check(
    reading: Reading, of_task: dict[str, list[Change]], lost: dict[str, list[Change]]
) -> Iterator[Fault]:
    """``lost``: changes that only a primary has that is no more."""
    nothing = Seen()
    for task, words in reading.of_task.items():
        seen = Seen.of(of_task[task]) if task in of_task else nothing
        gone = Seen.of(lost[task]) if task in lost else nothing
        for rule, message, pos in shown(words, seen, gone):
            yield Fault(rule, reading.act.name, task, message, pos)


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
            yield from _carries(word, change)


def _carries(word: Word, change: Change) -> Iterator[Said]:
    # What stands aside in its own table is compared where it is handed out.
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

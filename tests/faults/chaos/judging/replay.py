"""The changes of each task, replayed as moves of a model: I2 to I7, I10 to I12, I16.

As tests/proof/replay.py, but on a real clock and without the calls: an instant is what the
row itself says (``now``, where its status changed), or lies between the begin of the
statement and the trigger. A rule is broken only where no instant between them keeps it.
Who made the change is known by function alone; answers.py asks for the caller.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from tests.faults.chaos.judging.reading import CREATORS, SETTLERS
from tests.faults.chaos.judging.rules import Broken, Fault
from tests.faults.chaos.words import Change, Image
from tests.proof.replay import (
    GRANTERS,
    KEEPERS,
    SWEEPERS,
    UNTIL_TOLD,
    WAITING,
    leaving_first,
)

SLEEPERS = {"snooze_task", "retry_task", "wait_for_task"} | SETTLERS
ENDERS = {"terminate_task", "terminate_tasks"} | SETTLERS
FAILERS = {"fail_task", "retry_task"} | SETTLERS
# Two clocks of one machine, read by two processes of the server.
SKEW_US = 2_000
FIXED = ("topic", "key", "data", "parent", "candidate", "max_attempts", "expires_at")


def by_task(changes: Sequence[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = defaultdict(list)
    for change in changes:
        if change.source in ("tasks", "finished_tasks"):
            found[change.id].append(change)
    return {task: leaving_first(told) for task, told in found.items()}


def check(act: str, of_task: dict[str, list[Change]], changes: Sequence[Change]) -> Iterator[Fault]:
    finals = {task: found[-1].pos for task, found in of_task.items() if found[-1].source != "tasks"}
    for task, of_one in of_task.items():
        for rule, message, pos in Replay(finals).run(of_one):
            yield Fault(rule, act, task, message, pos)
    yield from tokens_are_unique(act, changes)
    yield from keys_are_unique(act, changes)


class Replay:
    """One task, from its making to its end."""

    def __init__(self, finals: dict[str, int]) -> None:
        self._finals = finals
        self._row: Image | None = None
        self._token = 0
        self._ended: Change | None = None
        self._leaving: Change | None = None
        self._before: Change | None = None
        # The lease that the one before lost, and to whom it may pass.
        self._acquired_by = ""

    def run(self, changes: list[Change]) -> Iterator[tuple[str, str, int]]:
        for change in changes:
            for rule, message in self._step(change):
                yield rule, message, change.pos
            self._before = change
        if self._leaving:
            yield "I7", "it left without a final record", self._leaving.pos

    def _step(self, change: Change) -> Broken:
        if self._ended:
            if change.new is not None or change.function != "apply_retention":
                yield "I7", f"{change.function or 'somebody'} changed it after its end"
        elif change.source == "finished_tasks":
            yield from self._final(change)
        elif self._leaving:
            yield "I7", "it left without a final record"
        elif change.old is None:
            yield from self._made(change)
        elif change.old is not self._row and not same(change.old, self._row):
            yield "P1", "it is not as the last change left it"
        elif change.new is None:
            self._leaving = change
        else:
            yield from self._moved(change)
        if change.source == "tasks" and change.new is not None:
            self._row = change.new

    def _made(self, change: Change) -> Broken:
        new = change.row
        if self._row is not None:
            yield "I7", "it was made twice"
        if change.function not in CREATORS:
            yield "I8", f"{change.function or 'somebody'} made it"
        if new["status"] not in WAITING or new["ver"] != 1 or new["attempt"]:
            yield "I6", "it did not begin as a new task does"
        if new["status"] == "starting" and new["run_at"] > change.at + SKEW_US:
            yield "I10", "it was ready before its time"

    def _moved(self, change: Change) -> Broken:
        old, new = change.old, change.new
        assert old is not None and new is not None
        if new["ver"] != old["ver"] + 1:
            yield "I5", f"its version went from {old['ver']} to {new['ver']}"
        if new["checkpoint_seq"] - old["checkpoint_seq"] not in (0, 1):
            yield "I16", "its checkpoint went back"
        for column in FIXED:
            if new.get(column) != old.get(column):
                yield "I8", f"its {column} changed"
        if new["now"] != old["now"]:
            yield from self._timely(change, new["now"])
        judge = self.MOVES.get((old["status"], new["status"]))
        if judge is None:
            yield "I6", f"no way leads from {old['status']} to {new['status']}"
        else:
            yield from judge(self, change, old, new)

    def _timely(self, change: Change, now: int) -> Broken:
        """What was decided was decided by the server's clock, while the statement ran."""
        if not change.began - SKEW_US <= now <= change.at + SKEW_US:
            yield "I10", f"decided at {now}, but by a statement from {change.began} to {change.at}"

    def _earliest(self, change: Change) -> int:
        """The row was locked after its last change by another was committed."""
        before = self._before
        if before is None or before.xid == change.xid:
            return change.began
        return max(change.began, before.at)

    # The owner's right

    def _owned(self, change: Change, old: Image, functions: set[str], now: int) -> Broken:
        """An owner's act, in time. That its token was the current one, answers.py asks."""
        if change.function not in functions:
            yield "I3", f"{change.function or 'somebody'} moved it, that may not"
        if old["until"] is None or old["until"] <= now:
            yield "I3", f"{change.function} moved it when the lease was over"

    def _counts(self, old: Image, new: Image, attempt: int, failures: int, losses: int) -> Broken:
        want = (
            max(old["attempt"] + attempt, 0),
            old["failures"] + failures,
            old["losses"] + losses if losses >= 0 else 0,
        )
        got = (new["attempt"], new["failures"], new["losses"])
        if want != got:
            yield "I11", f"attempt, failures, losses are {got}, not {want}"

    # Moves, by the statuses before and after

    def _kept(self, change: Change, old: Image, new: Image) -> Broken:
        if (new["token"], new["pid"]) != (old["token"], old["pid"]):
            yield "I1", "the lease passed on without an end"
        yield from self._counts(old, new, 0, 0, 0)
        if new["cancel"] != old["cancel"]:
            if old["cancel"] is not None or not (
                change.function == "cancel_task" or old.get("parent")
            ):
                yield "I6", f"{change.function} asked it to stop"
            if new["until"] != old["until"]:
                yield "I4", "a cancel request moved the lease"
            return
        yield from self._owned(change, old, KEEPERS, self._earliest(change))
        if new["until"] != old["until"]:
            if change.function not in ("extend_lease", "extend_leases", "renew_lease"):
                yield "I4", f"{change.function} moved the lease"
            elif new["until"] < old["until"] and change.function != "renew_lease":
                yield "I4", f"{change.function} shortened the lease"
        if (new["checkpoint_seq"] != old["checkpoint_seq"]) != (
            change.function == "save_checkpoint"
        ):
            yield "I16", f"{change.function} and the checkpoint's number do not fit"
        if new["checkpoint"] != old["checkpoint"] and change.function != "save_checkpoint":
            yield "I16", f"{change.function} changed the checkpoint"

    def _given_back(self, change: Change, old: Image, new: Image) -> Broken:
        now, function = new["now"], change.function
        over = old["until"] <= now
        if function == "revoke_lease":
            yield from self._counts(old, new, 0, 0, 0)
        elif over:
            if function not in SWEEPERS | {"acquire_lease"}:
                yield "I3", f"{function} gave it back when the lease was over"
            yield from self._counts(old, new, 0, 0, 1)
        elif function == "acquire_lease":
            self._acquired_by = old["pid"]
            yield from self._counts(old, new, -1, 0, 0)
        elif function == "release_lease" or function in SETTLERS:
            if function in SETTLERS and new["losses"] != old["losses"]:
                yield "I1", f"{function} took a live lease away"
            yield from self._counts(old, new, -1, 0, 0)
        elif function in SWEEPERS:
            yield "I1", f"{function} took a live lease away"
        else:
            yield "I3", f"{function or 'somebody'} gave it back, that may not"

    def _put_to_sleep(self, change: Change, old: Image, new: Image) -> Broken:
        # wait_for_task judges, and then may wait for the child, the row in its hands.
        waits = change.function == "wait_for_task" or new.get("waits_for") is not None
        judged = self._earliest(change) if waits else new["now"]
        yield from self._owned(change, old, SLEEPERS, judged)
        retried = change.function == "retry_task" or (
            change.function in SETTLERS and new["failures"] != old["failures"]
        )
        if retried:
            yield from self._counts(old, new, 0, 1, -1)
            if new["failures"] >= old["max_attempts"]:
                yield "I11", "retried after its last attempt"
        else:
            yield from self._counts(old, new, -1, 0, -1)
        if new["run_at"] < new["now"]:
            yield "I10", "it sleeps until before it fell asleep"

    def _woken(self, change: Change, old: Image, new: Image) -> Broken:
        yield from self._counts(old, new, 0, 0, 0)
        due = old["run_at"] <= new["now"]
        if change.function == "revoke_lease":
            return
        if old.get("waits_for") is not None:
            final = self._finals.get(old["waits_for"])
            if not due and (final is None or final > change.pos):
                yield "I14", "it was woken before the child for which it sleeps was final"
        elif old["run_at"] < UNTIL_TOLD:
            if not due:
                yield "I10", f"{change.function} woke it before its time"
        elif not old.get("is_join") and old.get("candidate") is None:
            yield "I10", f"{change.function} woke what waits for other tasks"

    def _granted(self, change: Change, old: Image, new: Image) -> Broken:
        now = new["now"]
        if change.function not in GRANTERS:
            yield "I3", f"{change.function or 'somebody'} granted it to {new['pid']}"
        if self._acquired_by and self._acquired_by != new["pid"]:
            yield "I1", "acquire_lease took a live lease from another owner"
        if new["token"] <= self._token:
            yield "I2", f"token {new['token']} after {self._token}"
        self._token = max(self._token, new["token"])
        if old["run_at"] > now:
            yield "I10", "granted before its time"
        # The deadline is for waiting: who holds the task may acquire it again.
        if old["expires_at"] is not None and old["expires_at"] <= now and not self._acquired_by:
            yield "I10", "granted after its deadline"
        if old["cancel"] is not None:
            yield "I6", "granted with a cancel request standing"
        if old["losses"] > old["max_losses"]:
            yield "I11", "granted with its losses spent"
        if new["until"] <= now:
            yield "I4", f"a lease until {new['until']} was granted at {now}"
        yield from self._counts(old, new, 1, 0, 0)
        self._acquired_by = ""

    MOVES: ClassVar[dict[tuple[str, str], Callable[..., Broken]]] = {
        ("running", "running"): _kept,
        ("running", "starting"): _given_back,
        ("running", "snoozed"): _put_to_sleep,
        ("snoozed", "starting"): _woken,
        ("starting", "running"): _granted,
    }

    # The end

    def _final(self, change: Change) -> Broken:
        left, self._leaving, self._ended = self._leaving, None, change
        new, old = change.row, left.old if left else None
        if left is None or old is None or left.xid != change.xid:
            yield "I7", "a final record of a task that did not leave"
            return
        if not same(old, self._row):
            yield "P1", "it is not as the last change left it"
        if new["ver"] != old["ver"] + 1:
            yield "I5", "its version did not rise with its end"
        if any(new[name] != old.get(name, new[name]) for name in ("checkpoint_seq", "data")):
            yield "I16", "its end changed its checkpoint or its data"
        if new["losses"] > new["max_losses"] + 1 or new["failures"] > max(1, new["max_attempts"]):
            yield "I11", "more failures or losses than it may have"
        yield from self._timely(change, new["now"])
        if old["status"] == "running":
            yield from self._ended_by_owner(change, old, new)
        elif new["status"] == "terminated":
            if not old.get("is_join"):
                yield "I3", f"{change.function} ended it, and nobody held it"
        else:
            yield from self._ended_waiting(change, old, new)

    def _ended_by_owner(self, change: Change, old: Image, new: Image) -> Broken:
        failers = FAILERS
        if new["status"] == "terminated":
            failers = ENDERS
        elif new["code"] == "cancelled" and old["cancel"] is not None:
            failers = FAILERS | SLEEPERS | {"release_lease"}
        yield from self._owned(change, old, failers, self._judged(change, new))
        if new["token"] != old["token"]:
            yield "I3", f"it ended under token {new['token']}, not {old['token']}"
        if new["status"] == "terminated" or failers is not FAILERS:
            return
        yield from self._counts(old, new, 0, 1, 0)
        if change.function == "retry_task" and new["failures"] < old["max_attempts"]:
            yield "I11", "failed with attempts left"

    def _judged(self, change: Change, new: Image) -> int:
        return self._earliest(change) if change.function == "wait_for_task" else int(new["now"])

    def _ended_waiting(self, change: Change, old: Image, new: Image) -> Broken:
        now, code = new["now"], new["code"]
        if code == "expired":
            if change.function not in SWEEPERS:
                yield "I6", f"{change.function} let it expire"
            if old["expires_at"] is None or old["expires_at"] > now:
                yield "I10", "it expired before its deadline"
        elif code == "lease_lost":
            if old["losses"] <= old["max_losses"]:
                yield "I11", "given up as lost, with losses left"
        elif code == "cancelled":
            asked = change.function == "cancel_task" or old["cancel"] is not None
            if not asked and not old.get("parent") and not old.get("is_join"):
                yield "I6", f"{change.function} cancelled it"
        elif not old.get("is_join"):
            yield "I14", f"a plain task that nobody held ended with {code}"


def same(one: Image | None, other: Image | None) -> bool:
    """Whether two images of a row show the same, in the columns that both have: a migration
    adds some, and the image of a row that left holds no payload."""
    if one is other:
        return True
    if one is None or other is None:
        return False
    return all(other[name] == value for name, value in one.items() if name in other)


def tokens_are_unique(act: str, changes: Sequence[Change]) -> Iterator[Fault]:
    seen: dict[int, str] = {}
    for change in changes:
        if change.source in ("tasks", "locks") and change.new and change.new["token"] is not None:
            before = change.old["token"] if change.old else None
            token = change.new["token"]
            if token != before:
                if token in seen:
                    yield Fault(
                        "I2", act, change.id, f"token {token} was granted twice", change.pos
                    )
                seen[token] = change.id


def keys_are_unique(act: str, changes: Sequence[Change]) -> Iterator[Fault]:
    held: dict[tuple[str, str], str] = {}
    for change in changes:
        if change.source != "tasks" or change.row["key"] is None:
            continue
        key = (change.row["topic"], change.row["key"])
        if change.new is None:
            held.pop(key, None)
        elif held.setdefault(key, change.id) != change.id:
            yield Fault("I12", act, change.id, f"{key} is held by {held[key]}", change.pos)

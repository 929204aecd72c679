"""The changes of each task, replayed as moves of a model: I2 to I7, I10 to I12, I16."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import ClassVar

from .history import Call, Change, Fault, History, Image

# Rules that did not hold: which, and what was seen.
Broken = Iterator[tuple[str, str]]

UNTIL_TOLD = 7968 * 365 * 86_400_000_000  # about: what lies beyond waits for other tasks
RESERVERS = {
    "reserve_task",
    "reserve_tasks",
    "settle_and_reserve",
    "exchange_leases",
    "exchange_work",
}
SWEEPERS = {"sweep", "look_for_work", "look_around"} | RESERVERS
GRANTERS = {"acquire_lease"} | RESERVERS
CREATORS = {"create_task", "create_tasks", "fan_out", "fire_schedules", "resubmit_task"}
KEEPERS = {"extend_lease", "renew_lease", "extend_leases", "report_progress", "save_checkpoint"}
SINGLE = {
    "terminate_task": "terminate",
    "fail_task": "fail",
    "retry_task": "retry",
    "snooze_task": "snooze",
    "release_lease": "release",
    "wait_for_task": "wait",
}
WAITING = ("starting", "snoozed")
HOUR = 3_600_000_000


def check(history: History) -> Iterator[Fault]:
    calls = {call.number: call for call in history.calls}
    by_task: dict[str, list[Change]] = defaultdict(list)
    for change in history.changes:
        if change.source in ("tasks", "finished_tasks"):
            by_task[change.id].append(change)
    finals = {c.id: c.pos for c in history.changes if c.source == "finished_tasks"}
    for changes in by_task.values():
        yield from Replay(calls, finals).run(changes)
    yield from tokens_are_unique(history)
    yield from keys_are_unique(history)


def microseconds(duration: object) -> int:
    """A duration as the moves write it: '10 seconds', '5', or nothing."""
    return int(float(str(duration or 0).split()[0]) * 1_000_000)


def verbs_on(call: Call, row: Image) -> set[str]:
    """By which verbs this call may move a task that its caller holds, under this lease."""
    said = call.arguments
    if said.get("pid") != row["pid"] or row["token"] is None:
        return set()
    if "task_ids" in said:
        verbs = said.get("verbs") or [
            "extend" if call.function == "extend_leases" else "terminate"
        ] * len(said["task_ids"])
        # Of a task that is named twice, the member that was accepted.
        accepted = {answer.get("ord") for answer in call.rows if answer["verdict"] == "ok"}
        return {
            verb
            for place, (verb, task, token) in enumerate(
                zip(verbs, said["task_ids"], said["tokens"], strict=True), 1
            )
            if task == row["id"] and token == row["token"] and (place in accepted or not call.rows)
        }
    if said.get("task_id") == row["id"] and said.get("token") == row["token"]:
        return {SINGLE.get(call.function, "extend")}
    return set()


def leaving_first(changes: list[Change]) -> list[Change]:
    """The record of an end is written just before its task leaves, in one transaction, so
    that nobody sees one without the other: told here the other way round."""
    told = list(changes)
    for place, (record, leaving) in enumerate(pairwise(changes)):
        if (
            record.source == "finished_tasks"
            and (leaving.source, leaving.new, leaving.xid) == ("tasks", None, record.xid)
        ):  # fmt: skip
            told[place : place + 2] = [leaving, record]
    return told


class Replay:
    """One task, from its making to its end."""

    def __init__(self, calls: dict[int, Call], finals: dict[str, int]) -> None:
        self._calls = calls
        self._finals = finals
        self._row: Image | None = None
        self._token = 0
        self._ended: Change | None = None
        self._leaving: Change | None = None
        self._before: Change | None = None

    def run(self, changes: list[Change]) -> Iterator[Fault]:
        for change in leaving_first(changes):
            call = self._calls.get(change.call or 0)
            if call is not None:
                for rule, message in self._step(change, call):
                    yield Fault(rule, f"task {change.id}", message, change.pos)
            self._before = change
        if self._leaving:
            yield Fault("I7", f"task {self._leaving.id}", "it left without a final record")

    def _step(self, change: Change, call: Call) -> Broken:
        if self._ended:
            yield "I7", "it changed after its end"
        elif change.source == "finished_tasks":
            yield from self._final(change, call)
        elif self._leaving:
            yield "I7", "it left without a final record"
        elif change.old is None:
            yield from self._made(change, call)
        elif change.old != self._row:
            yield "P1", "it is not as the last change left it"
        elif change.new is None:
            self._leaving = change
        else:
            yield from self._moved(change, call)
        if change.source == "tasks" and change.new is not None:
            self._row = change.new

    def _made(self, change: Change, call: Call) -> Broken:
        new = change.row
        if self._row is not None:
            yield "I7", "it was made twice"
        if call.function not in CREATORS:
            yield "I8", f"{call.function} made it"
        if new["status"] not in WAITING or new["ver"] != 1 or new["attempt"]:
            yield "I6", "it did not begin as a new task does"
        if new["status"] == "starting" and new["run_at"] > change.clock:
            yield "I10", "it was ready before its time"
        data = call.arguments.get("data")
        if call.function == "create_task" and data is not None and data.value != new["data"]:
            yield "I8", "it does not carry the data that were given"

    def _moved(self, change: Change, call: Call) -> Broken:
        old, new = change.old, change.new
        assert old is not None and new is not None
        if new["ver"] != old["ver"] + 1:
            yield "I5", f"its version went from {old['ver']} to {new['ver']}"
        if new["checkpoint_seq"] - old["checkpoint_seq"] not in (0, 1):
            yield "I16", "its checkpoint went back"
        for column in ("topic", "key", "data", "parent", "candidate", "max_attempts", "expires_at"):
            if new[column] != old[column]:
                yield "I8", f"its {column} changed"
        judge = self.MOVES.get((old["status"], new["status"]))
        if judge is None:
            yield "I6", f"no way leads from {old['status']} to {new['status']}"
        else:
            yield from judge(self, change, call, old, new)

    # The owner's right

    def _owned(self, change: Change, call: Call, old: Image, verbs: set[str]) -> Broken:
        """An owner's act: under the current token, in time."""
        if not verbs_on(call, old) & verbs:
            yield "I3", f"{call.function} without the current lease moved it"
        # wait_for_task judges, and then may wait for the child, the row in its hands.
        judged = call.clock if call.function == "wait_for_task" else change.clock
        if old["until"] is None or old["until"] <= judged:
            yield "I3", f"{call.function} moved it when the lease was over"

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

    def _kept(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        if (new["token"], new["pid"]) != (old["token"], old["pid"]):
            yield "I1", "the lease passed on without an end"
        yield from self._counts(old, new, 0, 0, 0)
        if new["cancel"] != old["cancel"]:
            mine = call.function == "cancel_task" and call.arguments["task_id"] == old["id"]
            if old["cancel"] is not None or not (mine or old["parent"]):
                yield "I6", f"{call.function} asked it to stop"
            if new["until"] != old["until"]:
                yield "I4", "a cancel request moved the lease"
            return
        yield from self._owned(change, call, old, {"extend"})
        if call.function not in KEEPERS:
            yield "I3", f"{call.function} changed a running task"
        yield from self._extent(change, call, old, new)
        if (new["checkpoint_seq"] != old["checkpoint_seq"]) != (call.function == "save_checkpoint"):
            yield "I16", f"{call.function} and the checkpoint's number do not fit"

    def _extent(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        to = change.clock + microseconds(call.arguments.get("lease"))
        want = {
            "extend_lease": max(old["until"], to),
            "extend_leases": max(old["until"], to),
            "renew_lease": to,
        }.get(call.function, old["until"])
        if new["until"] != want:
            yield "I4", f"{call.function} moved the lease to {new['until']}, not to {want}"

    def _given_back(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        over = old["until"] <= change.clock
        if call.function == "revoke_lease":
            yield from self._revoked(call, old)
            yield from self._counts(old, new, 0, 0, 0)
        elif "release" in verbs_on(call, old) and not over:
            yield from self._counts(old, new, -1, 0, 0)
        elif call.function == "acquire_lease" and not over:
            if call.arguments["pid"] != old["pid"] or call.arguments["task_id"] != old["id"]:
                yield "I1", "acquire_lease took a live lease from another owner"
            yield from self._counts(old, new, -1, 0, 0)
        elif call.function in SWEEPERS | {"acquire_lease"}:
            if not over:
                yield "I1", f"{call.function} took a live lease away"
            yield from self._counts(old, new, 0, 0, 1)
        else:
            yield "I3", f"{call.function} without the current lease gave it back"

    def _revoked(self, call: Call, old: Image) -> Broken:
        said = call.arguments
        if said["task_id"] != old["id"]:
            yield "I6", "another task was revoked"
        if said["record_ver"] != old["ver"]:
            yield "I5", f"revoked by version {said['record_ver']}, but it is at {old['ver']}"

    def _put_to_sleep(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        yield from self._owned(change, call, old, {"snooze", "retry", "wait"})
        verbs = verbs_on(call, old)
        if verbs == {"retry"} or ("retry" in verbs and new["failures"] != old["failures"]):
            yield from self._counts(old, new, 0, 1, -1)
            if new["failures"] >= old["max_attempts"]:
                yield "I11", "retried after its last attempt"
        else:
            yield from self._counts(old, new, -1, 0, -1)
        if call.function == "snooze_task":
            wait = microseconds(call.arguments["snooze"])
        elif call.function == "retry_task" and call.arguments["delay"] is not None:
            wait = microseconds(call.arguments["delay"])
        else:
            return
        if new["run_at"] != change.clock + wait:
            yield "I10", f"it sleeps until {new['run_at']}, not until {change.clock + wait}"

    def _woken(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        yield from self._counts(old, new, 0, 0, 0)
        if call.function == "revoke_lease" and call.arguments["task_id"] == old["id"]:
            yield from self._revoked(call, old)
        elif old["waits_for"] is not None:
            final = self._finals.get(old["waits_for"])
            if old["run_at"] > change.clock and (final is None or final > change.pos):
                yield "I14", "it was woken before the child for which it sleeps was final"
        elif old["run_at"] < UNTIL_TOLD:
            if old["run_at"] > change.clock:
                yield "I10", f"{call.function} woke it before its time"
        elif not old["is_join"] and old["candidate"] is None:
            yield "I10", f"{call.function} woke what waits for other tasks"

    def _granted(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        said = call.arguments
        if call.function not in GRANTERS or new["pid"] != said["pid"]:
            yield "I3", f"{call.function} granted it to {new['pid']}"
            return
        if new["token"] <= self._token:
            yield "I2", f"token {new['token']} after {self._token}"
        self._token = max(self._token, new["token"])
        if old["run_at"] > change.clock:
            yield "I10", "granted before its time"
        # The deadline is for waiting: who holds the task may acquire it again.
        again = call.function == "acquire_lease" and self._held_in(change)
        if old["expires_at"] is not None and old["expires_at"] <= change.clock and not again:
            yield "I10", "granted after its deadline"
        if old["cancel"] is not None:
            yield "I6", "granted with a cancel request standing"
        if old["losses"] > old["max_losses"]:
            yield "I11", "granted with its losses spent"
        if new["until"] != change.clock + microseconds(said["lease"]):
            yield "I4", f"a lease until {new['until']} was granted at {change.clock}"
        yield from self._counts(old, new, 1, 0, 0)

    def _held_in(self, change: Change) -> bool:
        """Whether this transaction began with the task under a live lease."""
        before = self._before.old if self._before and self._before.xid == change.xid else None
        return bool(before and before["until"] and before["until"] > change.clock)

    MOVES: ClassVar[dict[tuple[str, str], Callable[..., Broken]]] = {
        ("running", "running"): _kept,
        ("running", "starting"): _given_back,
        ("running", "snoozed"): _put_to_sleep,
        ("snoozed", "starting"): _woken,
        ("starting", "running"): _granted,
    }

    # The end

    def _final(self, change: Change, call: Call) -> Broken:
        left, self._leaving, self._ended = self._leaving, None, change
        new, old = change.row, left.old if left else None
        if left is None or old is None or left.xid != change.xid:
            yield "I7", "a final record of a task that did not leave"
            return
        if new["ver"] != old["ver"] + 1:
            yield "I5", "its version did not rise with its end"
        if new["checkpoint_seq"] != old["checkpoint_seq"] or new["data"] != old["data"]:
            yield "I16", "its end changed its checkpoint or its data"
        if new["losses"] > new["max_losses"] + 1 or new["failures"] > max(1, new["max_attempts"]):
            yield "I11", "more failures or losses than it may have"
        if new["status"] == "terminated":
            if not (old["is_join"] and old["status"] == "snoozed"):
                yield from self._owned(change, call, old, {"terminate"})
        else:
            ends: dict[str, Callable[..., Broken]] = {
                "cancelled": self._cancelled,
                "expired": self._expired,
                "lease_lost": self._lost,
                "deadline": self._decided,
                "policy_unmet": self._decided,
            }
            yield from ends.get(new["code"], self._failed)(change, call, old, new)

    def _failed(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        yield from self._owned(change, call, old, {"fail", "retry"})
        verbs = verbs_on(call, old)
        if verbs == {"retry"} and old["failures"] + 1 < old["max_attempts"]:
            yield "I11", "failed with attempts left"
        yield from self._counts(old, new, 0, 1, 0)

    def _cancelled(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        if old["status"] == "running":
            yield from self._owned(change, call, old, {"release", "snooze", "wait", "retry"})
            if old["cancel"] is None:
                yield "I6", "cancelled while running, and nobody had asked for it"
            return
        mine = call.function == "cancel_task" and call.arguments["task_id"] == old["id"]
        if not (mine or old["cancel"] is not None or old["parent"]):
            yield "I6", f"{call.function} cancelled it"

    def _expired(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        if old["status"] not in WAITING or call.function not in SWEEPERS:
            yield "I6", "it expired while it ran"
        if old["expires_at"] is None or old["expires_at"] > change.clock:
            yield "I10", "it expired before its deadline"

    def _lost(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        if old["status"] != "starting" or old["losses"] <= old["max_losses"]:
            yield "I11", "given up as lost, with losses left"

    def _decided(self, change: Change, call: Call, old: Image, new: Image) -> Broken:
        if not old["is_join"]:
            yield "I14", f"a plain task ended with {new['code']}"


def tokens_are_unique(history: History) -> Iterator[Fault]:
    seen: dict[int, str] = {}
    for change in history.changes:
        if change.source in ("tasks", "locks") and change.new and change.new["token"] is not None:
            before = change.old["token"] if change.old else None
            token = change.new["token"]
            if token != before and token in seen:
                yield Fault("I2", change.id, f"token {token} was granted twice", change.pos)
            seen[token] = change.id


def keys_are_unique(history: History) -> Iterator[Fault]:
    held: dict[tuple[str, str], str] = {}
    for change in history.changes:
        if change.source != "tasks" or change.row["key"] is None:
            continue
        key = (change.row["topic"], change.row["key"])
        if change.new is None:
            held.pop(key, None)
        elif held.setdefault(key, change.id) != change.id:
            yield Fault("I12", f"task {change.id}", f"{key} is held by {held[key]}", change.pos)

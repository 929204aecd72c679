"""The life of one task, from what the witness saw and the clients were told. Pure.

Times are nanoseconds of the host's monotonic clock; those of the server are moved there by
the offset that the act measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.faults.chaos.words import FAIL, OK, Act, Call, Change, Injection

_ENDS = {"SK001", "SK002", "SK003", "SK004", "SK005", "SK006", "SK007"}
REASONS = {
    "SK001": "no such task", "SK002": "already done", "SK003": "another owner",
    "SK004": "lease expired", "SK005": "stale token", "SK006": "wrong status",
    "SK007": "changed meanwhile", "SK008": "exists already", "SK010": "not due",
    "SK011": "stale fence", "55P03": "busy, try again",
}  # fmt: skip
FAULTS = {
    "F1": "worker killed", "F2": "worker paused", "F3": "backend ended", "F4": "server crash",
    "F5": "server frozen", "F6": "connection cut", "F7": "network partition",
    "F8": "wrong clocks", "F9": "failover", "F10": "disk full", "F11": "connection limits",
    "F12": "time-outs", "F13": "locks held", "F14": "old snapshot", "F15": "pooler",
    "F16": "mixed versions", "F17": "hostile plans", "F18": "isolation",
    "F19": "poison data", "F20": "operator",
}  # fmt: skip
_BEATS = ("extend_leases", "extend_lease", "renew_lease")
_TAKEN_BACK, _TOO_EARLY = "expired, taken back", "taken back before its time"


@dataclass
class Lease:
    """One grant; ``over_at`` is when the server's clock had passed its last renewal."""

    token: int
    pid: str
    began: int
    over_at: int
    ended: int | None = None
    how: str = ""

    @property
    def cut_short(self) -> bool:
        """Ended by somebody else, with time left."""
        taken = self.how == _TOO_EARLY or "revoke" in self.how
        return taken and self.ended is not None and self.ended < self.over_at

    @property
    def expired(self) -> bool:
        return self.ended is None or self.over_at < self.ended


@dataclass
class Mark:
    """An instant in somebody's lane. ``kind``: beat, write, end, refused, unknown, effect,
    or wrong: let through, although somebody else had been given the task before."""

    at: int
    pid: str
    kind: str
    what: str
    token: int | None
    why: str = ""


@dataclass
class Stay:
    """A status, from when until when."""

    status: str
    began: int
    ended: int | None = None


@dataclass
class TaskLife:
    act: str
    task: str
    kind: str = ""
    topic: str = ""
    leases: list[Lease] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    troubles: list[Injection] = field(default_factory=list)
    at_fault: int | None = None
    """The instant of the change that broke a rule."""

    @property
    def pids(self) -> list[str]:
        """Everybody who is seen in it, in the order of their first act."""
        acts = [(lease.began, lease.pid) for lease in self.leases]
        acts += [(mark.at, mark.pid) for mark in self.marks]
        return list(dict.fromkeys(pid for _, pid in sorted(acts)))

    @property
    def span(self) -> tuple[int, int]:
        times = [stay.began for stay in self.stays]
        times += [stay.ended for stay in self.stays if stay.ended is not None]
        times += [mark.at for mark in self.marks]
        times += [min(lease.over_at, lease.ended or lease.over_at) for lease in self.leases]
        return (min(times), max(times)) if times else (0, 1)

    def ordinal(self, token: int | None) -> str:
        """``1st``: which of its grants a token is; ``none`` of them."""
        tokens = sorted(lease.token for lease in self.leases)
        if token not in tokens:
            return "unknown"
        n = tokens.index(token) + 1
        ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
        return f"{n}{ending}"


def life_of(act: Act, task: str, pos: int = 0) -> TaskLife:
    """What happened to a task. ``pos``: the change that broke a rule, if any did."""
    found = TaskLife(act.name, task)
    changes = [c for c in act.changes if c.source in ("tasks", "finished_tasks") and c.id == task]
    for change in sorted(changes, key=lambda c: c.pos):
        _add_change(found, act, change)
        if change.pos == pos:
            found.at_fault = _ns(act, change.at)
    found.marks += _refusals(act, task)
    found.marks += _wrongly_accepted(act, found)
    found.marks += _effects(act, task)
    found.marks.sort(key=lambda mark: mark.at)
    begin, end = found.span
    lanes = {pid.partition(".")[0] for pid in found.pids} | set(found.pids)
    found.troubles = [
        each for each in act.injections
        if each.began <= end and (each.ended or end) >= begin
        and (each.about in lanes or _of_the_server(each))
    ]
    return found


def most_contested(act: Act) -> str | None:
    """The task that most refusals and grants are about; None when there is none."""
    score: Counter[str] = Counter()
    for change in act.changes:
        if change.source == "tasks" and granted_by(change):
            score[change.id] += 1
    for call in act.calls:
        for task, _, _ in _refused_members(call):
            if task in score:
                score[task] += 3
    return score.most_common(1)[0][0] if score else None


def refused_calls(act: Act) -> int:
    return sum(1 for call in act.calls for _ in _refused_members(call))


# --- what the witness saw -----------------------------------------------------


def _add_change(found: TaskLife, act: Act, change: Change) -> None:
    old, new, at = change.old, change.new, _ns(act, change.at)
    if change.source == "finished_tasks":
        _close(found.stays, at)
        found.stays.append(Stay(str(change.row["status"]), at, at))
        if found.leases and found.leases[-1].how == "":
            found.leases[-1].how = _ending(change, str(change.row["status"]))
        return
    found.kind = found.kind or str(change.row.get("kind") or "")
    found.topic = found.topic or str(change.row.get("topic") or "")
    if new is not None and (old is None or old["status"] != new["status"]):
        _close(found.stays, at)
        found.stays.append(Stay(str(new["status"]), at))
    if old is not None and old["token"] is not None and _gives_up(change):
        _end_lease(found, change, at)
    if granted_by(change):
        assert new is not None
        until = _ns(act, new["until"])
        found.leases.append(Lease(new["token"], str(new["pid"]), at, until))
    elif old is not None and new is not None and new["token"] is not None:
        _keep(found, act, change, at)


def granted_by(change: Change) -> bool:
    new, old = change.new, change.old
    if new is None or new.get("token") is None:
        return False
    return old is None or old.get("token") != new["token"]


def _gives_up(change: Change) -> bool:
    return change.new is None or change.new["token"] != (change.old or {})["token"]


def _end_lease(found: TaskLife, change: Change, at: int) -> None:
    assert change.old is not None
    token, pid = change.old["token"], str(change.old["pid"])
    lease = next((each for each in reversed(found.leases) if each.token == token), None)
    if lease is None:
        return
    lease.ended = at
    if change.new is None:
        found.marks.append(Mark(at, pid, "end", change.function or "end", token))
        return
    lost = (change.new.get("losses") or 0) > (change.old.get("losses") or 0)
    lease.how = _ending(change, str(change.new["status"]))
    if lost:
        lease.how = _TAKEN_BACK if lease.over_at <= at else _TOO_EARLY
    if not lost and change.function not in ("revoke_lease", "sweep"):
        found.marks.append(Mark(at, pid, "end", change.function or "end", token))


def _ending(change: Change, status: str) -> str:
    return f"{status} by {change.function}" if change.function else status


def _keep(found: TaskLife, act: Act, change: Change, at: int) -> None:
    """A write of the holder that lets the lease be."""
    old, new = change.old or {}, change.new or {}
    moved = old["until"] != new["until"]
    if moved:
        for lease in found.leases:
            if lease.token == new["token"]:
                lease.over_at = _ns(act, new["until"])
    if change.function == "cancel_task":
        found.marks.append(Mark(at, "", "write", "cancel request", None))
        return
    kind = "beat" if moved and (change.function in _BEATS or not change.function) else "write"
    found.marks.append(
        Mark(at, str(new["pid"]), kind, change.function or "a write", new["token"])
    )


def _close(stays: list[Stay], at: int) -> None:
    if stays and stays[-1].ended is None:
        stays[-1].ended = at


# --- what the clients were told -----------------------------------------------


def _refusals(act: Act, task: str) -> Iterator[Mark]:
    for call in act.calls:
        for name, token, code in _refused_members(call):
            if name == task:
                yield Mark(
                    call.ended or call.began, call.pid or call.process, "refused",
                    call.function, token, f"{code} {REASONS.get(code, '')}".strip(),
                )
        if call.outcome not in (OK, FAIL) and str(call.arguments.get("task_id")) == task:
            yield Mark(
                call.ended or call.began, call.pid or call.process, "unknown", call.function,
                _number(call.arguments.get("token")), "no answer",
            )


def _wrongly_accepted(act: Act, life: TaskLife) -> Iterator[Mark]:
    """Calls that were answered with ok when a newer lease had been granted before they began."""
    granted = {lease.token: lease.began for lease in life.leases}
    for call in act.calls:
        for task, token in _accepted_members(call) if call.outcome == OK else ():
            newer = [at for other, at in granted.items() if token in granted and other > token]
            if task == life.task and newer and min(newer) < call.began:
                yield Mark(
                    call.ended or call.began, call.pid or call.process, "wrong", call.function,
                    token, "an older token",
                )


def _accepted_members(call: Call) -> Iterator[tuple[str, int]]:
    said = call.arguments
    token = _number(said.get("token"))
    if said.get("task_id") and token is not None:
        yield str(said["task_id"]), token
    tokens = dict(zip(_members(said, "task_ids"), _members(said, "tokens"), strict=False))
    for row in call.rows:
        token = _number(tokens.get(str(row.get("task_id"))))
        if row.get("verdict") == "ok" and token is not None:
            yield str(row["task_id"]), token


def _refused_members(call: Call) -> Iterator[tuple[str, int | None, str]]:
    """Which tasks a call was refused for: task, token, SQLSTATE."""
    said = call.arguments
    if call.outcome == FAIL and call.sqlstate in _ENDS and said.get("task_id"):
        yield str(said["task_id"]), _number(said.get("token")), call.sqlstate
    if call.outcome == OK:
        tokens = dict(zip(_members(said, "task_ids"), _members(said, "tokens"), strict=False))
        for row in call.rows:
            code = str(row.get("verdict") or "")
            if code in _ENDS:
                name = str(row.get("task_id"))
                yield name, _number(tokens.get(name)), code


def _members(said: dict[str, Any], name: str) -> list[str]:
    """An array argument, which crosses the border as text: ``{a,b}``."""
    given = said.get(name) or ()
    if isinstance(given, str):
        return [each.strip('" ') for each in given.strip("{}").split(",") if each]
    return [str(each) for each in given]


def _number(given: object) -> int | None:
    try:
        return int(str(given))
    except ValueError:
        return None


def _effects(act: Act, task: str) -> Iterator[Mark]:
    for effect in act.effects:
        if effect.task == task:
            fate = {"refused": ("refused", "fence in the second database", "SK011 stale fence"),
                    "fenced": ("effect", "fenced effect", "")}
            kind, what, why = fate.get(effect.kind, ("effect", f"effect: {effect.kind}", ""))
            yield Mark(effect.at, effect.pid, kind, what, effect.token, why)


# --- times and troubles -------------------------------------------------------


def _ns(act: Act, us: int) -> int:
    return (us - act.offset_us) * 1000


_SERVER_FAULTS = frozenset({"F4", "F5", "F9", "F10"})


def _of_the_server(each: Injection) -> bool:
    return each.fault in _SERVER_FAULTS


def rows(life: TaskLife) -> list[tuple[int, str, str, int | None, str]]:
    """The events as a table: when, who, what, token, and what became of it. Heartbeats in
    a row are one line."""
    told: list[tuple[int, str, str, int | None, str]] = [
        (lease.began, lease.pid, "lease granted", lease.token, "granted") for lease in life.leases
    ]
    told += [
        (lease.ended, "sweep", lease.how, lease.token, "moved")
        for lease in life.leases
        if lease.ended is not None and lease.how in (_TAKEN_BACK, _TOO_EARLY)
    ]
    told += [
        (lease.ended, "operator", lease.how, lease.token, "moved")
        for lease in life.leases if lease.ended is not None and "revoke" in lease.how
    ]
    told += [
        (each.began, each.about or "server", _told(each), None, "fault")
        for each in life.troubles
    ]
    told += [(m.at, m.pid, m.what, m.token, _fate(m)) for m in life.marks if m.kind != "beat"]
    told += _beats([mark for mark in life.marks if mark.kind == "beat"])
    return sorted(told, key=lambda row: row[0])


def _fate(mark: Mark) -> str:
    if mark.kind == "wrong":
        return "wrong: accepted under an older token"
    if mark.kind in ("refused", "unknown"):
        return f"{mark.kind}: {mark.why}"
    return "outside" if mark.kind == "effect" else "accepted"


def _beats(marks: Iterable[Mark]) -> Iterator[tuple[int, str, str, int | None, str]]:
    runs: dict[tuple[str, int | None], list[Mark]] = {}
    for mark in marks:
        runs.setdefault((mark.pid, mark.token), []).append(mark)
    for (pid, token), run in runs.items():
        what = "heartbeat" if len(run) == 1 else f"{len(run)} heartbeats from here"
        yield run[0].at, pid, what, token, "accepted"


def _told(each: Injection) -> str:
    words = [f"{key} {value}" for key, value in each.detail.items()]
    name = f"{each.fault} {FAULTS.get(each.fault, '')}".strip()
    return f"{name} ({', '.join(words)[:80]})" if words else name

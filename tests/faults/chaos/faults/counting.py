"""What the history of an act shows of a fault."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tests.faults.chaos.words import INFO, Act, Call, Change, Injection

_NS = 1_000_000_000


def injections(act: Act, fault: str, about: str | None = None) -> list[Injection]:
    return [
        each for each in act.injections
        if each.fault == fault and about in (None, each.about)
    ]


def ending(act: Act, shot: Injection) -> int:
    """When it was healed, at the latest with the act."""
    return shot.ended if shot.ended is not None else act.ended


def lost_leases(act: Act, shot: Injection, owner: str, after_s: float) -> list[Change]:
    """Leases of ``owner`` that were taken back while it lasted, or within that time after."""
    first = shot.began // 1000 + act.offset_us
    last = (ending(act, shot) + int(after_s * _NS)) // 1000 + act.offset_us
    return [
        change for change in act.changes
        if first <= change.at <= last and _lost(change) and change.old is not None
        and belongs(str(change.old.get("pid")), owner)
    ]


def belongs(pid: str, worker: str) -> bool:
    """Whether this owner of leases is that worker; each start of it has a new ending."""
    return pid == worker or pid.startswith(f"{worker}.")


def _lost(change: Change) -> bool:
    """Losses are counted on the task when the database takes a lease back."""
    if change.old is None or change.new is None:
        return False
    return int(change.new.get("losses") or 0) > int(change.old.get("losses") or 0)


def answered_with(act: Act, sqlstates: Collection[str]) -> list[Call]:
    return [call for call in act.calls if call.sqlstate in sqlstates]


def overlapping(act: Act, shot: Injection, worker: str | None = None) -> Iterator[Call]:
    """The calls (of one worker) that were under way at some moment of it."""
    end = ending(act, shot)
    for call in act.calls:
        unended = call.ended is None or call.ended >= shot.began
        its = worker is None or belongs(call.pid, worker)
        if unended and its and call.began <= end:
            yield call


def held_up(act: Act, shot: Injection, worker: str | None = None) -> list[Call]:
    """Those of them that got no answer, or waited for half of it and more."""
    half = (ending(act, shot) - shot.began) // 2
    return [
        call for call in overlapping(act, shot, worker)
        if call.outcome == INFO or call.ended is None or call.ended - call.began >= half
    ]

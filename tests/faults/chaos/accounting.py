"""What a failover lost: the old primary's commits against the point of the switch.

Nothing here does I/O: it reads what ``pg_waldump`` printed and what a timeline's history
file says. The LSN of a commit is that of the START of its record, as pg_waldump gives it.
The switch is where the last replayed record ended, so it lies between two records: a commit
was kept if it starts before the switch, and lost if it starts there or after.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tests.faults.chaos.words import Change, Loss

_COMMIT = re.compile(
    r"^rmgr: Transaction\s.*\btx:\s*(?P<tx>\d+), lsn: (?P<lsn>[0-9A-F]+/[0-9A-F]+),"
    r".*\bdesc: COMMIT(?:_PREPARED (?P<prepared>\d+):)? ",
    re.MULTILINE,
)
_SWITCH = re.compile(r"^(?P<timeline>\d+)\s+(?P<lsn>[0-9A-Fa-f]+/[0-9A-Fa-f]+)(?:\s|$)")
# How pg_waldump says that the log ends here: what follows was never written, or is what a
# segment held before it was used again. Anything else it stops for is a trouble.
_ENDS = (
    "error in WAL record at",
    "could not find file",
    "could not find a valid record after",
    "could not read from",
)

RESUMED_S = 10.0
"""Longest time from a promotion until the same worker processes are at it again."""

Key = tuple[int, int, str]


def lsn(text: str) -> int:
    """A position in the log as a number, to compare."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def commits(dump: str) -> dict[str, str]:
    """xid -> LSN of each commit in the output of ``pg_waldump --rmgr=Transaction``.

    Subtransactions commit with the transaction that the witness names, and stand for
    nothing. The dump has 32 bits of an xid; a cluster of a run never gets beyond them.
    """
    return {
        found["prepared"] or found["tx"]: found["lsn"] for found in _COMMIT.finditer(dump)
    }


def ended_well(complaint: str) -> bool:
    """Whether pg_waldump stopped because the log was over. It always calls that an error."""
    said = [line for line in complaint.splitlines() if "error:" in line]
    return all(any(end in line for end in _ENDS) for line in said)


@dataclass(frozen=True)
class Switch:
    """Where a timeline was left for the next."""

    timeline: int
    lsn: str


def switches(history: str) -> list[Switch]:
    """The switches that a timeline's ``.history`` file tells of, oldest first.

    The last one is where this timeline itself began. Raises ``ValueError`` for a line that
    is no switch and no comment.
    """
    found = []
    for line in history.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _SWITCH.match(line)
        if match is None:
            raise ValueError(f"no line of a timeline history: {line!r}")
        found.append(Switch(int(match["timeline"]), match["lsn"].upper()))
    return found


def history_file(timeline: int) -> str:
    return f"{timeline:08X}.history"


def first_segment(names: Iterable[str], timeline: int, segment_bytes: int) -> str | None:
    """Where the oldest log of a timeline begins, among the file names of ``pg_wal``."""
    prefix = f"{timeline:08X}"
    found = min(
        (name for name in names if re.fullmatch(prefix + "[0-9A-F]{16}", name)), default=None
    )
    if found is None:
        return None
    return f"{int(found[8:16], 16):X}/{int(found[16:], 16) * segment_bytes:X}"


def key(pos: int, at: int, xid: str) -> Key:
    """What tells a row of the witness from all others, also from those that took its xid or
    its position again after a failover."""
    return pos, at, xid


def lacking(old: Iterable[Key], new: Collection[Key]) -> list[int]:
    """The positions, on the old primary, of the rows that the new one does not have."""
    have = new if isinstance(new, set | frozenset) else set(new)
    return sorted(each[0] for each in old if each not in have)


def lost_xids(loss: Loss) -> set[str]:
    """The transactions that committed on the old primary at the switch or after it."""
    switch = lsn(loss.switch_lsn)
    return {xid for xid, at in loss.commits.items() if lsn(at) >= switch}


def contradictions(loss: Loss) -> list[str]:
    """What must not be, whatever the mode: a row that is gone though its transaction was
    replayed, or that no commit on the old primary explains; workers that are not at it
    again soon after the promotion."""
    switch, told = lsn(loss.switch_lsn), []
    for xid, rows in _by_xid(loss.lost_changes).items():
        where = loss.commits.get(xid)
        if where is None:
            told.append(f"{len(rows)} rows of xid {xid} are gone, and it has no commit record")
        elif lsn(where) < switch:
            told.append(
                f"{len(rows)} rows of xid {xid} are gone: it committed at {where}, "
                f"before the switch at {loss.switch_lsn}"
            )
    if loss.promoted_s is not None and (loss.resumed_s is None or loss.resumed_s >= RESUMED_S):
        took = "never" if loss.resumed_s is None else f"after {loss.resumed_s:.1f} s"
        told.append(f"workers were at work again {took}")
    return told


def _by_xid(changes: Iterable[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(change.xid, []).append(change)
    return found

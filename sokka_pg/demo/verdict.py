"""What the demo found, and whether it all agrees. No I/O."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sokka_pg.demo.table import COUNTED

Row: TypeAlias = dict[str, Any]
SHOWN = 10
"""At most so many names of each kind of trouble."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was gathered, from which all else is worked out."""

    names: list[str]
    rows: list[Row]
    tasks: list[Row]
    lost: list[Row]
    refusals: list[Row]
    plain: list[Row]
    killed: str
    killed_with: dict[str, int]
    frozen: str
    frozen_with: dict[str, int]
    unfenced_refused: bool


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, and what was found."""

    check: str
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class Findings:
    """The facts, ready to be shown or printed as JSON."""

    tasks: dict[str, int]
    rows: Row
    leases_lost: Row
    comparison: Row
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def judge(evidence: Evidence) -> Findings:
    """Work out the facts and check them against each other."""
    tasks = {"created": len(evidence.tasks), "terminated": 0, "failed": 0}
    tasks |= Counter(task["status"] for task in evidence.tasks)
    rows, comparison = _rows(evidence), _comparison(evidence)
    checks = [
        _each_ended(evidence), _one_row_each(evidence, rows), _newest_token(evidence),
        _death(evidence), _awakening(evidence), _guard(evidence), _same(comparison),
    ]
    return Findings(tasks, rows, _losses(evidence), comparison, checks)


def _rows(evidence: Evidence) -> Row:
    seen = Counter(row["name"] for row in evidence.rows)
    wanted = Counter(evidence.names)
    return {
        "count": len(evidence.rows),
        "files_with_exactly_one": sum(seen[name] == 1 for name in evidence.names),
        "repeated": sorted(name for name, count in seen.items() if count > 1)[:SHOWN],
        "missing": sorted((wanted - seen).keys())[:SHOWN],
    }


def _losses(evidence: Evidence) -> Row:
    by = Counter(lost["pid"] for lost in evidence.lost)
    killed, frozen = by[evidence.killed], by[evidence.frozen]
    return {
        "total": by.total(), "by_the_killed": killed, "by_the_frozen": frozen,
        "by_others": by.total() - killed - frozen, "leases": evidence.lost,
    }


def _comparison(evidence: Evidence) -> Row:
    queue, plain = _totals(evidence.rows), _totals(evidence.plain)
    ours: dict[str, list[Row]] = {}
    for row in evidence.rows:
        ours.setdefault(row["name"], []).append(_counts(row))
    differing = [r["name"] for r in evidence.plain if ours.get(r["name"], []) != [_counts(r)]]
    return {
        "queue": queue, "plain": plain, "equal": queue == plain and not differing,
        "differing_files": len(differing), "differing": differing[:SHOWN],
    }


def _counts(row: Row) -> Row:
    return {column: row[column] for column in COUNTED}


def _totals(rows: Iterable[Row]) -> Row:
    """The sums over all files; ``sha256`` is one hash over all names and hashes."""
    rows = sorted(rows, key=lambda row: str(row["name"]))
    sums = {
        column: sum(row[column] or 0 for row in rows)
        for column in ("lines", "functions", "classes", "nodes")
    }
    digest = hashlib.sha256("".join(f"{r['name']} {r['sha256']}\n" for r in rows).encode())
    unparsable = sum(row["error"] is not None for row in rows)
    return {"files": len(rows), **sums, "unparsable": unparsable, "sha256": digest.hexdigest()}


def _each_ended(evidence: Evidence) -> Check:
    names = Counter(task["name"] for task in evidence.tasks)
    ended = sum(task["status"] == "terminated" for task in evidence.tasks)
    ok = names == Counter(evidence.names) and ended == len(evidence.tasks)
    return Check(
        "each file has one task, ended in success", ok, f"{ended} of {len(evidence.names)}"
    )


def _one_row_each(evidence: Evidence, rows: Row) -> Check:
    once, total = rows["files_with_exactly_one"], len(evidence.names)
    return Check(
        "each file has exactly one row", once == total == len(evidence.rows),
        f"{once} of {total}" + _named("more", rows["repeated"])
        + _named("none", rows["missing"]),
    )


def _newest_token(evidence: Evidence) -> Check:
    ended_by = {task["task_id"]: (task["pid"], task["token"]) for task in evidence.tasks}
    others = [
        row["name"] for row in evidence.rows
        if ended_by.get(row["task_id"]) != (row["worker"], row["token"])
    ]
    return Check(
        "each row has the token that ended its task", not others,
        f"{len(evidence.rows) - len(others)} of {len(evidence.rows)}"
        + _named("another", others[:SHOWN]),
    )


def _death(evidence: Evidence) -> Check:
    done, held = _done_by_others(evidence, evidence.killed_with), len(evidence.killed_with)
    return Check(
        "what the killed worker held was done by others",
        bool(held) and done == held, f"{done} of {held}",
    )


def _awakening(evidence: Evidence) -> Check:
    """Tried, refused, nothing written under a refused token, and done all the same."""
    refused = {(refusal["task_id"], refusal["stale_token"]) for refusal in evidence.refusals}
    tried = set(evidence.frozen_with.items())
    written = refused & {(row["task_id"], row["token"]) for row in evidence.rows}
    done = _done_by_others(evidence, evidence.frozen_with)
    return Check(
        "the stale writes of the frozen one were refused",
        bool(tried) and tried <= refused and not written and done == len(tried),
        f"{len(tried & refused)} of {len(tried)}"
        + (f"; {len(written)} rows under a refused token" if written else ""),
    )


def _done_by_others(evidence: Evidence, leases: dict[str, int]) -> int:
    """How many of these leases' tasks ended under a newer token than the lost one."""
    return sum(
        task["token"] > leases[task["task_id"]] for task in evidence.tasks
        if task["task_id"] in leases and task["status"] == "terminated"
    )


def _guard(evidence: Evidence) -> Check:
    found = f"{int(evidence.unfenced_refused)} of 1"
    return Check("a write without a lease was refused", evidence.unfenced_refused, found)


def _same(comparison: Row) -> Check:
    differing = comparison["differing_files"]
    return Check(
        "all counts are those of one plain process", comparison["equal"],
        f"{comparison['plain']['files'] - differing} of {comparison['plain']['files']} files"
        + _named("others", comparison["differing"][:3]),
    )


def _named(what: str, names: list[str]) -> str:
    return f"; {what}: {', '.join(names)}" if names else ""

"""The results as tables in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.peers import targets
from tests.bench.peers.targets import OURS

# Of these less is better.
LESS_IS_BETTER = ("pickup", "log")


def of_peers(found: Mapping[str, Any]) -> str:
    """Medians, ratios to us, settings, and what could not be run."""
    values: Mapping[str, Mapping[str, Sequence[float]]] = found["values"]
    names = [name for name in found["peers"] if name in values]
    measures = list(dict.fromkeys(m for name in names for m in values[name]))
    parts = [
        _targets(found), _medians(values, names, measures), _ratios(values, names, measures),
        _settings(found["peers"]), _failed(found["failed"]),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


def _targets(found: Mapping[str, Any]) -> str:
    rows = [
        [each.name, number(each.value), each.wanted, "reached" if each.reached else "missed"]
        for each in targets.of_peers(found)
    ]
    return "What is hoped for:\n\n" + table(["", "value", "wanted", ""], rows) if rows else ""


def _medians(values: Any, names: Sequence[str], measures: Sequence[str]) -> str:
    rows = [
        [measure, *(number(_median(values, name, measure)) for name in names)]
        for measure in measures
    ]
    return (
        "Medians: tasks a second, milliseconds for pickups, bytes for the log.\n\n"
        + table(["", *names], rows)
    )


def _ratios(values: Any, names: Sequence[str], measures: Sequence[str]) -> str:
    if OURS not in names or len(names) < 2:
        return ""
    rows = []
    for measure in measures:
        ours = _median(values, OURS, measure)
        row = [measure]
        for name in names:
            theirs = _median(values, name, measure)
            if name != OURS:
                row.append(_times(ours, theirs, measure))
        rows.append(row)
    others = [name for name in names if name != OURS]
    return (
        "sokka_pg against each: how many times as much; for pickups and the log, how many times "
        "as little. Above 1 sokka_pg is ahead.\n\n" + table(["", *others], rows)
    )


def _times(ours: float | None, theirs: float | None, measure: str) -> str:
    if not ours or not theirs:
        return ""
    return f"{theirs / ours if measure.startswith(LESS_IS_BETTER) else ours / theirs:.2f}"


def _median(values: Any, name: str, measure: str) -> float | None:
    found = values[name].get(measure)
    return statistics.median(found) if found else None


def _settings(peers: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [
            name, ", ".join(f"{k} {v}" for k, v in about["versions"].items()), about["runtime"],
            about["setting"], about["history"], about["source"],
        ]
        for name, about in peers.items()
    ]  # fmt: skip
    return table(["", "versions", "runs on", "setting", "keeps", "by its own"], rows)


def _failed(failed: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: not run, or not all of it: {why}" for name, why in failed.items())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join([" --- "] * len(head)) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Three figures that count, thousands set apart."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"

"""What is hoped for beside other queues."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sokka_pg.bench.figures import Ratio, at_least, at_most

OURS = "sokka_pg"
_DRAIN, _BULK = "drain, 1 process", "enqueue in bulk"
_LOG = "log, enqueue in bulk to end, bytes per task"
_PINNED = "pinned, last fifth / first"
_PICKUPS = tuple(f"pickup {state}, p{n}" for state in ("idle", "at half load") for n in (50, 99))

Medians = Mapping[str, Mapping[str, float]]


def of_peers(found: Mapping[str, Any]) -> list[Ratio]:
    """Ours against the best of others, for each measure of which something is hoped."""
    medians = {
        name: {measure: statistics.median(values) for measure, values in measures.items()}
        for name, measures in found["values"].items()
    }
    about = found["peers"]
    python = [name for name in about if about[name]["runtime"].startswith("Python")]
    keeping = [name for name in about if not about[name]["history"].startswith("none")]
    ratios = [
        _against(medians, _DRAIN, "the best Python peer", python, max, at_least, 2.0),
        _against(medians, _DRAIN, "the best peer", list(about), max, at_least, 1.0),
        _against(medians, _BULK, "the best peer", list(about), max, at_least, 1.5),
        *(_against(medians, each, "the best peer", list(about), min, at_most, 1.0)
          for each in _PICKUPS),
        _against(medians, _LOG, "the leanest that keeps history", keeping, min, at_most, 1.0),
    ]  # fmt: skip
    if _PINNED in medians.get(OURS, {}):
        ratios.append(at_least("peers", f"{OURS}: {_PINNED}", medians[OURS][_PINNED], 0.9))
    return [ratio for ratio in ratios if ratio is not None]


def _against(
    medians: Medians, measure: str, whom: str, names: Sequence[str],
    best: Callable[..., str], judge: Callable[[str, str, float, float], Ratio], limit: float,
) -> Ratio | None:
    ours = medians.get(OURS, {}).get(measure)
    others = {
        name: medians[name][measure] for name in names
        if name != OURS and measure in medians.get(name, {})
    }  # fmt: skip
    if not ours or not others:
        return None
    name = best(others, key=lambda each: others[each])
    return judge("peers", f"{measure}: {OURS} / {whom} ({name})", ours / others[name], limit)

"""Plots as SVG text, to stand in a page by themselves."""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Colours that stay apart on paper and for most eyes.
COLOURS = (
    "#1b6ca8", "#c2571a", "#3b8b4f", "#8a4fa3", "#807d78", "#b8a13a", "#2a9d8f", "#a13d4b",
    "#1f1f1f",
)  # fmt: skip
_OURS = "sokka_pg"


def available() -> bool:
    """Whether plots can be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def _drawn(draw: Callable[[Any], None], height: float) -> str:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    # Text stays text, and the same figures give the same file.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 9,
                "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
    with pyplot.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(8, height), layout="constrained")
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def bars(title: str, unit: str, rows: Sequence[tuple[str, float, float, float]]) -> str:
    """One bar for each (name, median, lowest, highest)."""

    def draw(axes: Any) -> None:
        places = range(len(rows))[::-1]
        axes.barh(
            list(places), [row[1] for row in rows], height=0.65,
            color=[COLOURS[0] if _ours(row[0]) else COLOURS[4] for row in rows],
            xerr=[[row[1] - row[2] for row in rows], [row[3] - row[1] for row in rows]],
            error_kw={"lw": 0.8, "capsize": 2},
        )  # fmt: skip
        axes.set_yticks(list(places), [row[0] for row in rows])
        axes.set_xlabel(unit)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_title(title, loc="left")

    return _drawn(draw, 0.9 + 0.27 * len(rows))


def _ours(name: str) -> bool:
    return not re.match(r"bare|COPY|an order and a bare", name)


def lines(
    title: str, x_label: str, y_label: str, curves: Sequence[tuple[str, Any, Any]],
    logarithmic: bool = False,
) -> str:
    """One line for each (name, x, y)."""

    def draw(axes: Any) -> None:
        points = curves[0][1]
        few = len(points) < 9
        for (name, x, y), colour in zip(curves, COLOURS * 3, strict=False):
            axes.plot(x, y, label=name, color=colour, lw=1.5, marker="o" if few else None)
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(lambda value, _: f"{value:g}")
        elif few:
            axes.set_xticks(points)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
        axes.set_ylim(0, 1.06 * max(max(y) for _, _, y in curves))
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_title(title, loc="left")
        # Beside the lines: many of them leave it no room.
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))

    return _drawn(draw, 3.2)


def of_bench(found: Mapping[str, Any]) -> dict[str, str]:
    """All plots of a run of the bench, by name."""
    plots: dict[str, str] = {}
    for part, name, unit in _bar_groups(found["figures"]):
        rows = [
            (f["name"], f["median"], f["low"], f["high"]) for f in found["figures"]
            if f["part"] == part and f["unit"] == unit
        ]  # fmt: skip
        plots[name] = bars(part, unit, rows)
    for part in dict.fromkeys(curve["part"] for curve in found["curves"]):
        chosen = [curve for curve in found["curves"] if curve["part"] == part]
        plots[f"{_slug(part)}-curves"] = lines(
            part, chosen[0]["x_label"], chosen[0]["y_label"],
            [(curve["name"], curve["x"], curve["y"]) for curve in chosen],
            logarithmic=part == "latency",
        )  # fmt: skip
    return plots


def _bar_groups(figures: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    rates = ("tasks/s", "attempts/s", "ms")
    pairs = dict.fromkeys((f["part"], f["unit"]) for f in figures if f["unit"] in rates)
    return [(p, _slug(p) if u != "ms" else f"{_slug(p)}-ms", u) for p, u in pairs if p != "pinned"]


def of_peers(found: Mapping[str, Any]) -> dict[str, str]:
    """All plots of a run of the peers, by name."""
    plots: dict[str, str] = {}
    values = found["values"]
    for measure in dict.fromkeys(m for name in values for m in values[name]):
        rows = [
            (name, statistics.median(v), min(v), max(v))
            for name in values if (v := values[name].get(measure))
        ]  # fmt: skip
        unit = _unit(measure)
        if not measure.endswith(("p95", "last fifth")):
            plots[f"peers-{_slug(measure)}"] = peer_bars(measure, unit, rows)
    pinned = [
        (f"{name}, {runs[0]['done']:,} tasks", list(range(1, 6)), runs[0]["fifths"])
        for name, runs in found["pinned"].items()
    ]
    if pinned:
        plots["peers-pinned"] = lines(
            "under an old snapshot", "fifth of the tasks", "tasks/s", pinned
        )
    return plots


def _unit(measure: str) -> str:
    if measure.startswith("pickup"):
        return "ms"
    if measure.startswith("log"):
        return "bytes"
    return "" if "/" in measure else "tasks/s"


def peer_bars(title: str, unit: str, rows: Sequence[tuple[str, float, float, float]]) -> str:
    marked = [(name if name == _OURS else f"bare {name}", *rest) for name, *rest in rows]
    drawn = bars(title, unit, marked)  # type: ignore[arg-type]
    return drawn.replace("bare ", "")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")

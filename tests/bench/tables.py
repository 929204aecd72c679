"""The results of the bench as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.peers.tables import number, table


def parts(found: Mapping[str, Any]) -> list[str]:
    """The parts that were run, in order."""
    return list(dict.fromkeys(f["part"] for f in (*found["figures"], *found["ratios"])))


def figures(found: Mapping[str, Any], part: str) -> tuple[list[str], list[list[str]]]:
    rows = [
        [f["name"], number(f["median"]), number(f["low"]), number(f["high"]), f["unit"],
         str(f["runs"])]
        for f in found["figures"] if f["part"] == part
    ]  # fmt: skip
    return ["", "median", "lowest", "highest", "unit", "runs"], rows


def ratios(found: Mapping[str, Any], part: str | None = None) -> tuple[list[str], list[list[str]]]:
    rows = [
        [r["name"], number(r["value"]), r["wanted"].replace("<", "at most ").replace(
            ">", "at least ").replace("=", "").replace("  ", " "), verdict(r)]
        for r in found["ratios"] if part in (None, r["part"])
    ]  # fmt: skip
    return ["", "value", "wanted", ""], rows


def targets(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Only what something is hoped of."""
    head, rows = ratios(found)
    return head, [row for row in rows if row[2]]


def verdict(ratio: Mapping[str, Any]) -> str:
    if not ratio["wanted"]:
        return ""
    return "reached" if ratio["reached"] else "missed"


def environment(found: Mapping[str, Any]) -> list[list[str]]:
    """Where the figures come from."""
    env = found["environment"]
    server = env["server"]
    libraries = {name: v for name, v in env["libraries"].items() if v}
    return [
        ["machine", f"{env['cpus']} processors ({env['cpu']}), {env['memory_gib']} GiB"],
        ["kernel", env["kernel"]],
        *_memory(env.get("a_page_us")),
        ["server", f"PostgreSQL {server['server_version']}, "
                   + ", ".join(f"{k} {v}" for k, v in env["settings"].items())],
        ["client", f"Python {env['python']}, "
                   + ", ".join(f"{k} {v}" for k, v in libraries.items())],
        ["commit", env["commit"]],
        ["load of the machine before", str(env["load_before"])],
        ["plan", ", ".join(f"{k} {v}" for k, v in env["plan"].items())],
    ]  # fmt: skip


def _memory(page: Mapping[str, float] | None) -> list[list[str]]:
    if page is None:  # a run from before it was looked at
        return []
    return [[
        "a page of memory",
        f"{page['at_once']} us; {page['after_a_second']} when nobody touched it for a second",
    ]]  # fmt: skip


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(head, rows)

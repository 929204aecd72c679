"""A page with everything of one run in it: tables and plots, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tests.bench import plots, tables
from tests.bench.peers import tables as peer_tables

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px }
td, th { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.reached { color: #2d7a3e } .missed { color: #b3261e; font-weight: 600 }
svg { max-width: 100%; height: auto }
"""


def of_bench(found: Mapping[str, Any]) -> str:
    drawn = plots.of_bench(found) if plots.available() else {}
    body = [_table(["", ""], tables.environment(found))]
    body.append("<h2>What is hoped for</h2>" + _table(*tables.targets(found)))
    for part in tables.parts(found):
        body.append(f"<h2>{escape(part)}</h2>")
        slug = part.replace(" ", "-")
        body += [svg for name, svg in drawn.items() if name in _names(slug)]
        body.append(_table(*tables.figures(found, part)))
        head, rows = tables.ratios(found, part)
        body.append(_table(head, rows) if rows else "")
    left_out = [[part, why] for part, why in {**found["left_out"], **found["failed"]}.items()]
    body.append("<h2>Left out</h2>" + _table(["", "why"], left_out) if left_out else "")
    return _page("Bench", body)


def _names(slug: str) -> tuple[str, ...]:
    return slug, f"{slug}-ms", f"{slug}-curves"


def of_peers(found: Mapping[str, Any]) -> str:
    drawn = plots.of_peers(found) if plots.available() else {}
    body = [_table(["", ""], tables.environment(found))]
    for block in peer_tables.of_peers(found).split("\n\n"):
        body.append(_from_markdown(block))
    return _page("Peers", [*body, *drawn.values()])


def _from_markdown(block: str) -> str:
    if not block.startswith("|"):
        return f"<p>{escape(block)}</p>"
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
    return _table(lines[0], lines[2:])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(text: str) -> str:
    kind = text if text in ("reached", "missed") else "n" if text[:1].isdigit() else ""
    return f'<td class="{kind}">{escape(text)}</td>'


def _page(title: str, body: Sequence[str]) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{''.join(body)}</body></html>\n"
    )

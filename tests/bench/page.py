"""``python -m tests.bench.page``: put the results of runs into docs/performance.md.

``.bench/bench.json``, ``.bench/peers.json`` and, of the long plan, ``.bench/long/bench.json``,
as far as they are there. Tables go between markers such as ``<!-- bench:floor -->`` and
``<!-- /bench:floor -->``, plots and the JSON beside the page. Whatever stands outside the
markers stays as it is; so do, after a run of some parts, the tables of the others and what
is said of all.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench import plots, tables
from tests.bench.__main__ import OUTPUT
from tests.bench.host import ROOT
from tests.bench.parts import PARTS
from tests.bench.peers import tables as peer_tables

PAGE = ROOT / "docs" / "performance.md"
OF_ALL = ("environment", "targets")
_BLOCK = re.compile(r"(<!-- (bench|peers|long):([\w-]+) -->\n).*?(<!-- /\2:\3 -->)", re.DOTALL)


def blocks_of_bench(found: Mapping[str, Any], folder: str) -> dict[str, str]:
    """What belongs between the markers ``bench:…``."""
    blocks = {
        "environment": tables.markdown(["", ""], tables.environment(found)),
        "targets": tables.markdown(*tables.targets(found)),
    }
    drawn = plots.of_bench(found) if plots.available() else {}
    for part in tables.parts(found):
        slug = part.replace(" ", "-")
        images = [
            f"![{part}]({folder}/{name}.svg)"
            for name in (slug, f"{slug}-ms", f"{slug}-curves") if name in drawn
        ]  # fmt: skip
        _, ratios = tables.ratios(found, part)
        texts = [*images, tables.markdown(*tables.figures(found, part))]
        if ratios:
            texts.append(tables.markdown(*tables.ratios(found, part)))
        blocks[slug] = "\n\n".join(texts)
    return blocks


def is_whole(found: Mapping[str, Any]) -> bool:
    """Whether a run had all parts."""
    return set(PARTS) <= set(found.get("seconds", PARTS))


def blocks_of_peers(found: Mapping[str, Any], folder: str) -> dict[str, str]:
    """What belongs between the markers ``peers:…``."""
    drawn = plots.of_peers(found) if plots.available() else {}
    images = [f"![{name}]({folder}/{name}.svg)" for name in drawn]
    return {
        "environment": tables.markdown(["", ""], tables.environment(found)),
        "tables": peer_tables.of_peers(found).rstrip(), "plots": "\n\n".join(images),
    }  # fmt: skip


def filled(text: str, kind: str, blocks: Mapping[str, str]) -> str:
    """The page with its blocks of a kind replaced; others stay."""

    def block(match: re.Match[str]) -> str:
        begin, of, name, end = match.groups()
        if of != kind or name not in blocks:
            return match[0]
        return f"{begin}\n{blocks[name]}\n\n{end}"

    return _BLOCK.sub(block, text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("--from", dest="results", type=Path, default=OUTPUT)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args(arguments)
    beside = given.page.with_suffix("")
    beside.mkdir(exist_ok=True)
    text = given.page.read_text(encoding="utf-8")
    for kind, name, blocks, draw in (
        ("bench", "bench.json", blocks_of_bench, plots.of_bench),
        ("peers", "peers.json", blocks_of_peers, plots.of_peers),
        ("long", "long/bench.json", blocks_of_bench, plots.of_bench),
    ):
        file = given.results / name
        if not file.exists():
            continue
        found = json.loads(file.read_text(encoding="utf-8"))
        below = beside / "long" if kind == "long" else beside
        below.mkdir(exist_ok=True)
        some = kind == "bench" and not is_whole(found)
        made = blocks(found, below.relative_to(beside.parent).as_posix())
        if some:
            made = {slug: block for slug, block in made.items() if slug not in OF_ALL}
        text = filled(text, kind, made)
        for drawn, svg in draw(found).items() if plots.available() else ():
            (below / f"{drawn}.svg").write_text(svg, encoding="utf-8")
        named = below / ("some-parts.json" if some else file.name)
        named.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    given.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

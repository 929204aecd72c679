"""What docs/proof.md says of the failures of others has tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.docs.blocks import ROOT

_TITLE = "## Failures of others"
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_REPORT = re.compile(r"^[\w.-]+/[\w.-]+(#|@)?\S*$")


def rows() -> list[list[str]]:
    """The cells of each row of the table."""
    text = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    section = text.partition(f"{_TITLE}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_failure_has_tests_that_exist() -> None:
    found = rows()
    assert len(found) >= 40
    for what, right, reported, tests in found:
        named = _TEST.findall(tests)
        assert named, what
        assert right and reported, what
        for path, name in named:
            assert (ROOT / path).is_file() and name in functions_of(path), f"{path}::{name}"


def test_every_failure_says_where_it_was_reported() -> None:
    for what, _, reported, _ in rows():
        for reference in reported.split(", "):
            assert _REPORT.match(reference) or reference == "ours", f"{what}: {reference}"

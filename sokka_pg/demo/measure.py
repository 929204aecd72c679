"""What is counted of a source file. Standard library only."""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Measurement:
    """The counts of one file. ``error`` is the kind of error where it cannot be
    read or parsed: then what could not be counted is None."""

    sha256: str | None = None
    lines: int | None = None
    functions: int | None = None
    classes: int | None = None
    nodes: int | None = None
    error: str | None = None


def measure(path: Path) -> Measurement:
    """Read, hash, parse and count. Never raises: a file that is no Python of this
    version (test data, odd encodings) is a measurement too."""
    try:
        source = path.read_bytes()
    except OSError as error:
        return Measurement(error=type(error).__name__)
    sha256, lines = hashlib.sha256(source).hexdigest(), len(source.splitlines())
    try:
        functions, classes, nodes = _count(ast.parse(source))
    # The parser is documented to raise anything from SyntaxError to MemoryError.
    except Exception as error:
        return Measurement(sha256, lines, error=type(error).__name__)
    return Measurement(sha256, lines, functions, classes, nodes)


def _count(tree: ast.AST) -> tuple[int, int, int]:
    functions = classes = nodes = 0
    for node in ast.walk(tree):
        nodes += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
        elif isinstance(node, ast.ClassDef):
            classes += 1
    return functions, classes, nodes

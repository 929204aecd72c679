"""A database with the schema, the witness over it, and perhaps a defect in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from sokka_pg import schema

from .history import Change

HERE = Path(__file__).parent
_FUNCTION = re.compile(
    r"^create function sokka\.\w+\(.*?^(?:\$\$|\$\w*\$);?$", re.MULTILINE | re.DOTALL
)
# The limit of a wait is the simulator's to decide, whatever the machine is busy with.
_PATIENCE = re.compile(r"set lock_timeout = '3s'")


def install(connection: psycopg.Connection) -> None:
    """Make the loaded schema a stage: bounded by no real time, on a virtual clock, seen by
    the witness."""
    with connection.transaction():
        for text in _files().values():
            for statement in _functions(text):
                if _PATIENCE.search(statement):
                    connection.execute(schema.replacing(_patient(statement)).encode())
        connection.execute((HERE / "witness.sql").read_bytes())
        # The first grant and the first sweep of a database leave marks: before any round.
        connection.execute("select sokka.trust_tokens()")
        connection.execute("select sokka.prepare_partitions()")


@contextmanager
def defect(connection: psycopg.Connection, changed: Callable[[str, str], str]) -> Iterator[None]:
    """Have the functions that ``changed`` makes of the files of sql/ instead of the right
    ones, within a ``with``."""
    pairs = [
        pair
        for name, text in _files().items()
        for pair in zip(_functions(text), _functions(changed(name, text)), strict=True)
        if pair[0] != pair[1]
    ]
    if not pairs:
        raise LookupError("the defect changes no function")
    _load(connection, (wrong for _, wrong in pairs))
    try:
        yield
    finally:
        _load(connection, (right for right, _ in pairs))


def _load(connection: psycopg.Connection, functions: Iterable[str]) -> None:
    for text in functions:
        connection.execute(schema.replacing(_patient(text)).encode())


def _files() -> dict[str, str]:
    root = schema.sql_root()
    return {
        file.relative_to(root).as_posix(): file.read_text(encoding="utf-8")
        for file in schema.manifest(root)
    }


def _functions(text: str) -> list[str]:
    return _FUNCTION.findall(text)


def _patient(text: str) -> str:
    return _PATIENCE.sub("set lock_timeout = '0'", text)


def read(connection: psycopg.Connection) -> list[Change]:
    """What the witness has seen, in order."""
    rows = connection.execute(
        "select json_agg(json_build_array(pos, clock, xid, backend, call, source, old, new)"
        " order by pos)::text from proof.changes"
    ).fetchone()
    return [Change(*row) for row in json.loads(rows[0] or "[]")] if rows else []

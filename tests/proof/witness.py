"""A database with the schema, the witness over it, and perhaps a defect in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
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


def install(url: str, changed: Callable[[str, str], str] | None = None) -> None:
    """Make the loaded schema a stage: bounded by no real time, on a virtual clock, seen by
    the witness. ``changed`` turns the text of a file of sql/ into that of a defect."""
    root = schema.sql_root()
    with psycopg.connect(url) as connection:
        for file in schema.manifest(root):
            name = file.relative_to(root).as_posix()
            text = file.read_text(encoding="utf-8")
            rendered = changed(name, text) if changed else text
            for statement in _replaced(rendered, text):
                connection.execute(statement.encode())
        connection.execute((HERE / "witness.sql").read_bytes())
        # The first grant and the first sweep of a database leave marks: before any round.
        connection.execute("select sokka.trust_tokens()")
        connection.execute("select sokka.prepare_partitions()")


def _replaced(text: str, loaded: str) -> Iterable[str]:
    """The functions whose text is not the one that is loaded."""
    patient = _PATIENCE.sub("set lock_timeout = '0'", text)
    for found in _FUNCTION.finditer(patient):
        if found.group() not in loaded:
            yield schema.replacing(found.group())


def read(connection: psycopg.Connection) -> list[Change]:
    """What the witness has seen, in order."""
    rows = connection.execute(
        "select json_agg(json_build_array(pos, clock, xid, backend, call, source, old, new)"
        " order by pos)::text from proof.changes"
    ).fetchone()
    return [Change(*row) for row in json.loads(rows[0] or "[]")] if rows else []

"""The witness in a database: put there, and asked what it has seen."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.faults.chaos.words import Change

SQL = Path(__file__).parents[1] / "witness.sql"
# Rows of one answer, and of one document: its keys become one object each.
PIECE = 5_000
HEAVY = ("data", "checkpoint", "progress")
# Few different values, in very many images.
SHARED = ("status", "topic", "kind", "pid", "code", "parent")
# The sequence is drawn while the row is locked: for one row the order of ``pos`` is the
# order of its changes.
_READ = """select json_build_array(
                  pos, at, began, xid, backend, lsn, function, source, old, new)::text
             from chaos.changes where %(of)s::bigint[] is null or pos = any (%(of)s) order by pos"""


def install(connection: psycopg.Connection[Any]) -> None:
    """Have every change seen from now on. To be called again after a migration.

    Needs a superuser, or the owner of the schema."""
    with connection.transaction():
        connection.execute(SQL.read_bytes())


def guard(connection: psycopg.Connection[Any], table: str) -> None:
    """See the handlers' guarded table, too: it has columns task_id and token."""
    with connection.transaction():
        connection.execute("select chaos.guard(%s::regclass)", (table,))


def read(
    connection: psycopg.Connection[Any], positions: Sequence[int] | None = None
) -> list[Change]:
    """What it has seen, in order; of these positions only, if there are any given."""
    return list(rebuilt(_rows(connection, positions)))


def keep(connection: psycopg.Connection[Any], path: Path) -> int:
    """Write what it has seen to a file, as it keeps it; how many changes."""
    written = 0
    with gzip.open(path, "wt", compresslevel=3, encoding="utf-8") as file:
        for texts in _texts(connection, None):
            file.writelines(text.replace("\n", " ") + "\n" for text in texts)
            written += len(texts)
    return written


def kept(path: Path) -> list[Change]:
    """The changes of such a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(rebuilt(json.loads(line) for line in file))


def _rows(
    connection: psycopg.Connection[Any], positions: Sequence[int] | None
) -> Iterator[list[Any]]:
    for texts in _texts(connection, positions):
        yield from json.loads("[" + ",".join(texts) + "]")


def _texts(
    connection: psycopg.Connection[Any], positions: Sequence[int] | None
) -> Iterator[list[str]]:
    with connection.transaction(), connection.cursor(name="chaos_read") as cursor:
        cursor.execute(_READ, {"of": None if positions is None else list(positions)})
        while rows := cursor.fetchmany(PIECE):
            yield [row[0] for row in rows]


def rebuilt(rows: Iterable[list[Any]]) -> Iterator[Change]:
    """Changes from rows as the witness keeps them. What an update left as it was is taken
    from the change before; where a row is as the last change left it, both share one image.
    """
    last: dict[tuple[str, str], dict[str, Any]] = {}
    words: dict[str, str] = {}
    for pos, at, began, xid, backend, lsn, function, source, old, new in rows:
        for image in (old, new):
            if image is not None:
                for name in SHARED:
                    word = image.get(name)
                    if word is not None:
                        image[name] = words.setdefault(word, word)
        key = (source, str((new or old)["id"]))
        if source in ("tasks", "joins", "locks"):
            before = last.pop(key, None)
            old = _old(old, before)
            if new is not None:
                new = _new(new, old)
                last[key] = new
        yield Change(
            pos, at, words.setdefault(xid, xid), backend, lsn, words.setdefault(function, function),
            words.setdefault(source, source), old, new, began,
        )  # fmt: skip


def _old(old: dict[str, Any] | None, before: dict[str, Any] | None) -> dict[str, Any] | None:
    if old is None or before is None:
        return old
    for name in HEAVY:
        if name in before and name not in old:
            old[name] = before[name]
    return before if old == before else old


def _new(new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    for name in HEAVY if old is not None else ():
        if old is not None and name in old and name not in new:
            new[name] = old[name]
    return new

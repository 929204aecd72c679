"""All checks, asked one by one on one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import psycopg
from psycopg.rows import TupleRow, dict_row

from sokka_pg import migrate
from sokka_pg.doctor.findings import Check, Finding, Level, Row, some
from sokka_pg.doctor.joins import JOINS_AND_STREAMS
from sokka_pg.doctor.queue import GUARDS, LEASES_AND_SUCH
from sokka_pg.doctor.schedules import SCHEDULES
from sokka_pg.doctor.server import NOTIFICATIONS, SERVER
from sokka_pg.doctor.snapshots import SNAPSHOTS
from sokka_pg.doctor.storage import STORAGE
from sokka_pg.errors import DatabaseUnavailable, SokkaError
from sokka_pg.schema import render
from sokka_pg.translate import from_psycopg, translated

OF_THE_SERVER: tuple[Check, ...] = (*SERVER, *SNAPSHOTS)
OF_THE_QUEUE: tuple[Check, ...] = (
    *GUARDS, *LEASES_AND_SUCH, *JOINS_AND_STREAMS, *SCHEDULES, *STORAGE, NOTIFICATIONS,
)  # fmt: skip
SCHEMA_WHY = "the functions of another version, or changed ones, break what this version promises"
# Local to a transaction: behind a pooler the session is not ours to set.
_LIMITS = (
    "set transaction read only",
    "set local statement_timeout = '10s'",
    "set local lock_timeout = '2s'",
)


def examine(
    connection: psycopg.Connection[TupleRow],
    schema: str,
    compare: Callable[[], migrate.Check],
    on_check: Callable[[str], None] = lambda name: None,
) -> Iterator[Finding]:
    """The findings, as they come. ``compare`` says how the schema stands;
    ``on_check`` is told what is looked at next.

    Where the schema is not there, what needs it is left out. Raises
    DatabaseUnavailable when the connection breaks.
    """
    yield from _all_of(OF_THE_SERVER, connection, schema, on_check)
    on_check("schema")
    found = list(schema_findings(_compared(compare)))
    yield from found
    if _installed(connection, schema):
        yield from _all_of(OF_THE_QUEUE, connection, schema, on_check)


def _all_of(
    checks: Sequence[Check],
    connection: psycopg.Connection[TupleRow],
    schema: str,
    on_check: Callable[[str], None],
) -> Iterator[Finding]:
    for check in checks:
        on_check(check.name)
        yield from _asked(check, connection, schema)


def _asked(
    check: Check, connection: psycopg.Connection[TupleRow], schema: str
) -> list[Finding]:
    values = {"announced_pid": connection.info.backend_pid}
    query = render(check.query, schema).encode()
    try:
        with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
            for limit in _LIMITS:
                cursor.execute(limit)
            rows: list[Row] = list(cursor.execute(query, values))
    except psycopg.Error as error:
        found = from_psycopg(error)
        if isinstance(found, DatabaseUnavailable):
            raise found from error
        advice = "run it as the owner of the schema, with pg_read_all_stats"
        return [
            Finding(
                check.name, Level.WARN, f"could not look: {found.message}", check.why, advice
            )
        ]
    return check.findings(rows)


def _compared(compare: Callable[[], migrate.Check]) -> migrate.Check | SokkaError:
    try:
        return compare()
    except DatabaseUnavailable:
        raise
    except SokkaError as error:
        return error


def schema_findings(found: migrate.Check | SokkaError) -> Iterator[Finding]:
    """What the comparison of the schema with this version's SQL says."""
    if isinstance(found, SokkaError):
        yield _of_schema(
            Level.WARN, f"could not be compared: {found.message}",
            "on the primary, as a role that may create a schema: sokka migrate check",
        )  # fmt: skip
    elif found.current is None:
        yield _of_schema(
            Level.FAIL, f"nothing is installed in schema {found.schema}", "sokka migrate"
        )
    elif found.current != found.head:
        yield _of_schema(
            Level.FAIL, f"at revision {found.current}, this version needs {found.head}",
            "sokka migrate",
        )  # fmt: skip
    elif found.drift is None:
        yield _of_schema(
            Level.WARN, f"at {found.head}; not compared: this role may create no scratch schema",
            "run it once as a role that may create a schema in this database",
        )  # fmt: skip
    else:
        yield from _drift(found.head, found.drift)


def _drift(head: str, drift: Sequence[str]) -> Iterator[Finding]:
    ours = [line for line in drift if not line.startswith("not ours: ")]
    others = [line.removeprefix("not ours: ") for line in drift if line.startswith("not ours: ")]
    if ours:
        yield _of_schema(
            Level.FAIL, f"at {head}, but changed by hand: {some(ours)}",
            "sokka migrate check names all; restore them from the output of sokka migrate --sql",
        )  # fmt: skip
    if others:
        yield _of_schema(
            Level.WARN, f"objects of others stand in it: {some(others)}",
            "move them to a schema of their own: a later revision may need their names",
        )  # fmt: skip
    if not drift:
        yield _of_schema(Level.OK, f"at {head}, the newest, and as that revision made it", "")


def _of_schema(level: Level, what: str, advice: str) -> Finding:
    return Finding("schema", level, what, SCHEMA_WHY, advice)


def _installed(connection: psycopg.Connection[TupleRow], schema: str) -> bool:
    # By the catalogue: to_regclass refuses a role that may not use the schema.
    query = """
        select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                        where n.nspname = %s and c.relname = 'tasks')
    """
    with translated():
        row = connection.execute(query, (schema,)).fetchone()
    return row is not None and bool(row[0])

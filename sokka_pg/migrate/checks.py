"""Questions about a schema, and the fence that is installed alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

import psycopg
from psycopg.rows import TupleRow

from sokka_pg import catalogue
from sokka_pg import schema as sql_files
from sokka_pg.migrate import scripts
from sokka_pg.migrate.runs import connect, named_errors, revision_of


@dataclass(frozen=True, slots=True)
class Check:
    """Whether the schema is what this version of sokka_pg needs.

    ``drift`` lists objects that differ from what the SQL of this version makes,
    and is None where that was not compared (another revision; or the role may
    not create the scratch schema that the comparison needs).
    """

    schema: str
    current: str | None
    head: str
    drift: tuple[str, ...] | None

    @property
    def ok(self) -> bool:
        """True when the schema is at head and no object of it is known to differ."""
        return self.current == self.head and not self.drift


def current(url: str, schema: str = sql_files.DEFAULT) -> str | None:
    """The revision that ``schema`` is at; None where nothing is installed."""
    sql_files.check_name(schema)
    with named_errors(), connect(url, autocommit=True) as connection:
        return revision_of(connection, schema)


def check(url: str, schema: str = sql_files.DEFAULT) -> Check:
    """Compare ``schema`` with what this version of sokka_pg makes; changes nothing."""
    sql_files.check_name(schema)
    head = scripts.revision("head")
    with named_errors(), connect(url, autocommit=True) as connection:
        found = revision_of(connection, schema)
        drift = _drift(connection, schema) if found == head else None
    return Check(schema, found, head, drift)


def fence_only(url: str, schema: str = sql_files.DEFAULT) -> bool:
    """Install ``advance_fence`` alone, for a database that has no queue.

    True if it was installed, False if the schema had it already.
    """
    sql_files.check_name(schema)
    with named_errors(), connect(url) as connection:
        connection.execute("set transaction isolation level read committed")
        connection.execute(
            f"select pg_advisory_xact_lock({scripts.advisory_key(schema)})".encode()
        )
        there = connection.execute(
            "select from pg_catalog.pg_proc "
            "where pronamespace = to_regnamespace(%s) and proname = 'advance_fence'",
            (schema,),
        ).fetchone()
        if there is None:
            sql_files.load(connection, schema, sql_files.FENCE)
        return there is None


def _drift(connection: psycopg.Connection[TupleRow], schema: str) -> tuple[str, ...] | None:
    """Load this version's SQL beside the schema, compare, and roll back."""
    scratch = f"sokka_scratch_{random.getrandbits(64):016x}"
    try:
        with connection.transaction(force_rollback=True):
            sql_files.load(connection, scratch)
            expected = catalogue.read(connection, scratch, called=schema)
            actual = catalogue.read(connection, schema)
    except psycopg.errors.InsufficientPrivilege:
        return None
    return tuple(catalogue.differences(expected, actual))

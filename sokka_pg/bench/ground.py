"""The ground a bench stands on: a scratch schema of its own, gone at the end."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import sql

from sokka_pg import calls, schema
from sokka_pg.calls import Call
from sokka_pg.connections import ConnectionOptions, connect_arguments
from sokka_pg.connections.sending import send
from sokka_pg.errors import DatabaseUnavailable
from sokka_pg.translate import from_psycopg, translated

T = TypeVar("T")

PREFIX = "sokka_bench_"
DATA: dict[str, Any] = {"to": "someone@example.org", "order": 12345}
BULK = 1_000
_OPTIONS = ConnectionOptions(application_name="sokka bench")


class Line:
    """One connection to one schema, set up as the client sets up its own."""

    def __init__(self, url: str, schema: str) -> None:
        self.url, self.schema = url, schema
        try:
            self.connection = psycopg.connect(**connect_arguments(url, _OPTIONS))
        except psycopg.Error as error:
            raise DatabaseUnavailable(from_psycopg(error, sent=False).message) from error

    def run(self, call: Call[T]) -> T:
        return send(self.connection, call, self.schema, foreign=False)

    def ask(self, query: str, values: Mapping[str, Any] | None = None) -> Any:
        """The first column of the first row; ``sokka`` stands for the schema."""
        with translated():
            found = self.connection.execute(schema.render(query, self.schema).encode(), values)
            row = found.fetchone() if found.description else None
        return row[0] if row else None

    def fill(self, topic: str, count: int) -> None:
        """Enqueue tasks, a thousand to a call."""
        for first in range(0, count, BULK):
            size = min(BULK, count - first)
            self.run(calls.create_tasks([{"topic": topic, "data": DATA}] * size))

    def close(self) -> None:
        self.connection.close()


@contextmanager
def scratch(url: str) -> Iterator[Line]:
    """A line to a fresh schema; what killed benches left behind goes first."""
    name = f"{PREFIX}{secrets.token_hex(6)}"
    owner = Line(url, name)
    try:
        with translated():
            _drop_leavings(owner.connection)
            owner.connection.execute(_LOCK, {"name": name})
            schema.load(owner.connection, name)
        try:
            yield owner
        finally:
            owner.close()
            _drop(url, name)
    finally:
        owner.close()


# The owner's session holds this lock: a schema whose lock is free has no owner.
_LOCK = "select pg_advisory_lock_shared(hashtext('sokka bench'), hashtext(%(name)s))"
_OWNERLESS = """
    select nspname from pg_namespace
     where starts_with(nspname, %(prefix)s) and pg_has_role(nspowner, 'usage')
       and not exists (
           select from pg_locks l
            where l.locktype = 'advisory' and l.objsubid = 2
              and l.classid = hashtext('sokka bench')::bit(32)::bigint::oid
              and l.objid = hashtext(nspname)::bit(32)::bigint::oid)
"""


def _drop_leavings(connection: psycopg.Connection[Any]) -> None:
    for (name,) in connection.execute(_OWNERLESS, {"prefix": PREFIX}).fetchall():
        _drop_on(connection, name)


def _drop(url: str, name: str) -> None:
    # A connection of its own: the bench may have ended in the middle of a statement.
    line = Line(url, name)
    try:
        with translated():
            _drop_on(line.connection, name)
    finally:
        line.close()


def _drop_on(connection: psycopg.Connection[Any], name: str) -> None:
    connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


def pairs(leased: Sequence[Any]) -> list[tuple[UUID, int]]:
    """(task_id, token) of leased tasks."""
    return [(each.task_id, each.token) for each in leased]

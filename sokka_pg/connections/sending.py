"""Sending a call: on our own connections, or in a caller's transaction.

Callers bring psycopg connections (sync and async) and SQLAlchemy's Connection,
Session and their async twins, over any driver: the statement then goes through
``text()`` with every parameter bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar, cast

import psycopg
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, generators, pq
from psycopg.rows import tuple_row

from sokka_pg.calls.statement import Call
from sokka_pg.errors import UsageError
from sokka_pg.translate import from_psycopg, translated, unavailable

T = TypeVar("T")

PSYCOPG_STYLE = "%({})s"
TEXT_STYLE = ":{}"


def send(connection: Connection[Any], call: Call[T], schema: str, *, foreign: bool) -> T:
    """Run a call on a psycopg connection, in whatever transaction it is in."""
    sql = call.statement.text(schema, PSYCOPG_STYLE)
    try:
        with Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(sql, call.params, binary=call.binary and not foreign)
            rows = cursor.fetchall()
    except psycopg.Error as error:
        raise from_psycopg(error) from error
    return call.decode(call.statement.read(rows, foreign=foreign))


async def send_async(
    connection: AsyncConnection[Any], call: Call[T], schema: str, *, foreign: bool
) -> T:
    """Run a call on an async psycopg connection, in whatever transaction it is in."""
    sql = call.statement.text(schema, PSYCOPG_STYLE)
    try:
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(sql, call.params, binary=call.binary and not foreign)
            rows = await cursor.fetchall()
    except psycopg.Error as error:
        raise from_psycopg(error) from error
    return call.decode(call.statement.read(rows, foreign=foreign))


# Where a session cannot be set up, each call runs in an explicit transaction. Its three
# statements travel together: one round trip, where psycopg's transaction() takes three.
_BEGIN = "begin isolation level read committed"


def send_explicit(
    connection: Connection[Any],
    call: Call[T],
    schema: str,
    *,
    foreign: bool = True,
    meanwhile: Iterable[None] = (),
) -> T:
    """Run a call in a READ COMMITTED transaction of its own, on an idle connection in
    autocommit, by default one whose settings nobody knows. ``meanwhile``: what to do, in
    short steps, while the server is at work; it commits without waiting for them."""
    sql = call.statement.text(schema, PSYCOPG_STYLE)
    try:
        with Cursor(connection, row_factory=tuple_row) as cursor:
            with connection.pipeline():
                connection.execute(_BEGIN)
                cursor.execute(sql, call.params, binary=call.binary)
                connection.execute("commit")
                # All of it, before others have their turn: the server begins, and a
                # transaction is over, when nothing of it is left here.
                connection.wait(generators.send(connection.pgconn))
                for _ in meanwhile:
                    pass
            rows = cursor.fetchall()
    except psycopg.Error as error:
        if _failed_inside(connection):
            with suppress(psycopg.Error):
                connection.execute("rollback")
        raise from_psycopg(error) from error
    return call.decode(call.statement.read(rows, foreign=foreign))


async def send_explicit_async(
    connection: AsyncConnection[Any],
    call: Call[T],
    schema: str,
    *,
    foreign: bool = True,
    meanwhile: Iterable[None] = (),
) -> T:
    """The twin of ``send_explicit``; others have their turn between the steps."""
    sql = call.statement.text(schema, PSYCOPG_STYLE)
    try:
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
            async with connection.pipeline():
                await connection.execute(_BEGIN)
                await cursor.execute(sql, call.params, binary=call.binary)
                await connection.execute("commit")
                await connection.wait(generators.send(connection.pgconn))
                for _ in meanwhile:
                    await asyncio.sleep(0)
            rows = await cursor.fetchall()
    except psycopg.Error as error:
        if _failed_inside(connection):
            with suppress(psycopg.Error):
                await connection.execute("rollback")
        raise from_psycopg(error) from error
    return call.decode(call.statement.read(rows, foreign=foreign))


def _failed_inside(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    status = connection.info.transaction_status
    return status in (pq.TransactionStatus.INERROR, pq.TransactionStatus.INTRANS)


def useless_after(error: BaseException) -> bool:
    """Whether the connection that gave this error is to be thrown away, though it
    may still be open: a server gone read-only, say, after a failover."""
    cause = error.__cause__
    return isinstance(cause, psycopg.Error) and unavailable(cause.sqlstate)


# Sending a call on whatever the caller has.

_SYNC = {
    "sqlalchemy.engine.base.Connection",
    "sqlalchemy.orm.session.Session",
    "sqlalchemy.orm.scoping.scoped_session",
}
_ASYNC = {
    "sqlalchemy.ext.asyncio.engine.AsyncConnection",
    "sqlalchemy.ext.asyncio.session.AsyncSession",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
}


def run_on(connection: object, call: Call[T], schema: str) -> T:
    """Run a call in the caller's transaction, on a psycopg ``Connection`` or a
    SQLAlchemy ``Connection`` or ``Session``. Nothing is committed here."""
    if isinstance(connection, Connection):
        return send(connection, call, schema, foreign=True)
    if not _is_one_of(connection, _SYNC):
        raise _not_a_connection(connection, _ASYNC, "AsyncPgTaskStore")
    with translated():
        rows = cast(Any, connection).execute(*_as_text(call, schema)).all()
    return call.decode(call.statement.read(rows, foreign=True))


async def run_on_async(connection: object, call: Call[T], schema: str) -> T:
    """The twin of ``run_on`` for psycopg's ``AsyncConnection`` and SQLAlchemy's
    ``AsyncConnection`` and ``AsyncSession``."""
    if isinstance(connection, AsyncConnection):
        return await send_async(connection, call, schema, foreign=True)
    if not _is_one_of(connection, _ASYNC):
        raise _not_a_connection(connection, _SYNC, "PgTaskStore")
    with translated():
        result = await cast(Any, connection).execute(*_as_text(call, schema))
        rows = result.all()
    return call.decode(call.statement.read(rows, foreign=True))


def _as_text(call: Call[Any], schema: str) -> tuple[Any, dict[str, str | None]]:
    from sqlalchemy import text

    return text(call.statement.text(schema, TEXT_STYLE)), dict(call.params)


def _is_one_of(connection: object, names: set[str]) -> bool:
    """By name along the ancestors, so that SQLAlchemy is imported only by its users."""
    return any(f"{cls.__module__}.{cls.__qualname__}" in names for cls in type(connection).__mro__)


def _not_a_connection(connection: object, other_sort: set[str], other: str) -> UsageError:
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if isinstance(connection, Connection | AsyncConnection) or _is_one_of(connection, other_sort):
        return UsageError(f"connection: a {kind} belongs to {other}")
    return UsageError(
        f"connection: must be a psycopg or SQLAlchemy connection or session, not a {kind}"
    )

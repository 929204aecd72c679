"""A connection on which one call after the other is sent, each prepared once.

psycopg's cursors serve everybody: they plan how to send, wait in turns of the loop, set
up and take down a reader for each wait. Of a worker that was asleep that takes 0.4 ms of
its processor, and this half of it (the caches are cold then; busy, 0.10 and 0.06 ms).
What is underneath stays psycopg's: libpq, the loaders of values, the errors.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import AsyncConnection, errors, pq
from psycopg.adapt import Transformer

from sokka_pg.calls import Call
from sokka_pg.calls.statement import Statement
from sokka_pg.connections.sending import PSYCOPG_STYLE
from sokka_pg.translate import from_psycopg

T = TypeVar("T")

_ARGUMENT = re.compile(r"%\((\w+)\)s")
_GOOD = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK})


class Prepared(NamedTuple):
    """A statement as the session knows it, and its arguments in order."""

    name: bytes
    arguments: tuple[str, ...]


class Wire:
    """One call at a time, each in a transaction of its own, on a connection in autocommit
    that nobody else reads from. ``close`` it before its connection."""

    def __init__(self, connection: AsyncConnection[Any], schema: str) -> None:
        self.connection, self._pgconn = connection, connection.pgconn
        self._schema = schema
        self._loop = asyncio.get_running_loop()
        self._socket = connection.pgconn.socket
        self._prepared: dict[Statement, Prepared] = {}
        self._answer: asyncio.Future[pq.abc.PGresult | None] | None = None
        self._last: pq.abc.PGresult | None = None
        self._reading = False

    async def send(self, call: Call[T]) -> T:
        """The answer to a call. Raises ``SokkaError``."""
        try:
            known = self._prepared.get(call.statement) or await self._prepare(call.statement)
            given = [call.params[name] for name in known.arguments]
            self._pgconn.send_query_prepared(
                known.name, [None if value is None else value.encode() for value in given],
                result_format=pq.Format.BINARY if call.binary else pq.Format.TEXT,
            )
            rows = self._rows(await self._result())
        except psycopg.Error as error:
            raise from_psycopg(error) from error
        except OSError as error:
            lost = psycopg.OperationalError(f"the connection was lost: {error}")
            raise from_psycopg(lost) from error
        return call.decode(call.statement.read(rows, foreign=False))

    def close(self) -> None:
        """Read no more: the socket is about to be closed."""
        if self._reading:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._reading = False

    async def _prepare(self, statement: Statement) -> Prepared:
        text, arguments = numbered(statement.text(self._schema, PSYCOPG_STYLE))
        made = Prepared(f"sokka_{len(self._prepared)}".encode(), arguments)
        self._pgconn.send_prepare(made.name, text.encode())
        await self._result()
        self._prepared[statement] = made
        return made

    def _rows(self, result: pq.abc.PGresult) -> Sequence[Any]:
        loading = Transformer(self.connection)
        loading.set_pgresult(result)
        return loading.load_rows(0, result.ntuples, tuple)

    # --- waiting ----------------------------------------------------------

    async def _result(self) -> pq.abc.PGresult:
        """The result of what was sent last. Raises ``psycopg.Error``."""
        self._answer, self._last = self._loop.create_future(), None
        if not self._reading:
            self._loop.add_reader(self._socket, self._readable)
            self._reading = True
        if self._pgconn.flush():
            self._loop.add_writer(self._socket, self._writable)
        try:
            result = await self._answer
        finally:
            self._answer = None
        if result is None:
            raise psycopg.OperationalError("the connection was lost")
        if result.status not in _GOOD:
            error = errors.error_from_result(result)
            # what libpq says itself of a connection that broke has no SQLSTATE
            raise error if error.sqlstate else psycopg.OperationalError(str(error))
        return result

    def _readable(self) -> None:
        if self._answer is None:
            # a farewell, or the end: whoever sends next will find it
            self.close()
            return
        try:
            self._pgconn.consume_input()
            # Rows may come well before the word that all is committed: to ask for that
            # while libpq is busy would hold up the loop until it comes.
            while not self._pgconn.is_busy():
                result = self._pgconn.get_result()
                if result is None:
                    self._done(self._last)
                    return
                self._last = result
            # uvloop tells of a socket in error once, and no more until it is asked anew. This
            # may have been that once, and what was read is what had come before the error.
            self._loop.remove_reader(self._socket)
            self._loop.add_reader(self._socket, self._readable)
        except psycopg.Error as error:
            self._broke(error)

    def give_up(self, why: str) -> None:
        """Whoever waits for an answer gets an error now."""
        self._broke(psycopg.OperationalError(why))

    def _writable(self) -> None:
        try:
            if not self._pgconn.flush():
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._loop.remove_writer(self._socket)
            self._broke(error)

    def _done(self, result: pq.abc.PGresult | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(result)

    def _broke(self, error: psycopg.Error) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """A statement with ``$1`` in place of ``%(name)s``, and the names in that order."""
    names = tuple(dict.fromkeys(_ARGUMENT.findall(text)))
    places = {name: f"${number}" for number, name in enumerate(names, 1)}
    return _ARGUMENT.sub(lambda found: places[found[1]], text).replace("%%", "%"), names

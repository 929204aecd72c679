"""The desk's connection: reserves, settles, sweeps, one call after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, IsolationLevel

from sokka_pg.calls import Call
from sokka_pg.connections import ConnectionOptions, connect_arguments
from sokka_pg.connections.sending import send_async, send_explicit_async
from sokka_pg.lease_keeper import shut
from sokka_pg.translate import from_connecting
from sokka_pg.worker.wire import Wire

T = TypeVar("T")

KEEP_MEMORY = "select length(repeat(' ', 1048576))"
"""A server process on glibc gives back what lies free above 128 kB at the end of each call,
and asks for it again in the next: 5 % of its time where it exchanges some 300 tasks. One
that has once freed a block of a megabyte lets two of them lie. Elsewhere this does nothing."""


class Link:
    """A connection that is made again when it broke.

    A call that takes longer than ``most_s`` is cut off: a network that swallows
    everything would otherwise hold the worker for many minutes.
    """

    def __init__(
        self, database_url: str, schema: str, options: ConnectionOptions, most_s: float
    ) -> None:
        self._arguments = connect_arguments(database_url, options)
        self._schema, self._most_s = schema, most_s
        self._explicit = options.pooler
        self._prepares = not options.pooler and options.prepare_threshold is not None
        self._connection: AsyncConnection[Any] | None = None
        self._wire: Wire | None = None
        self.connects = 0

    async def send(self, call: Call[T]) -> T:
        """Send a call in a transaction of its own. Raises ``SokkaError``."""
        try:
            connection = await self._connected()
            with self._cut_after(connection):
                if self._wire is not None:
                    return await send_on(self._wire, call)
                if not self._explicit:
                    return await send_async(connection, call, self._schema, foreign=False)
                return await send_explicit_async(connection, call, self._schema)
        except BaseException:
            # whatever it was, a fresh connection has no part in it
            await self.close()
            raise

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
        if connection is not None:
            shut(connection)
            with suppress(psycopg.Error):
                await connection.close()

    async def _connected(self) -> AsyncConnection[Any]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self.connects += 1
        try:
            return await self._connect()
        except psycopg.Error as error:
            raise from_connecting(error) from error

    async def _connect(self) -> AsyncConnection[Any]:
        connection = await AsyncConnection.connect(**self._arguments)
        self._connection = connection
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        if self._prepares:
            with self._cut_after(connection):
                await connection.execute(KEEP_MEMORY)
            self._wire = Wire(connection, self._schema)
        return connection

    @contextmanager
    def _cut_after(self, connection: AsyncConnection[Any]) -> Iterator[None]:
        timer = asyncio.get_running_loop().call_later(self._most_s, self._cut, connection)
        try:
            yield
        finally:
            timer.cancel()

    def _cut(self, connection: AsyncConnection[Any]) -> None:
        shut(connection)
        if self._wire is not None and self._wire.connection is connection:
            # a socket that is in error already may tell nobody that it was shut
            self._wire.give_up(f"no answer within {self._most_s:g} s")


async def send_on(wire: Wire, call: Call[T]) -> T:
    """A call by the wire. By this name: the tests of faults write down what is sent."""
    return await wire.send(call)

"""Wake-ups: what an idle worker waits for.

PostgreSQL's notifications make a sleep end early; polling makes it end in any
case. So a lost notification costs time, never a task, and everything works
where LISTEN does not (behind a transaction-mode pooler). The listening
connection is its own, in autocommit and never inside a transaction: a listener
that idles in one would in time stop every NOTIFY of the server.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, sql

from sokka_pg.calls.statement import checked_schema
from sokka_pg.connections import ConnectionOptions, connect_arguments
from sokka_pg.durations import Duration, to_timedelta
from sokka_pg.errors import BadArgument

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.25
LONGEST_BACKOFF_S = 30.0
PROBE_S = 20.0
_ANSWER_S = 10.0
# More hashes than this at once only say "look everywhere".
_MOST_HASHES = 1_000
_EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Signals:
    """Why a wait ended. All empty: the poll interval is over, look anyway."""

    topics: frozenset[str] = frozenset()
    """Hashes (``topic_hash``) of topics that have new tasks."""
    cancels: frozenset[str] = frozenset()
    """Hashes of topics in which a running task was asked to stop."""
    missed: bool = False
    """True after a time without LISTEN, or when too much was said at once: anything
    may have happened, look everywhere."""
    tasks: frozenset[str] = frozenset()
    """Hashes (``task_hash``) of watched tasks to which something happened."""


class Wakeup:
    """Waits for notifications of one schema, or for the poll interval.

    ``async with Wakeup(url) as wakeup: signals = await wakeup.wait()``. With
    ``listen=False``, or behind a pooler, it only polls. ``hears`` are the first letters
    of the notifications that matter here: ``t`` (a topic has a new task), ``c`` (a task
    of a topic was asked to stop), ``d`` (something happened to a watched task); others
    end no wait. ``on_change`` is told True and False as the listening connection comes
    and goes. ``on_news``, where it is given, is called with the signals as they come, at
    once and on the loop; then nobody waits. A connection that breaks is made again after
    a wait that doubles up to 30 s, spread at random.
    """

    def __init__(
        self,
        database_url: str,
        schema: str = "sokka",
        *,
        listen: bool = True,
        poll: Duration = 1.0,
        options: ConnectionOptions | None = None,
        on_change: Callable[[bool], None] | None = None,
        on_news: Callable[[Signals], None] | None = None,
        hears: str = "tcd",
    ) -> None:
        self.schema = checked_schema(schema)
        self.poll_s = to_timedelta(poll, "poll").total_seconds()
        if self.poll_s <= 0:
            raise BadArgument.of("poll", "must be longer than 0")
        options = options or ConnectionOptions()
        self.listen = listen and not options.pooler
        self.listening = False
        self.connects = 0
        """How often a connection was tried; for metrics and tests."""
        self._arguments = connect_arguments(database_url, options)
        self._on_change, self._on_news = on_change, on_news
        self._heard: dict[str, set[str]] = {letter: set() for letter in hears}
        self._missed = False
        self._news = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Wakeup:
        if self.listen:
            self._listener = asyncio.create_task(self._listen_for_ever(), name="sokka-wakeup")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            with suppress(asyncio.CancelledError):
                await listener

    async def wait(self, at_most: Duration | None = None) -> Signals:
        """Until something is notified, but no longer than ``at_most`` and the poll
        interval. Signals that came in between are not lost."""
        most = self.poll_s
        if at_most is not None:
            most = min(most, max(0.0, to_timedelta(at_most, "at_most").total_seconds()))
        # not wait_for: that of Python 3.11 loses a cancellation which meets the news
        with suppress(TimeoutError):
            async with asyncio.timeout(most):
                await self._news.wait()
        return self._take()

    def poke(self) -> None:
        """End the present or next wait, from the loop's own thread."""
        self._news.set()

    def _take(self) -> Signals:
        topics, cancels, tasks = (frozenset(self._heard.get(letter, ())) for letter in "tcd")
        found = Signals(topics, cancels, self._missed, tasks)
        for hashes in self._heard.values():
            hashes.clear()
        self._missed = False
        self._news.clear()
        return found

    async def _listen_for_ever(self) -> None:
        backoff = FIRST_BACKOFF_S
        while True:
            try:
                await self._listen_once()
            except (psycopg.Error, OSError, TimeoutError) as error:
                # Its text names host and user at most; it is here for the operator.
                log.warning("listening for wake-ups stopped, polling goes on: %s", error)
            if self._set_listening(False):
                backoff = FIRST_BACKOFF_S
            await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(LONGEST_BACKOFF_S, backoff * 2)

    async def _listen_once(self) -> None:
        self.connects += 1
        connection = await AsyncConnection.connect(**self._arguments)
        try:
            listen = sql.SQL("listen {}").format(sql.Identifier(self.schema))
            connection.add_notify_handler(lambda notice: self._note(notice.payload))
            async with asyncio.timeout(_ANSWER_S):
                await connection.execute(listen)
            self._set_listening(True)
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_S):
                        await self._hear(connection)
                self._tell()
                async with asyncio.timeout(_ANSWER_S):
                    await connection.execute("select 1")
                if connection.info.parameter_status("default_transaction_read_only") == "on":
                    # Nobody can enqueue there: the primary is elsewhere by now.
                    raise psycopg.OperationalError("the server has become read-only")
        finally:
            await _closed(connection)

    async def _hear(self, connection: AsyncConnection[Any]) -> None:
        """Note what comes until the connection breaks. By a reader of its own: psycopg's
        ``notifies`` looks at the clock ten times a second, and takes three turns of the
        loop where this takes none."""
        loop, pgconn = asyncio.get_running_loop(), connection.pgconn
        broken: asyncio.Future[None] = loop.create_future()

        def take_in(consume: bool = True) -> None:
            try:
                if consume:
                    pgconn.consume_input()
                while (notice := pgconn.notifies()) is not None:
                    self._note(notice.extra.decode("utf-8", "replace"))
                # uvloop tells of a socket in error once, and no more until it is asked anew
                loop.remove_reader(socket)
                loop.add_reader(socket, take_in)
            except psycopg.Error as error:
                loop.remove_reader(socket)
                if not broken.done():
                    broken.set_exception(error)
            self._tell()

        socket = pgconn.socket
        try:
            take_in(consume=False)  # what came along with an answer
            await broken
        finally:
            loop.remove_reader(socket)

    def _tell(self) -> None:
        if self._on_news is None or not self._news.is_set():
            return
        try:
            self._on_news(self._take())
        except Exception:
            # An observer's fault must not end the listening.
            log.exception("an observer of the wake-ups failed")

    def _note(self, payload: str) -> None:
        heard = self._heard.get(payload[:1])
        if heard is None:
            return
        said = payload[1:]
        if said == _EVERYTHING or sum(map(len, self._heard.values())) >= _MOST_HASHES:
            self._missed = True
        else:
            heard.add(said)
        self._news.set()

    def _set_listening(self, listening: bool) -> bool:
        """Whether this changed anything."""
        if listening == self.listening:
            return False
        self.listening = listening
        if listening:
            self._missed = True
            self._news.set()
        if self._on_change is not None:
            try:
                self._on_change(listening)
            except Exception:
                # An observer's fault must not end the listening.
                log.exception("an observer of the wake-up connection failed")
        self._tell()
        return True


async def _closed(connection: AsyncConnection[Any]) -> None:
    with suppress(psycopg.Error):
        await connection.close()

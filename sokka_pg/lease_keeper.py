"""Keeps the leases of one worker alive, and says which of them are over.

Two threads of its own and one connection of its own, so that neither a blocked
event loop nor a busy handler stops a heartbeat:

- the *beat* extends all leases in one statement, five times per lease;
- the *watch* goes by the monotonic clock alone. A lease that was not renewed is
  given up before its end, and a statement that hangs is cut off, so that a dead
  network costs one connection and not the leases.

A handler that holds the interpreter lock for longer than a lease (C code that
never lets go) stops both; its lease is then lost and its writes are refused by
the database. Such handlers belong into a process of their own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol

import psycopg

from sokka_pg import calls
from sokka_pg.connections import ConnectionOptions, connect_arguments
from sokka_pg.connections.sending import send, send_explicit
from sokka_pg.engine.backoff import Backoff
from sokka_pg.engine.leases import SHORTEST_LEASE_S, Hold, LeaseBook
from sokka_pg.errors import BadArgument, SokkaError
from sokka_pg.events import Disconnected, EventFeed, Extended, Reconnected
from sokka_pg.model import ExtendVerdict, Status
from sokka_pg.translate import from_connecting

log = logging.getLogger("sokka_pg.worker")

LOST_VERDICTS = frozenset({"SK001", "SK002", "SK003", "SK004", "SK005", "SK006"})
ALREADY_DONE = "SK002"
SHORTEST_CALL_S = 0.1


class Ward(Protocol):
    """Who is told about leases; called on the keeper's threads, must not block."""

    def lease_lost(self, token: int, reason: str, /) -> None: ...

    def cancel_requested(self, token: int, /) -> None: ...


class LeaseKeeper:
    """Extends what was ``add``-ed until it is ``drop``-ped or lost.

    Raises ``BadArgument`` for a lease shorter than 300 ms.
    """

    def __init__(
        self,
        database_url: str,
        schema: str,
        pid: str,
        lease: timedelta,
        ward: Ward,
        *,
        options: ConnectionOptions | None = None,
        feed: EventFeed | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if lease < timedelta(seconds=SHORTEST_LEASE_S):
            raise BadArgument.of("lease", f"a worker needs {SHORTEST_LEASE_S} s or more")
        self._pid, self._lease, self._ward = pid, lease, ward
        self._line = KeeperLine(database_url, schema, options or ConnectionOptions(), lease)
        self._feed = feed or EventFeed()
        self._clock = clock
        self._book = LeaseBook(lease.total_seconds())
        self._lock = threading.Lock()
        self._beat_now = threading.Condition(self._lock)
        self._watch_now = threading.Condition(self._lock)
        self._hurried = False
        self._closed = False
        self._failing_since: float | None = None
        self._backoff = Backoff(0.02, max(0.05, self._book.beat_s))
        self._threads = [
            threading.Thread(target=target, name=f"sokka-{name}", daemon=True)
            for name, target in (("beat", self._beat), ("watch", self._watch))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop extending. Leases that are still held run out by themselves."""
        with self._lock:
            self._closed = True
            self._beat_now.notify_all()
            self._watch_now.notify_all()
        self._line.cut()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)

    def add(self, holds: Iterable[Hold]) -> None:
        """Wakes nobody: beat and watch come round soon enough for a lease that has just
        begun, and threads that woke here would take the interpreter from the handler
        that is about to start (0.3 ms of its pickup)."""
        with self._lock:
            self._book.add(holds)

    def drop(self, tokens: Iterable[int]) -> None:
        with self._lock:
            self._book.drop(tokens)

    def hurry(self) -> None:
        """Extend everything now: somebody may have asked for a cancellation."""
        with self._lock:
            self._hurried = True
            self._beat_now.notify()

    def __len__(self) -> int:
        with self._lock:
            return len(self._book)

    # --- the beat ---------------------------------------------------------

    def _beat(self) -> None:
        wait = self._book.beat_s
        while True:
            with self._lock:
                self._beat_now.wait_for(lambda: self._closed or self._hurried, wait)
                if self._closed:
                    break
                due = self._due()
            wait = self._book.beat_s
            if due and not self._extend(due):
                wait = self._backoff.next_s()
        self._line.close()

    def _due(self) -> list[Hold]:
        now = self._clock()
        ahead = self._book.lease_s if self._hurried else 0.0
        self._hurried = False
        return self._book.to_extend(now + ahead)

    def _extend(self, due: list[Hold]) -> bool:
        call = calls.extend_leases(
            self._pid, [(hold.task_id, hold.token) for hold in due], self._lease
        )
        sent_at = self._clock()
        try:
            verdicts = self._line.run(call)
        except SokkaError as error:
            self._failed(error)
            return False
        except Exception as error:  # a broken beat must not end the heartbeat
            self._failed(error)
            return False
        self._answered(due, verdicts, sent_at)
        return True

    def _answered(self, due: list[Hold], verdicts: list[ExtendVerdict], sent_at: float) -> None:
        self._recovered()
        lost: list[tuple[Hold, str]] = []
        cancelled, kept = [], []
        with self._lock:
            for hold, verdict in zip(due, verdicts, strict=False):
                if verdict.verdict == "ok":
                    kept.append(hold.token)
                    if verdict.cancel_requested and not hold.cancel_told:
                        hold.cancel_told = True
                        cancelled.append(hold.token)
                elif verdict.verdict in LOST_VERDICTS and hold.token in self._book:
                    lost.append((hold, verdict.verdict))
            self._book.renewed(kept, sent_at)
            self._book.drop([hold.token for hold, _ in lost])
        self._feed.emit(Extended(len(kept), self._clock() - sent_at))
        for hold, verdict_code in lost:
            if verdict_code != ALREADY_DONE or not self._ended_by_us(hold):
                self._ward.lease_lost(hold.token, verdict_code)
        for token in cancelled:
            self._ward.cancel_requested(token)

    def _ended_by_us(self, hold: Hold) -> bool:
        """Whether a handler ended its task itself and goes on: that is no loss."""
        try:
            found = self._line.run(calls.get_task(hold.task_id))
        except SokkaError:
            return False
        return found is not None and (found.status, found.pid, found.token) == (
            Status.TERMINATED, self._pid, hold.token
        )

    def _failed(self, error: Exception) -> None:
        if self._failing_since is None and not self._closed:
            self._failing_since = self._clock()
            log.warning("leases cannot be extended, trying on: %s", error)
            self._feed.emit(Disconnected("keeper", str(error)))

    def _recovered(self) -> None:
        self._backoff.reset()
        if self._failing_since is not None:
            after = self._clock() - self._failing_since
            self._failing_since = None
            log.info("leases are extended again after %.1f s", after)
            self._feed.emit(Reconnected("keeper", after))

    # --- the watch --------------------------------------------------------

    def _watch(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                self._watch_now.wait(self._until_next_look())
                late = self._book.overdue(self._clock())
            for hold in late:
                self._ward.lease_lost(hold.token, "watchdog")
            self._line.cut_if_stuck(self._clock())

    def _until_next_look(self) -> float:
        end = self._book.next_end()
        if end is None:
            # one that begins meanwhile ends four beats later
            return self._book.beat_s
        # a statement that hangs is looked for at least twice a beat
        return max(0.0, min(end - self._clock(), self._book.beat_s / 2))


class KeeperLine:
    """The keeper's connection: one statement at a time, each bounded in time."""

    def __init__(
        self, database_url: str, schema: str, options: ConnectionOptions, lease: timedelta
    ) -> None:
        self._arguments = connect_arguments(database_url, options)
        # libpq counts in whole seconds, and takes 1 for 2
        self._arguments["connect_timeout"] = max(2, int(lease.total_seconds() / 3))
        self._schema = schema
        self._explicit = options.pooler
        self._most_s = max(SHORTEST_CALL_S, lease.total_seconds() / 3)
        self._connection: psycopg.Connection[Any] | None = None
        self._busy_since: float | None = None

    def run(self, call: calls.Call[Any]) -> Any:
        """Send a call; raises ``SokkaError``. The connection is made when needed."""
        connection = self._connected()
        self._busy_since = monotonic()
        try:
            if not self._explicit:
                return send(connection, call, self._schema, foreign=False)
            return send_explicit(connection, call, self._schema)
        except BaseException:
            self.close()
            raise
        finally:
            self._busy_since = None

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg.connect(**self._arguments)
            except psycopg.Error as error:
                raise from_connecting(error) from error
        return self._connection

    def cut_if_stuck(self, now: float) -> None:
        """End a statement that takes longer than a third of the lease."""
        since = self._busy_since
        if since is not None and now - since > self._most_s:
            self.cut()

    def cut(self) -> None:
        """Shut the socket, from any thread: the statement under way fails."""
        connection = self._connection
        if connection is not None and self._busy_since is not None:
            shut(connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()


def shut(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Shut a connection's socket under it. Whoever waits for an answer gets an
    error at once; closing the connection itself would wait for that answer."""
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.pgconn.socket)) as copy,
    ):
        copy.shutdown(socket.SHUT_RDWR)

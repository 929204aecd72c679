"""Sessions that run at the same time, in an order made by locks.

A session's call runs in a thread of its own. A test waits until PostgreSQL
itself shows that the call is blocked, and by whom, before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

from tests.sql.calling import DEADLINE_S, Queue, Refusal, Row, refusal_of

Call = Future[list[Row] | Refusal]


class Session(Queue):
    """A session whose calls can be begun, and their answers awaited, apart."""

    def __init__(self, connection: psycopg.Connection[Any], watcher: Queue) -> None:
        super().__init__(connection)
        self._watcher = watcher
        self._thread = ThreadPoolExecutor(1)

    @property
    def pid(self) -> int:
        return self.connection.info.backend_pid

    def begin(self, function: str, **arguments: Any) -> Call:
        """Begin a call of a function of the queue."""
        return self.begin_act(lambda: self.call(function, **arguments))

    def begin_verb(self, verb: str, held: Row, /, **options: Any) -> Call:
        proof = {"task_id": held.task_id, "pid": held.pid, "token": held.token}
        return self.begin(verb, **proof, **options)

    def begin_act(self, act: Callable[[], Any]) -> Future[Any]:
        """Begin anything else; a database error becomes its answer."""

        def run() -> Any:
            try:
                return act()
            except psycopg.Error as error:
                return refusal_of(error)

        return self._thread.submit(run)

    def blocked_by(self, other: Session) -> None:
        """Wait until this session waits for a lock that the other holds."""
        self._watcher.until("select %s = any (pg_blocking_pids(%s))", other.pid, self.pid)

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        if not self.connection.closed:
            self._watcher.value("select pg_cancel_backend(%s)", self.pid)
        self._thread.shutdown()
        self.connection.close()


def answer(call: Future[Any]) -> Any:
    """What a call came to: its rows, or its refusal."""
    return call.result(timeout=DEADLINE_S)


def accepted(call: Future[Any]) -> Row:
    """The one row with which a call was accepted."""
    found = answer(call)
    assert isinstance(found, list), found
    (row,) = found
    return row


def refused(call: Future[Any]) -> str:
    """The SQLSTATE with which a call was refused."""
    found = answer(call)
    assert isinstance(found, Refusal), f"accepted: {found}"
    return found.sqlstate

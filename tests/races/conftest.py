"""Sessions for races: each on a database of its own, ordered by locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from tests.races.ordering import Session
from tests.sql.calling import Clock, Queue


@pytest.fixture
def queue(conn: psycopg.Connection) -> Queue:
    """A queue in a database of its own, watching and preparing; it never waits."""
    found = Queue(conn)
    # The first grant in a database records where it runs, under a lock.
    found.value("select sokka.trust_tokens()")
    return found


@pytest.fixture
def session(db: str, queue: Queue) -> Iterator[Callable[..., Session]]:
    """Makes sessions; ``autocommit=False`` for those that hold their transaction open."""
    with ExitStack() as stack:

        def make(autocommit: bool = True) -> Session:
            found = Session(psycopg.connect(db, autocommit=autocommit), queue)
            stack.callback(found.close)
            return found

        yield make


@pytest.fixture
def opened(session: Callable[..., Session]) -> Session:
    """A session in a transaction that stays open until the test ends it."""
    return session(autocommit=False)


@pytest.fixture
def other(session: Callable[..., Session]) -> Session:
    """A second session, in autocommit mode."""
    return session()


@pytest.fixture
def clock(queue: Queue) -> Clock:
    return Clock(queue)

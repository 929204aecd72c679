"""What the SQL tests share: a queue, on a database of its own or a shared one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.servers import Server
from tests.sql.calling import Clock, Queue, topic


@pytest.fixture(scope="session")
def shared_db(server: Server) -> Iterator[str]:
    """One database for all tests that keep to topics of their own."""
    name = server.create(server.template())
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def queue(shared_db: str) -> Iterator[Queue]:
    """A queue that other tests have used before: keep to a new topic, never sweep and count."""
    with psycopg.connect(shared_db, autocommit=True) as connection:
        yield Queue(connection)


@pytest.fixture
def fresh(conn: psycopg.Connection) -> Queue:
    """A queue in a database of its own, with nothing in it."""
    queue = Queue(conn)
    # The first grant in a database records where it runs, under a lock.
    queue.value("select sokka.trust_tokens()")
    return queue


@pytest.fixture
def another(connect: Callable[..., psycopg.Connection]) -> Callable[..., Queue]:
    """Makes further sessions on the database of ``fresh``."""
    return lambda **options: Queue(connect(**options))


@pytest.fixture
def clock(fresh: Queue) -> Clock:
    """The clock of ``fresh``, in the test's hands."""
    return Clock(fresh)


@pytest.fixture(name="topic")
def new_topic() -> str:
    return topic()

"""The proxy of the run of real processes fails in each of its ways, and heals."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest

from tests.faults.chaos.proxy import Proxy
from tests.faults.chaos.wire import Conversation, Message, Messages
from tests.faults.waiting import until

ENCRYPTION = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
HELLO = (12).to_bytes(4, "big") + (196608).to_bytes(4, "big") + b"u\0\0\0"


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


@pytest.fixture
def proxy(db: str) -> Iterator[Proxy]:
    made = Proxy(db, random.Random(7))
    yield made
    made.close()


@pytest.fixture
def through(proxy: Proxy) -> Iterator[psycopg.Connection]:
    connection = psycopg.connect(proxy.url, autocommit=True)
    yield connection
    connection.close()


def test_messages_are_found_whatever_pieces_they_come_in() -> None:
    stream = message(b"Q", b"select 1\0") + message(b"X", b"") + message(b"Q", b"y" * 9000)
    for size in (1, 3, 7, len(stream)):
        reader = Messages()
        found: list[Message] = []
        for at in range(0, len(stream), size):
            found += reader.feed(stream[at : at + size])
        assert [each.kind for each in found] == [b"Q", b"X", b"Q"]
        assert found[0].head == b"select 1\0"
        assert len(found[2].head) < 9000


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_the_answer_of_a_commit_is_found_in_a_conversation(size: int) -> None:
    talk = Conversation()
    for part in (ENCRYPTION, HELLO, message(b"Q", b"begin\0")):
        for at in range(0, len(part), size):
            talk.asked(part[at : at + size])
        if part is ENCRYPTION:
            assert talk.answered(b"N") is None
    assert talk.answered(message(b"C", b"BEGIN\0") + message(b"Z", b"T")) is None
    assert talk.answered(message(b"C", b"COMMIT\0") + message(b"Z", b"I")) == (0, 12)


def test_the_answer_of_a_prepared_statement_that_settles_is_found() -> None:
    talk = Conversation()
    talk.asked(HELLO + message(b"P", b"p1\0select * from sokka.terminate_task($1)\0\0\0"))
    talk.asked(message(b"P", b"p2\0select 1\0\0\0") + message(b"B", b"\0p2\0"))
    assert talk.answered(message(b"2", b"") + message(b"Z", b"I")) is None
    talk.asked(message(b"B", b"\0p1\0"))
    answer = message(b"2", b"") + message(b"C", b"SELECT 1\0")
    assert talk.answered(answer + message(b"Z", b"I")) == (0, len(answer) + 6)
    talk.asked(message(b"B", b"\0p2\0"))
    assert talk.answered(message(b"2", b"")) is None


@pytest.mark.parametrize("then", ["reset", "silence"])
def test_a_commit_whose_answer_is_cut_has_happened(
    then: str, proxy: Proxy, conn: psycopg.Connection
) -> None:
    conn.execute("create table kept (n int)")
    with psycopg.connect(proxy.url) as through:
        through.execute("insert into kept values (1)")
        proxy.cut_commits(then)
        if then == "silence":
            threading.Timer(0.5, lambda: proxy.reset()).start()
        with pytest.raises(psycopg.OperationalError):
            through.commit()
    assert conn.execute("select n from kept").fetchall() == [(1,)]
    assert proxy.counts["ended within a commit's answer"] == 1
    with psycopg.connect(proxy.url) as another:  # the next commit passes
        another.execute("insert into kept values (2)")
    assert conn.execute("select count(*) from kept").fetchone() == (2,)


def test_nobody_listens_while_it_refuses(proxy: Proxy, through: psycopg.Connection) -> None:
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        through.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(proxy.url)
    proxy.heal()
    psycopg.connect(proxy.url).close()


def test_a_reset_ends_open_connections_and_lets_new_ones_pass(
    proxy: Proxy, through: psycopg.Connection
) -> None:
    proxy.reset()
    with pytest.raises(psycopg.OperationalError):
        through.execute("select 1")
    psycopg.connect(proxy.url).close()
    assert proxy.counts["reset"] == 1


@pytest.mark.parametrize(("way", "arrives"), [("up", False), ("down", True)])
def test_a_hole_in_one_direction_holds_back_the_question_or_the_answer(
    way: str, arrives: bool, proxy: Proxy, through: psycopg.Connection,
    conn: psycopg.Connection,
) -> None:
    conn.execute("create table kept (n int)")
    proxy.hole(way)
    asking = threading.Thread(target=through.execute, args=("insert into kept values (1)",))
    asking.start()
    until(lambda: proxy.counts[f"held back {way}"], "the hole")
    asking.join(0.2)
    assert asking.is_alive()
    assert conn.execute("select count(*) from kept").fetchone() == (int(arrives),)
    proxy.heal()
    asking.join(20)
    assert not asking.is_alive()
    assert conn.execute("select count(*) from kept").fetchone() == (1,)


def test_the_server_is_not_told_of_a_client_that_leaves_behind_a_hole(
    proxy: Proxy, through: psycopg.Connection, conn: psycopg.Connection
) -> None:
    pid = through.info.backend_pid
    proxy.swallow()
    through.close()
    until(lambda: proxy.counts["held back up"], "the farewell")
    asked = "select from pg_stat_activity where pid = %s"
    assert conn.execute(asked, (pid,)).fetchall()
    proxy.heal()
    until(lambda: not conn.execute(asked, (pid,)).fetchall(), "the end of the session")


def test_delayed_pieces_keep_their_order(proxy: Proxy, through: psycopg.Connection) -> None:
    proxy.delay(0.05, 0.1)
    times = []
    for n in range(3):
        times.append(time.monotonic())
        assert through.execute("select %s::int", (n,)).fetchone() == (n,)
    times.append(time.monotonic())
    assert all(after - before >= 0.1 for before, after in pairwise(times))
    assert proxy.counts["delayed"] >= 6

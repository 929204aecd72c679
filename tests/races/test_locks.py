"""A key changes hands once at a time, and never under an open assert_lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.races.ordering import Session, accepted, answer, refused
from tests.sql.calling import Clock, Queue
from tests.sql.test_locks import proof, stored, take

Sessions = Callable[..., Session]


@pytest.mark.parametrize("known", [True, False], ids=["a key that was held", "a new key"])
def test_of_many_that_want_a_free_key_one_gets_it(queue: Queue, db: str, known: bool) -> None:
    if known:
        queue.one("release_lock", **proof(take(queue)))

    def run(number: int) -> list[Any]:
        with psycopg.connect(db, autocommit=True) as connection:
            return Queue(connection).call(
                "try_lock", key="k", owner=f"w{number}", ttl="1 minute"
            )

    with ThreadPoolExecutor(8) as threads:
        got = [row for rows in threads.map(run, range(8)) for row in rows]
    assert len(got) == 1
    (row,) = stored(queue)
    assert row.token == got[0].token


def test_a_key_changes_hands_many_times_and_its_holders_never_overlap(
    queue: Queue, db: str
) -> None:
    """Each holder adds its line under assert_lock; the lines are in order of the tokens."""
    queue.execute("create table lines (seq serial primary key, token bigint)")

    def run(number: int) -> int:
        held = 0
        with psycopg.connect(db, autocommit=True) as connection:
            mine = Queue(connection)
            while held < 10:
                got = mine.call("try_lock", key="k", owner=f"w{number}", ttl="1 minute")
                if not got:
                    continue
                claim = {"key": "k", "owner": f"w{number}", "token": got[0].token}
                with connection.transaction():
                    mine.one("assert_lock", **claim)
                    mine.execute("insert into lines (token) values (%s)", got[0].token)
                mine.one("release_lock", **claim)
                held += 1
        return held

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(run, range(4))) == 40
    tokens = [row.token for row in queue.rows("select token from lines order by seq")]
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 40


def test_nobody_takes_a_key_over_while_its_holders_transaction_is_open(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    lock = take(queue)
    opened.one("assert_lock", **proof(lock))
    clock.advance("1 hour")
    # It does not even wait.
    assert other.call("try_lock", key="k", owner="b", ttl="1 minute") == []
    opened.commit()
    assert other.one("try_lock", key="k", owner="b", ttl="1 minute").token > lock.token
    assert refused(opened.begin("assert_lock", **proof(lock))) == "SK003"


def test_a_take_over_that_forgot_to_lock_waits_all_the_same(
    queue: Queue, opened: Session, other: Session
) -> None:
    lock = take(queue)
    opened.one("assert_lock", **proof(lock))
    call = other.begin_act(
        lambda: other.execute("update sokka.locks set token = nextval('sokka.token_seq')")
    )
    other.blocked_by(opened)
    opened.commit()
    assert answer(call) == 1


def test_a_renewal_passes_an_open_assertion_and_a_release_waits_for_it(
    queue: Queue, opened: Session, session: Sessions
) -> None:
    lock = take(queue)
    opened.one("assert_lock", **proof(lock))
    heart, end = session(), session()
    accepted(heart.begin("renew_lock", **proof(lock), ttl="2 minutes"))
    releasing = end.begin("release_lock", **proof(lock))
    end.blocked_by(opened)
    accepted(heart.begin("renew_lock", **proof(lock), ttl="3 minutes"))
    opened.commit()
    accepted(releasing)
    assert refused(heart.begin("renew_lock", **proof(lock), ttl="1 minute")) == "SK004"


def test_the_wait_of_a_release_is_bounded(queue: Queue, opened: Session, other: Session) -> None:
    lock = take(queue)
    opened.one("assert_lock", **proof(lock))
    assert refused(other.begin("release_lock", **proof(lock))) == "55P03"


def test_several_transactions_of_the_holder_assert_it_at_once(
    queue: Queue, opened: Session, session: Sessions
) -> None:
    lock = take(queue)
    opened.one("assert_lock", **proof(lock))
    accepted(session(autocommit=False).begin("assert_lock", **proof(lock)))


def test_a_key_that_is_being_taken_is_not_free(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    take(queue)
    clock.advance("1 hour")
    taken = take(opened, owner="b")
    assert other.call("try_lock", key="k", owner="c", ttl="1 minute") == []
    opened.rollback()
    assert take(other, owner="c").token > taken.token


@pytest.mark.parametrize("committed", [True, False])
def test_who_wants_a_key_that_is_being_made_waits_a_moment(
    queue: Queue, opened: Session, other: Session, committed: bool
) -> None:
    take(opened)
    call = other.begin("try_lock", key="k", owner="b", ttl="1 minute")
    other.blocked_by(opened)
    opened.commit() if committed else opened.rollback()
    assert len(answer(call)) == (0 if committed else 1)
    assert stored(queue)[0].owner == ("a" if committed else "b")


def test_a_key_that_is_being_made_for_long_is_not_free(
    queue: Queue, opened: Session, other: Session
) -> None:
    take(opened)
    assert answer(other.begin("try_lock", key="k", owner="b", ttl="1 minute")) == []

"""Tokens: drawn after the lock, so that the order of grants is the order of tokens."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.races.ordering import Session, accepted, answer
from tests.sql.calling import Clock, Queue

Sessions = Callable[..., Session]


def test_a_token_is_drawn_after_the_wait_for_the_row(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    """Drawn before, the waiting caller would get a token older than one granted meanwhile."""
    clock.stop()
    lease = queue.leased("t", lease="1 s")
    opened.verb("assert_lease", lease)
    clock.advance("1 s")
    call = other.begin("acquire_lease", task_id=lease.task_id, pid="w2", lease="1 hour")
    other.blocked_by(opened)
    between = queue.leased("elsewhere")
    opened.commit()
    assert accepted(call).token > between.token > lease.token


def test_the_order_of_a_tasks_grants_is_the_order_of_its_tokens(
    queue: Queue, session: Sessions
) -> None:
    task_id = queue.create("t")
    workers = [session() for _ in range(4)]

    def compete(worker: Session) -> list[int]:
        tokens = []
        for _ in range(25):
            for lease in worker.call("reserve_task", topic="t", pid=str(worker.pid)):
                tokens.append(lease.token)
                worker.verb("release_lease", lease)
        return tokens

    with ThreadPoolExecutor(4) as pool:
        granted = [token for tokens in pool.map(compete, workers) for token in tokens]
    kept = queue.rows(
        "select token from sokka.past_leases where task_id = %s order by ended_seq", (task_id,)
    )
    tokens = [row.token for row in kept]
    assert tokens == sorted(tokens)
    assert sorted(granted) == tokens
    assert len(set(tokens)) == len(tokens) > 0


def test_the_first_grant_after_a_start_holds_nobody_up(
    queue: Queue, opened: Session, other: Session
) -> None:
    """It records where the server runs; its transaction may stay open for long."""
    queue.execute("select setval('sokka.incarnation_seq', 1)")
    for _ in range(2):
        queue.create("t")
    (first,) = opened.call("reserve_task", topic="t", pid="w1", lease="1 hour")
    second = accepted(other.begin("reserve_task", topic="t", pid="w2", lease="1 hour"))
    opened.commit()
    assert second.token > first.token


def test_tokens_rise_above_a_first_grant_that_was_rolled_back(
    queue: Queue, opened: Session, other: Session
) -> None:
    queue.execute("select setval('sokka.incarnation_seq', 1)")
    queue.create("t")
    (first,) = opened.call("reserve_task", topic="t", pid="w1", lease="1 hour")
    opened.rollback()
    (second,) = answer(other.begin("reserve_task", topic="t", pid="w2", lease="1 hour"))
    assert second.token > first.token


def test_sessions_that_raise_the_epoch_at_once_never_lower_a_token(
    queue: Queue, session: Sessions
) -> None:
    workers = [session() for _ in range(4)]
    for number in range(4):
        queue.call("create_tasks", specs=f'[{",".join([f"""{{"topic": "t{number}"}}"""] * 20)}]')

    def work(number: int) -> list[int]:
        tokens = []
        for _ in range(20):
            if number == 0:
                workers[0].call("raise_token_epoch", reason="again")
            (lease,) = workers[number].call("reserve_task", topic=f"t{number}", pid="w")
            tokens.append(lease.token)
        return tokens

    with ThreadPoolExecutor(4) as pool:
        each = list(pool.map(work, range(4)))
    for tokens in each:
        assert tokens == sorted(set(tokens))
    drawn = [token for tokens in each for token in tokens]
    assert len(set(drawn)) == 80

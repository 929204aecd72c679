"""Lockers and locks on PostgreSQL: one holder at a time, judged by the database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from sokka_pg import Sokka
from sokka_pg.errors import BadArgument, LeaseLost, UsageError, WrongOwner
from sokka_pg.scheduler import (
    AsyncPostgresLocker,
    AsyncScheduler,
    Job,
    JobContext,
    KeptLease,
    LeaseOptions,
    LockHeld,
    PostgresLocker,
    RunSkipped,
    Scheduler,
    held_lease,
)
from tests.scheduler.conftest import DEADLINE_S, Seen, until

Connect = Callable[..., psycopg.Connection]
MINUTE = timedelta(minutes=1)


@pytest.fixture
def locker(db: str) -> Iterator[PostgresLocker]:
    made = PostgresLocker(db)
    yield made
    made.close()


@pytest.fixture
async def app(db: str) -> AsyncIterator[Sokka]:
    made = Sokka(db)
    yield made
    made.locker.close()
    made.store.close()
    await made.async_store.close()


def take_away(conn: psycopg.Connection, key: str) -> None:
    """Another holder comes, as if the first one's time were over."""
    conn.execute(
        "update sokka.locks set owner = 'thief', token = nextval('sokka.token_seq') where key = %s",
        (key,),
    )


# --- lockers ------------------------------------------------------------------


def test_one_holder_at_a_time_and_tokens_only_rise(db: str, locker: PostgresLocker) -> None:
    other = PostgresLocker(db, owner="other")
    first = locker.try_acquire("prices", MINUTE)
    assert first is not None
    assert other.try_acquire("prices", MINUTE) is None
    assert locker.try_acquire("prices", MINUTE) is None
    first.release()
    second = other.try_acquire("prices", MINUTE)
    assert second is not None
    assert (second.owner, second.token > first.token) == ("other", True)
    other.close()


def test_a_renewal_moves_the_end(locker: PostgresLocker) -> None:
    lease = locker.try_acquire("prices", MINUTE)
    assert lease is not None
    before = lease.expires_at
    assert lease.renew(timedelta(hours=1)) == lease.expires_at > before


def test_a_stale_lease_cannot_be_renewed_and_its_release_is_silent(
    conn: psycopg.Connection, locker: PostgresLocker
) -> None:
    lease = locker.try_acquire("prices", MINUTE)
    assert lease is not None
    take_away(conn, "prices")
    with pytest.raises(WrongOwner):
        lease.renew(MINUTE)
    lease.release()
    lease.release()
    assert conn.execute("select owner from sokka.locks").fetchall() == [("thief",)]
    assert conn.execute("select lock_expires_at > now() from sokka.locks").fetchone() == (True,)


def test_a_transaction_that_asserted_the_lease_keeps_others_out(
    connect: Connect, conn: psycopg.Connection, locker: PostgresLocker
) -> None:
    lease = locker.try_acquire("prices", MINUTE)
    assert lease is not None
    acting = connect(autocommit=False)
    lease.assert_held(acting)
    conn.execute("select set_config('lock_timeout', '1ms', false)")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        take_away(conn, "prices")
    assert locker.try_acquire("prices", MINUTE) is None
    acting.commit()
    take_away(conn, "prices")
    with pytest.raises(LeaseLost):
        lease.assert_held(acting)


@pytest.mark.parametrize(
    ("key", "ttl"), [("", 1), (" ", 1), (None, 1), ("x" * 501, 1), ("key", 0), ("key", -1),
                     ("key", None), ("key", float("nan")), ("key", timedelta(days=400))]
)  # fmt: skip
def test_a_key_and_a_time_are_needed(locker: PostgresLocker, key: Any, ttl: Any) -> None:
    with pytest.raises(BadArgument):
        locker.try_acquire(key, ttl)


def test_an_owner_is_named_or_has_a_name_of_its_own(db: str) -> None:
    assert PostgresLocker(db).owner != PostgresLocker(db).owner
    with pytest.raises(BadArgument):
        PostgresLocker(db, owner=" ")


async def test_the_async_locker_does_the_same(db: str, conn: psycopg.Connection) -> None:
    locker = AsyncPostgresLocker(db)
    lease = await locker.try_acquire("prices", MINUTE)
    assert lease is not None
    assert await locker.try_acquire("prices", MINUTE) is None
    assert await lease.renew(timedelta(hours=1)) == lease.expires_at
    async with await psycopg.AsyncConnection.connect(db) as acting:
        assert await lease.assert_held(acting) == lease.expires_at
    await lease.release()
    await lease.release()
    again = await locker.try_acquire("prices", MINUTE)
    assert again is not None and again.token > lease.token
    take_away(conn, "prices")
    with pytest.raises(LeaseLost):
        await again.renew(MINUTE)
    await locker.close()


# --- leased jobs --------------------------------------------------------------


def leased(handler: Any, **options: Any) -> Job:
    return Job("job", "@every 1h", handler, lease=LeaseOptions(enabled=True, **options))


def test_of_two_replicas_one_runs_the_job(db: str, conn: psycopg.Connection) -> None:
    begun, go = threading.Event(), threading.Event()
    locker, other = PostgresLocker(db), PostgresLocker(db)
    first, second = Scheduler(locker=locker), Scheduler(locker=other)
    tokens: list[int] = []

    def handler(context: JobContext) -> None:
        tokens.append(context.token)
        context.assert_held(conn)
        begun.set()
        assert go.wait(DEADLINE_S)

    for scheduler in (first, second):
        scheduler.register(leased(handler))
    running = threading.Thread(target=first.trigger, args=("job",))
    running.start()
    assert begun.wait(DEADLINE_S)
    with pytest.raises(RunSkipped) as skipped:
        second.trigger("job")
    assert skipped.value.reason == "lease_contended"
    go.set()
    running.join(DEADLINE_S)
    second.trigger("job")
    assert tokens[0] < tokens[1]
    for each in (locker, other):
        each.close()


async def test_a_lease_that_is_taken_away_ends_the_run(
    db: str, conn: psycopg.Connection, seen: Seen
) -> None:
    async def robbed() -> None:
        await asyncio.to_thread(take_away, conn, "job")
        await asyncio.Event().wait()

    locker = AsyncPostgresLocker(db)
    scheduler = AsyncScheduler(locker=locker, observers=[seen])
    scheduler.register(leased(robbed, ttl=60, renew_interval=0.01))
    with pytest.raises(WrongOwner):
        await scheduler.trigger("job")
    assert seen.kinds == ["scheduled", "started", "failed"]
    assert conn.execute("select owner from sokka.locks").fetchone() == ("thief",)
    await locker.close()


# --- app.lock -----------------------------------------------------------------


def test_a_lock_is_held_for_its_block(app: Sokka, conn: psycopg.Connection) -> None:
    with app.lock("prices") as lease:
        assert not lease.lost
        lease.check()
        assert "prices" in repr(lease)
        with pytest.raises(LockHeld) as held, app.lock("prices"):
            raise AssertionError
        assert held.value.detail == {"key": "prices"}
        with conn.transaction():
            assert lease.assert_held(conn) == lease.expires_at
            conn.execute("select sokka.advance_fence('prices', %s)", (lease.token,))
        token = lease.token
    with app.lock("prices") as lease:
        assert lease.token > token


def test_a_lock_is_renewed_while_its_block_runs(app: Sokka, conn: psycopg.Connection) -> None:
    with app.lock("prices", ttl=3) as lease:
        first = lease.expires_at
        never = threading.Event()
        while lease.expires_at == first:
            assert not never.wait(0.01) and not lease.lost
        lease.assert_held(conn)


def test_a_block_that_loses_its_lock_fails(app: Sokka, conn: psycopg.Connection) -> None:
    waited = threading.Event()
    with pytest.raises(WrongOwner), app.lock("prices", ttl=2) as lease:
        take_away(conn, "prices")
        while not lease.lost:
            waited.wait(0.005)
        with pytest.raises(LeaseLost):
            lease.check()
    with pytest.raises(LockHeld), app.lock("prices"):
        raise AssertionError


def test_a_block_of_a_lost_lock_raises_its_own_error_first(
    app: Sokka, conn: psycopg.Connection
) -> None:
    with pytest.raises(ZeroDivisionError), app.lock("prices"):
        take_away(conn, "prices")
        raise ZeroDivisionError


def test_a_lock_is_waited_for(app: Sokka) -> None:
    begun, go = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        with app.lock("prices"):
            begun.set()
            assert go.wait(DEADLINE_S)
            order.append("first")

    holder = threading.Thread(target=first)
    holder.start()
    assert begun.wait(DEADLINE_S)
    with pytest.raises(LockHeld), app.lock("prices", wait=0.05):
        raise AssertionError
    go.set()
    with app.lock("prices", wait=DEADLINE_S):
        order.append("second")
    holder.join(DEADLINE_S)
    assert order == ["first", "second"]


@pytest.mark.parametrize("options", [{"ttl": 0.1}, {"ttl": None}, {"wait": -1}, {"wait": None}])
def test_a_lock_that_could_not_be_kept_is_refused(app: Sokka, options: dict[str, Any]) -> None:
    with pytest.raises(BadArgument), app.lock("prices", **options):
        raise AssertionError


async def test_an_async_block_holds_the_lock_too(app: Sokka, db: str) -> None:
    async with app.lock_async("prices") as lease:
        with pytest.raises(LockHeld):
            async with app.lock_async("prices", wait=0.05):
                raise AssertionError
        async with await psycopg.AsyncConnection.connect(db) as acting:
            await lease.assert_held(acting)
    async with app.lock_async("prices"):
        pass


async def test_an_async_block_that_loses_its_lock_is_cancelled(
    app: Sokka, conn: psycopg.Connection
) -> None:
    with pytest.raises(WrongOwner):
        async with app.lock_async("prices", ttl=2):
            await asyncio.to_thread(take_away, conn, "prices")
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)


async def test_an_async_block_that_ends_after_the_loss_fails_as_well(
    app: Sokka, conn: psycopg.Connection
) -> None:
    with pytest.raises(WrongOwner):
        async with app.lock_async("prices", ttl=2) as lease:
            take_away(conn, "prices")
            while not lease.lost:  # without an await: the loop cannot cancel
                pass
    await asyncio.sleep(0)


async def test_a_cancellation_from_outside_passes_and_frees_the_lock(app: Sokka) -> None:
    inside = asyncio.Event()

    async def block() -> None:
        async with app.lock_async("prices"):
            inside.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(block())
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with app.lock_async("prices"):
        pass


async def test_who_is_cancelled_while_asking_leaves_no_lock_behind(
    app: Sokka, conn: psycopg.Connection, connect: Connect
) -> None:
    async with app.lock_async("prices"):
        pass
    blocker = connect(autocommit=False)
    blocker.execute("lock sokka.locks in access exclusive mode")

    async def block() -> None:
        async with app.lock_async("prices"):
            raise AssertionError

    asking = asyncio.create_task(block())
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    await until(lambda: conn.execute(waiting).fetchone() == (1,))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    blocker.rollback()
    free = "select lock_expires_at <= now() from sokka.locks"
    await until(lambda: conn.execute(free).fetchone() == (True,))


async def test_a_lock_has_connections_of_its_own(db: str) -> None:
    from sokka_pg import ConnectionOptions

    app = Sokka(db, connections=ConnectionOptions(max_size=1, wait=timedelta(seconds=1)))
    with app.store._source.connection(), app.lock("prices") as lease:
        lease.check()
    assert app.locker is app.locker
    app.locker.close()
    app.store.close()


# --- singletons ---------------------------------------------------------------


def test_one_call_of_a_singleton_at_a_time(app: Sokka) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.singleton("prices")
    def work(number: int) -> int:
        """Docs."""
        begun.set()
        assert go.wait(DEADLINE_S)
        assert isinstance(held_lease(), KeptLease)
        return number + 1

    assert work.__doc__ == "Docs."
    found: list[int] = []
    first = threading.Thread(target=lambda: found.append(work(1)))
    first.start()
    assert begun.wait(DEADLINE_S)
    with pytest.raises(LockHeld):
        work(2)
    go.set()
    first.join(DEADLINE_S)
    assert (found, work(number=3)) == ([2], 4)
    with pytest.raises(UsageError):
        held_lease()


def test_a_skipping_singleton_returns_none_only_for_its_own_lock(app: Sokka) -> None:
    @app.singleton("prices", skip=True)
    def work(other: str) -> str:
        with app.lock(other):
            return other

    with app.lock("prices"):
        assert work("books") is None
    with app.lock("books"), pytest.raises(LockHeld):
        work("books")
    assert work("books") == "books"


async def test_async_singletons(app: Sokka) -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    @app.singleton("prices", skip=True)
    async def work() -> int:
        inside.set()
        await go.wait()
        return held_lease().token

    @app.singleton("prices", wait=DEADLINE_S)
    async def waits() -> int:
        return held_lease().token

    first = asyncio.create_task(work())
    await inside.wait()
    assert await work() is None
    later = asyncio.create_task(waits())
    go.set()
    assert await first < await later


def test_a_generator_is_no_singleton(app: Sokka) -> None:
    with pytest.raises(UsageError, match="generator"):

        @app.singleton("prices")
        def work() -> Iterator[int]:
            yield 1


def test_a_singleton_may_be_a_task(app: Sokka) -> None:
    @app.task
    @app.singleton("prices")
    def prices(day: str) -> str:
        return day

    assert prices("monday") == "monday"
    assert prices.enqueue("tuesday").created

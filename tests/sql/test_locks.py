"""Leased singletons: one owner of a key at a time, and a token that only rises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.sql.calling import Clock, Queue, Row

VERBS = ("renew_lock", "release_lock", "assert_lock")


def take(queue: Queue, key: str = "k", owner: str = "a", ttl: str = "1 minute") -> Row:
    """The lock, with what shows that it is the caller's."""
    found = queue.one("try_lock", key=key, owner=owner, ttl=ttl)
    found.key, found.owner = key, owner
    return found


def proof(lock: Row, **changed: Any) -> dict[str, Any]:
    return {"key": lock.key, "owner": lock.owner, "token": lock.token} | changed


def verb(queue: Queue, name: str, lock: Row, **changed: Any) -> Any:
    """How the verb is refused; None where it is accepted."""
    more = {"ttl": "1 minute"} if name == "renew_lock" else {}
    return queue.refusal(name, **proof(lock, **changed), **more)


def stored(queue: Queue) -> list[Row]:
    return queue.rows("select * from sokka.locks order by key")


def test_a_free_key_is_taken_and_a_held_one_is_not(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    lock = take(fresh)
    assert (lock.lock_expires_at - now).total_seconds() == 60
    before = stored(fresh)
    for owner in ("b", "a"):
        assert fresh.call("try_lock", key="k", owner=owner, ttl="1 minute") == []
    assert stored(fresh) == before
    assert take(fresh, "another").token > lock.token


def test_a_key_is_free_again_at_exactly_its_end(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    lock = take(fresh)
    clock.advance("59.999999 s")
    assert fresh.call("try_lock", key="k", owner="b", ttl="1 minute") == []
    assert verb(fresh, "assert_lock", lock) is None
    clock.advance("1 microsecond")
    for name in VERBS:
        assert verb(fresh, name, lock).sqlstate == "SK004", name
    assert take(fresh, owner="b").token > lock.token


def test_a_renewal_counts_from_now_and_may_shorten(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    lock = take(fresh)
    clock.advance("30 s")
    for ttl, seconds in (("2 minutes", 120), ("1 s", 1)):
        renewed = fresh.one("renew_lock", **proof(lock), ttl=ttl)
        assert (renewed.lock_expires_at - clock.now()).total_seconds() == seconds
        assert fresh.one("assert_lock", **proof(lock)) == renewed
    assert stored(fresh)[0].token == lock.token


def test_a_released_key_is_free_at_once(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    lock = take(fresh)
    assert fresh.one("release_lock", **proof(lock)).released_at == now
    assert verb(fresh, "release_lock", lock).sqlstate == "SK004"
    assert take(fresh, owner="b").token > lock.token


@pytest.mark.parametrize("name", VERBS)
def test_who_does_not_hold_the_key_is_told_why_and_changes_nothing(
    fresh: Queue, clock: Clock, name: str
) -> None:
    clock.stop()
    first = take(fresh)
    fresh.one("release_lock", **proof(first))
    lock = take(fresh)
    before = stored(fresh)
    for claim, state in (
        ({"owner": "b"}, "SK003"),
        ({"owner": "b", "token": first.token}, "SK003"),
        ({"key": "unknown"}, "SK003"),
        ({"token": first.token}, "SK005"),
        ({"token": lock.token + 1}, "SK005"),
    ):
        found = verb(fresh, name, lock, **claim)
        assert found.sqlstate == state, claim
        assert found.detail["expected"]["owner"] == claim.get("owner", "a")
    clock.advance("1 hour")
    assert verb(fresh, name, lock, owner="b").sqlstate == "SK003"
    assert verb(fresh, name, lock, token=first.token).sqlstate == "SK005"
    found = verb(fresh, name, lock)
    assert (found.sqlstate, found.detail["token"]) == ("SK004", lock.token)
    assert stored(fresh) == before


def test_the_token_of_a_key_rises_through_owners_and_restarts_of_the_sequence(
    fresh: Queue, clock: Clock
) -> None:
    clock.stop()
    tokens = []
    for owner in "abcab":
        tokens.append(take(fresh, owner=owner).token)
        clock.advance("1 minute")
    fresh.value("select sokka.raise_token_epoch('a restore')")
    tokens.append(take(fresh, owner="c").token)
    assert tokens == sorted(set(tokens))


def test_the_token_serves_as_a_fence(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    old = take(fresh)
    clock.advance("1 minute")
    new = take(fresh, owner="b")
    fresh.one("advance_fence", resource="file", token=new.token)
    assert fresh.refused("advance_fence", resource="file", token=old.token).sqlstate == "SK011"


@pytest.mark.parametrize("how", ["delete from", "truncate"])
def test_a_lock_is_never_forgotten(fresh: Queue, how: str) -> None:
    lock = take(fresh)
    fresh.one("release_lock", **proof(lock))
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must only rise"):
        fresh.execute(f"{how} sokka.locks")
    fresh.value("select sokka.apply_retention(1000)")
    assert len(stored(fresh)) == 1


def test_held_locks_shows_those_that_somebody_holds_now(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    take(fresh, "over", ttl="1 s")
    fresh.one("release_lock", **proof(take(fresh, "released")))
    lock = take(fresh, "held")
    clock.advance("1 s")
    (shown,) = fresh.rows("select * from sokka.held_locks")
    assert (shown.key, shown.owner, shown.token) == ("held", "a", lock.token)
    assert shown.lock_expires_at == lock.lock_expires_at


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("name", ["try_lock", *VERBS])
def test_an_older_snapshot_is_refused(
    fresh: Queue, another: Callable[..., Queue], level: str, name: str
) -> None:
    lock = take(fresh)
    caller = another(autocommit=False)
    caller.execute(f"set transaction isolation level {level}")
    if name == "try_lock":
        found = caller.refused("try_lock", key="new", owner="b", ttl="1 s")
    else:
        found = verb(caller, name, lock)
    assert found.sqlstate == "25001"


def test_what_is_undone_took_no_lock(fresh: Queue, another: Callable[..., Queue]) -> None:
    caller = another(autocommit=False)
    undone = take(caller)
    caller.connection.rollback()
    assert take(fresh, owner="b").token > undone.token
    assert verb(fresh, "assert_lock", undone).sqlstate == "SK003"


@pytest.mark.parametrize("key", ["x" * 500, "é" * 250, "a\nb", " ", "it's"])
def test_any_text_of_up_to_500_bytes_is_a_key(fresh: Queue, key: str) -> None:
    lock = take(fresh, key)
    assert verb(fresh, "release_lock", lock) is None

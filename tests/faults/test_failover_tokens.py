"""Tokens and fences when the last grants of a primary are lost with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from sokka_pg import migrate
from sokka_pg.embedded import Binaries, Server, all_binaries
from tests.faults.chaos import pair

MAJORS = [pytest.param(each, id=f"pg{each.version}") for each in all_binaries()]
DATABASE = "queue"
LEASE = "1 hour"

Connection = psycopg.Connection[Any]
Grant = tuple[str, str, int]
"""Task, owner, token."""


@pytest.fixture(params=MAJORS)
def two(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    binaries: Binaries = request.param
    with pair.pair(binaries, {"fsync": "off"}) as servers:
        with pair.admin(servers[0]) as asking:
            asking.execute(f"create database {DATABASE}")
        migrate.upgrade(servers[0].url(DATABASE))
        yield servers


@pytest.fixture
def fence(two: tuple[Server, Server]) -> Iterator[Connection]:
    """A second database, on a server that nothing happens to."""
    binaries = next(each for each in all_binaries() if each.version == two[0].version)
    with Server.temporary(binaries=binaries, settings={"fsync": "off"}) as server:
        migrate.fence_only(server.url())
        with psycopg.connect(server.url(), autocommit=True) as asking:
            yield asking


def queue(server: Server) -> Connection:
    return pair.admin(server, DATABASE)


def enqueue(asking: Connection, count: int) -> None:
    asking.execute("select sokka.create_task('t') from generate_series(1, %s)", (count,))


def reserve(asking: Connection, owner: str, count: int) -> list[Grant]:
    rows = asking.execute(
        "select task_id::text, pid, token from sokka.reserve_tasks('{t}', %s, %s, %s)",
        (owner, count, LEASE),
    ).fetchall()
    assert len(rows) == count
    return [(str(task), str(pid), int(token)) for task, pid, token in rows]


def lock(asking: Connection, owner: str) -> int:
    """A token of the lock ``singleton``, whoever held it."""
    asking.execute("update sokka.locks set lock_expires_at = clock_timestamp() - interval '1 s'")
    row = asking.execute(
        "select token from sokka.try_lock('singleton', %s, %s)", (owner, LEASE)
    ).fetchone()
    assert row is not None
    return int(row[0])


def refusal(asking: Connection, verb: str, grant: Grant) -> str | None:
    """The SQLSTATE with which an owner's word is refused."""
    arguments = {"terminate_task": ", null", "extend_lease": "", "report_progress": ", '1'"}[verb]
    try:
        asking.execute(f"select * from sokka.{verb}(%s, %s, %s{arguments})", grant)
    except psycopg.Error as error:
        return error.sqlstate
    return None


def advance(fence: Connection, grant: Grant) -> bool:
    """Whether the second database lets this owner write."""
    try:
        fence.execute("select sokka.advance_fence(%s, %s)", (grant[0], grant[2]))
    except psycopg.Error as error:
        assert error.sqlstate == "SK011", error
        return False
    return True


def seen_by(fence: Connection) -> dict[str, int]:
    return dict(fence.execute("select resource, token from sokka.fences").fetchall())


def microseconds(asking: Connection) -> int:
    row = asking.execute(
        "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
    ).fetchone()
    assert row is not None
    return int(row[0])


def killed_and_replaced(old: Server, new: Server, receiver: pair.Receiver) -> None:
    old.kill()
    receiver.end()
    new.promote()


def check_the_lost_are_refused(asking: Connection, lost: list[Grant]) -> None:
    """Their owners never came to know that the grants are gone."""
    for grant in lost:
        for verb in ("extend_lease", "report_progress", "terminate_task"):
            assert refusal(asking, verb, grant) in ("SK006", "SK003", "SK005"), (verb, grant)


def test_grants_after_a_failover_are_above_every_lost_one_and_old_tokens_stay_dead(
    two: tuple[Server, Server], fence: Connection
) -> None:
    old, new = two
    highest = 0
    for round_ in range(2):
        with queue(old) as asking:
            enqueue(asking, 20)
            kept = reserve(asking, "kept", 3)
            pair.caught_up(old)
            receiver = pair.Receiver(new)
            receiver.stop()
            lost = reserve(asking, "lost", 8)
            lost_lock = max(lock(asking, "lost") for _ in range(3))
        assert all(advance(fence, grant) for grant in [*kept, *lost])
        before, since = seen_by(fence), microseconds(fence)
        killed_and_replaced(old, new, receiver)
        with queue(new) as asking:
            assert all(refusal(asking, "extend_lease", grant) is None for grant in kept)
            check_the_lost_are_refused(asking, lost)
            # the first grant of all on this timeline, to an owner of the same name
            again = reserve(asking, "lost", 12)
            assert {task for task, _, _ in lost} <= {task for task, _, _ in again}
            highest = max(highest, lost_lock, *(token for _, _, token in [*kept, *lost]))
            drawn = sorted(token for _, _, token in again)
            # lifted to the clock, above all that was ever drawn, and once
            assert highest < since < drawn[0]
            assert drawn == list(range(drawn[0], drawn[0] + len(drawn)))
            check_the_lost_are_refused(asking, lost)
            assert {refusal(asking, "extend_lease", grant) for grant in lost} == {"SK005"}
            assert lock(asking, "new") > max(lost_lock, *(token for _, _, token in again))
            assert all(refusal(asking, "extend_lease", grant) is None for grant in again)
            check_the_fence_only_rises(fence, before, lost, again)
            highest = max(token for _, _, token in again)
            for grant in [*kept, *again]:
                assert refusal(asking, "terminate_task", grant) is None, round_
            asking.execute("select sokka.cancel_task(task_id) from sokka.tasks")
        old.follow(new)
        pair.caught_up(new)
        old, new = new, old


def check_the_fence_only_rises(
    fence: Connection, before: dict[str, int], lost: list[Grant], again: list[Grant]
) -> None:
    """It let the lost owners through, for it knew no better; then never again."""
    assert all(advance(fence, grant) for grant in again)
    assert not any(advance(fence, grant) for grant in lost)
    after = seen_by(fence)
    assert all(after[resource] >= token for resource, token in before.items())
    assert {task: token for task, _, token in again}.items() <= after.items()


@pytest.mark.long
def test_a_primary_that_lives_on_grants_only_what_the_fence_of_the_new_one_refuses(
    two: tuple[Server, Server], fence: Connection
) -> None:
    old, new = two
    with ExitStack() as stack:
        here = stack.enter_context(queue(old))
        enqueue(here, 12)
        pair.caught_up(old)
        receiver = pair.Receiver(new)
        receiver.stop()
        ghosts = reserve(here, "ghost", 2)
        # cut off from its standby, and told nothing
        with pair.admin(new) as asking:
            asking.execute("alter system set primary_conninfo = ''")
            asking.execute("select pg_reload_conf()")
        receiver.end()
        new.promote()
        there = stack.enter_context(queue(new))
        for _ in range(3):
            owners = reserve(there, "owner", 2)
            ghosts += reserve(here, "ghost", 2)
            locks = lock(here, "ghost"), lock(there, "owner")
            assert locks[0] < locks[1]
            assert max(token for _, _, token in ghosts) < min(token for _, _, token in owners)
            assert all(advance(fence, grant) for grant in owners)
            taken = {task for task, _, _ in owners}
            assert not any(advance(fence, grant) for grant in ghosts if grant[0] in taken)

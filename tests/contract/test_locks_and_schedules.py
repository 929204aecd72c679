"""Locks and schedules, for every kind of caller; firing through both stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from sokka_pg.errors import (
    BadArgument,
    LeaseExpired,
    NoScheduleFound,
    ScheduleExists,
    UsageError,
    WrongOwner,
)
from sokka_pg.model import DueSchedule, FireVerdict, ScheduleFire
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore
from tests.contract.callers import AsyncCaller, Caller, SyncCaller, refusal
from tests.contract.test_caller_transactions import ASYNC, SYNC, name

LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)
FAR = datetime(2999, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def spec(**said: Any) -> dict[str, Any]:
    return {
        "schedule": "@every 1h",
        "next_at": LONG_AGO,
        "task": {"topic": "ticks", "data": {"n": [1, None]}},
    } | said


def once_each(due: list[DueSchedule]) -> list[ScheduleFire]:
    """The tick of each becomes a task; the next one is far off."""
    return [
        ScheduleFire(each.schedule_id, each.generation, each.due_at, (each.due_at,), FAR)
        for each in due
    ]


@pytest.fixture(params=[SyncCaller, AsyncCaller], ids=["sync", "async"])
def either(request: pytest.FixtureRequest, db: str) -> Any:
    found = request.param(db)
    yield found
    found.close()


def test_a_key_has_one_owner_until_it_is_released(caller: Caller) -> None:
    lock = caller("try_lock", "k", "a", 60)
    assert caller("try_lock", "k", "b", 60) is None
    assert caller("try_lock", "k", "a", 60) is None
    ends = caller("renew_lock", "k", "a", lock.token, 120)
    assert ends > lock.lock_expires_at
    assert caller("assert_lock", "k", "a", lock.token) == ends
    caller("release_lock", "k", "a", lock.token)
    assert caller("try_lock", "k", "b", 60).token > lock.token


@pytest.mark.parametrize("verb", ["renew_lock", "release_lock", "assert_lock"])
def test_who_does_not_hold_the_key_is_told_why(caller: Caller, verb: str) -> None:
    lock = caller("try_lock", "k", "a", 60)
    more = (60,) if verb == "renew_lock" else ()
    for key, owner, token, state in (
        ("k", "b", lock.token, "SK003"),
        ("unknown", "a", lock.token, "SK003"),
        ("k", "a", lock.token - 1, "SK005"),
    ):
        assert refusal(caller, verb, key, owner, token, *more) == state
    caller("release_lock", "k", "a", lock.token)
    assert refusal(caller, verb, "k", "a", lock.token, *more) == "SK004"


def test_bad_arguments_of_locks_are_refused(caller: Caller) -> None:
    for arguments in (
        ("", "a", 60), ("k" * 501, "a", 60), (None, "a", 60), ("k", "", 60), ("k", "a", 0),
        ("k", "a", None), ("k", "a", 366 * 86_400),
    ):  # fmt: skip
        assert refusal(caller, "try_lock", *arguments) == "22023", arguments


def test_a_lock_tells_what_it_is_for(store: PgTaskStore) -> None:
    lock = store.try_lock("k", "a", timedelta(minutes=1))
    assert lock is not None
    assert (lock.key, lock.owner) == ("k", "a")
    with pytest.raises(WrongOwner) as refused:
        store.assert_lock("k", "b", lock.token)
    assert refused.value.detail["key"] == "k"
    store.release_lock(lock.key, lock.owner, lock.token)
    with pytest.raises(LeaseExpired):
        store.renew_lock(lock.key, lock.owner, lock.token, 60)


@pytest.mark.parametrize("begun", SYNC, ids=name)
def test_nobody_takes_a_key_while_the_callers_transaction_is_open(
    db: str, store: PgTaskStore, begun: Any, until: Callable[..., None]
) -> None:
    lock = store.try_lock("k", "a", timedelta(seconds=0.5))
    assert lock is not None
    with begun(db) as connection:
        ends = store.assert_lock("k", "a", lock.token, connection=connection)
        assert ends == lock.lock_expires_at
        until("select clock_timestamp() > %s", ends)
        assert store.try_lock("k", "b", 60) is None
        connection.rollback()
    assert store.try_lock("k", "b", 60) is not None


def test_a_schedule_is_put_read_changed_and_deleted(caller: Caller) -> None:
    made = caller("put_schedule", "s", spec(missed="all", serial=True, repeats=9, source="app:a"))
    assert (made.generation, made.created, made.changed) == (1, True, True)
    found = caller("schedule", "s")
    assert (found.schedule_id, found.name, found.state) == (made.schedule_id, "s", "active")
    assert (found.schedule, found.next_at, found.missed) == ("@every 1h", LONG_AGO, "all")
    assert (found.serial, found.repeats, found.source) == (True, 9, "app:a")
    assert found.task == {"topic": "ticks", "data": {"n": [1, None]}}
    assert (found.grace, found.error, found.last_task_id) == (timedelta(minutes=1), None, None)
    again = caller("put_schedule", "s", spec(missed="all", serial=True, repeats=9, source="app:a"))
    assert (again.generation, again.created, again.changed) == (1, False, False)
    assert refusal(caller, "put_schedule", "s", spec(), False) == "SK014"
    changed = caller("put_schedule", "s", spec(next_at=FAR))
    assert (changed.generation, changed.created, changed.changed) == (2, False, True)
    assert caller("delete_schedule", "s", "no more") is True
    assert caller("delete_schedule", "s") is False
    assert caller("schedule", "s") is None


def test_every_key_of_a_spec_arrives(either: Any) -> None:
    either(
        "put_schedule",
        "s",
        spec(
            anchor_at=LONG_AGO - HOUR, missed="skip", max_catch_up=7, grace=timedelta(seconds=1.5),
            serial=False, repeats=3, expires_at=FAR, source="app:x", description="é\n\"'\\",
            task={"topic": "t", "kind": "k", "timeout": 5, "retry": 3, "headers": {"a": "b"}},
        ),
    )  # fmt: skip
    found = either("schedule", "s")
    assert (found.anchor_at, found.missed, found.max_catch_up) == (LONG_AGO - HOUR, "skip", 7)
    assert (found.grace, found.serial, found.repeats) == (timedelta(seconds=1.5), False, 3)
    assert (found.expires_at, found.source, found.description) == (FAR, "app:x", "é\n\"'\\")
    assert (found.topic, found.kind, found.task["headers"]) == ("t", "k", {"a": "b"})


def test_none_in_a_spec_is_the_same_as_saying_nothing(either: Any) -> None:
    either("put_schedule", "s", spec())
    optional = ("anchor_at", "missed", "max_catch_up", "grace", "serial", "repeats",
                "expires_at", "source", "description")  # fmt: skip
    assert either("put_schedule", "s", spec(**dict.fromkeys(optional))).changed is False


def test_schedules_are_steered_by_name(caller: Caller) -> None:
    for verb in ("pause_schedule", "resume_schedule", "trigger_schedule"):
        assert refusal(caller, verb, "s") == "SK015"
    caller("put_schedule", "s", spec(next_at=FAR))
    paused = caller("pause_schedule", "s", "holiday")
    assert (paused.name, paused.state) == ("s", "paused")
    assert caller("next_schedule_at") is None
    assert caller("resume_schedule", "s").state == "active"
    assert caller("next_schedule_at").look_at == FAR
    run = caller("trigger_schedule", "s", "now")
    task = caller("task", run.task_id)
    assert (task.topic, task.headers["sokka-schedule"]) == ("ticks", "s")
    assert caller("schedule", "s").runs == 0


def test_schedules_are_listed_in_pages(store: PgTaskStore) -> None:
    for number in range(5):
        store.put_schedule(f"s{number}", spec(source="app:a" if number % 2 else "app:b"))
    store.pause_schedule("s3")
    first = store.list_schedules(limit=3)
    rest = store.list_schedules(cursor=first.cursor, limit=3)
    assert [found.name for found in first.items + rest.items] == [f"s{n}" for n in range(5)]
    assert rest.cursor is None
    listed = store.list_schedules({"source": "app:a", "state": "paused", "prefix": "s"})
    assert [found.name for found in listed.items] == ["s3"]
    assert listed.items[0] == store.schedule("s3")


def test_filters_of_schedules_are_the_same_for_all(caller: Caller) -> None:
    caller("put_schedule", "s", spec())
    for filters in ({"topic": "t"}, {"state": "done"}, {"source": 1}):
        assert refusal(caller, "list_schedules", filters) == "22023", filters


def test_what_is_due_fires_in_one_transaction(either: Any) -> None:
    for number in range(3):
        either("put_schedule", f"s{number}", spec())
    assert either("next_schedule_at").wait == timedelta(0)
    seen: list[DueSchedule] = []

    def plan(due: list[DueSchedule]) -> list[ScheduleFire]:
        seen.extend(due)
        return once_each(due)

    assert len(either("fire_due", plan, 2)) == 2
    verdicts = either("fire_due", plan)
    last = either("schedule", seen[2].name)
    assert verdicts == [FireVerdict(last.schedule_id, 1, "ok", (last.last_task_id,))]
    assert either("fire_due", plan) == []
    (due,) = [each for each in seen if each.name == "s0"]
    assert (due.schedule, due.due_at, due.missed) == ("@every 1h", LONG_AGO, "one")
    assert (due.grace, due.busy, due.repeats, due.runs) == (timedelta(minutes=1), False, None, 0)
    assert due.clock > due.due_at
    found = either("schedule", "s0")
    assert (found.runs, found.last_fire_at, found.next_at) == (1, LONG_AGO, FAR)
    assert either("task", found.last_task_id).headers["sokka-schedule"] == "s0"
    assert timedelta(0) < either("next_schedule_at").wait <= FAR - due.clock


def test_a_plan_that_raises_fires_nothing(either: Any) -> None:
    either("put_schedule", "s", spec())

    def plan(due: list[DueSchedule]) -> list[ScheduleFire]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        either("fire_due", plan)
    assert either("schedule", "s").runs == 0
    assert either("fire_due", once_each)[0].verdict == "ok"


def test_what_becomes_of_a_due_schedule_is_told_in_full(either: Any) -> None:
    for said, state, skipped in (
        ({"skipped": 3, "next_at": FAR}, "active", 3),
        ({"busy": True}, "active", 0),
        ({"error": "no such zone\x00" + "x" * 9_000}, "failing", 0),
        ({"next_at": None}, "finished", 0),
    ):
        either("put_schedule", "s", spec(description=str(said)[:20]))
        either(
            "fire_due",
            lambda due, said=said: [
                ScheduleFire(each.schedule_id, each.generation, each.due_at, **said)
                for each in due
            ],
        )
        found = either("schedule", "s")
        assert (found.state, found.skipped, found.runs) == (state, skipped, 0), said
        assert (found.error or "").startswith("no such zone") == (state == "failing")


def test_a_schedule_that_is_not_as_it_was_found_does_not_fire(store: PgTaskStore) -> None:
    store.put_schedule("s", spec())
    found = store.schedule("s")
    assert found is not None
    assert found.next_at is not None
    stale = ScheduleFire(found.schedule_id, found.generation, found.next_at, [found.next_at])
    store.put_schedule("s", spec(missed="all"))
    strange = ScheduleFire(uuid4(), 1, LONG_AGO)
    verdicts = store.fire_schedules([stale, strange])
    assert [(verdict.fired, verdict.verdict) for verdict in verdicts] == [(0, "SK007")] * 2


@pytest.mark.parametrize("begun", SYNC, ids=name)
def test_the_callers_transaction_fires_or_does_not(
    db: str, store: PgTaskStore, begun: Any
) -> None:
    store.put_schedule("s", spec())
    with begun(db) as connection:
        for end, runs in ((connection.rollback, 0), (connection.commit, 1)):
            due = store.due_schedules(10, connection=connection)
            assert [each.name for each in due] == ["s"]
            assert store.fire_due(once_each) == [], "locked by the open transaction"
            (fired,) = store.fire_schedules(once_each(due), connection=connection)
            assert (fired.verdict, fired.fired) == ("ok", 1)
            end()
            found = store.schedule("s")
            assert found is not None
            assert found.runs == runs
        assert fired.task_ids == (found.last_task_id,)


@pytest.mark.parametrize("begun", ASYNC, ids=name)
async def test_the_async_callers_transaction_fires(
    db: str, async_store: AsyncPgTaskStore, begun: Any
) -> None:
    await async_store.put_schedule("s", spec())
    async with begun(db) as connection:
        lock = await async_store.try_lock("k", "a", 60, connection=connection)
        assert lock is not None
        due = await async_store.due_schedules(connection=connection)
        await async_store.fire_schedules(once_each(due), connection=connection)
        await connection.commit()
    found = await async_store.schedule("s")
    assert found is not None
    assert found.runs == 1
    assert await async_store.assert_lock("k", "a", lock.token) == lock.lock_expires_at


async def test_what_is_due_needs_a_transaction(
    store: PgTaskStore, async_store: AsyncPgTaskStore
) -> None:
    with pytest.raises(UsageError):
        store.due_schedules(connection=None)
    with pytest.raises(UsageError):
        await async_store.due_schedules(connection=None)


async def test_two_async_schedulers_share_what_is_due(async_store: AsyncPgTaskStore) -> None:
    for number in range(20):
        await async_store.put_schedule(f"s{number}", spec())

    async def run() -> int:
        made = 0
        while verdicts := await async_store.fire_due(once_each, 3):
            made += sum(verdict.fired for verdict in verdicts)
        return made

    # One may find the rest locked and stop early; none fires what the other has.
    assert sum(await asyncio.gather(run(), run())) + await run() == 20


def test_refusals_have_classes_of_their_own(store: PgTaskStore) -> None:
    store.put_schedule("s", spec())
    with pytest.raises(ScheduleExists) as exists:
        store.put_schedule("s", spec(repeats=1), overwrite=False)
    assert exists.value.detail == {"name": "s", "generation": 1}
    with pytest.raises(NoScheduleFound) as missing:
        store.trigger_schedule("t")
    assert missing.value.detail == {"name": "t"}


def test_a_bad_task_of_a_schedule_is_named(caller: Caller) -> None:
    for task in ({}, {"topic": "t", "priority": 10}, {"topic": "t", "run_at": "2024-01-01"}, 7):
        assert refusal(caller, "put_schedule", "s", spec(task=task)) == "22023", task


def test_the_limit_of_data_holds_for_the_task_of_a_schedule(db: str) -> None:
    small = PgTaskStore(db, max_data_bytes=100)
    with small as store, pytest.raises(BadArgument, match="larger than 100 bytes"):
        store.put_schedule("s", spec(task={"topic": "t", "data": "x" * 100}))


def test_a_schedule_whose_task_breaks_later_is_told_in_its_verdict(
    store: PgTaskStore, conn: psycopg.Connection
) -> None:
    store.put_schedule("s", spec())
    conn.execute("update sokka.schedules set task = '{}'")
    (verdict,) = store.fire_due(once_each)
    assert (verdict.fired, verdict.verdict) == (0, "22023")
    found = store.schedule("s")
    assert found is not None
    assert (found.state, found.next_at) == ("failing", LONG_AGO)

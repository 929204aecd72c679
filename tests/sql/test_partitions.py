"""Partitions: made ahead, and the default ones emptied, so that no finish ever fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue

OF_TASKS = ("finished_tasks", "past_leases", "payloads", "task_steps", "stream_items")
PARENTS = (*OF_TASKS, "schedule_fires")
LARGE = Jsonb(["%030x" % (n * 7919**8) for n in range(400)])


def weeks(queue: Queue, parent: str) -> list[str]:
    return [
        row.name
        for row in queue.rows(
            "select right(c.relname, 8) as name from pg_inherits i join pg_class c on c.oid ="
            " i.inhrelid where i.inhparent = %s::regclass and c.relname !~ 'default$' order by 1",
            (f"sokka.{parent}",),
        )
    ]


def in_default(queue: Queue) -> list[int]:
    return [queue.value(f"select count(*) from sokka.{parent}_default") for parent in OF_TASKS]


def test_three_weeks_and_the_one_that_runs_are_there_from_the_start(fresh: Queue) -> None:
    wanted = [
        row.start
        for row in fresh.rows(
            "select to_char(date_trunc('week', now() at time zone 'UTC')"
            " + make_interval(weeks => n), 'YYYYMMDD') as start from generate_series(0, 3) n"
        )
    ]
    for parent in PARENTS:
        assert weeks(fresh, parent) == wanted
    assert fresh.value("select sokka.prepare_partitions()") == 0


def test_the_sweep_makes_those_of_the_coming_weeks(fresh: Queue, clock: Clock) -> None:
    before = {parent: weeks(fresh, parent) for parent in PARENTS}
    for passed in range(1, 5):
        clock.advance("7 days")
        fresh.one("sweep")
        for parent in PARENTS:
            made = weeks(fresh, parent)
            assert made[: len(before[parent])] == before[parent]
            assert len(made) >= 4 + passed - 1
    fresh.value("select sokka.prepare_partitions()")
    assert len(weeks(fresh, "finished_tasks")) == 8


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/New_York"])
def test_a_week_is_the_same_in_every_time_zone(fresh: Queue, clock: Clock, zone: str) -> None:
    fresh.execute(f"set timezone = '{zone}'")
    clock.advance("21 days")
    assert fresh.value("select sokka.prepare_partitions()") == 18
    bounds = fresh.rows(
        "select pg_get_expr(c.relpartbound, c.oid) as bound from pg_inherits i"
        " join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'sokka.finished_tasks'::regclass and c.relname !~ 'default$'"
    )
    assert len({row.bound for row in bounds}) == 7
    fresh.execute("set timezone = 'UTC'")
    for row in fresh.rows(
        "select pg_get_expr(c.relpartbound, c.oid) as bound from pg_inherits i"
        " join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'sokka.finished_tasks'::regclass and c.relname !~ 'default$'"
    ):
        assert row.bound.count(" 00:00:00+00'") == 2, row.bound


@pytest.mark.parametrize("noticed", ["at once", "weeks later"])
def test_what_found_no_partition_waits_in_the_default_one_and_moves_along(
    fresh: Queue, clock: Clock, noticed: str
) -> None:
    clock.advance("10 weeks")
    lease = fresh.leased("t", data=LARGE)
    fresh.verb("record_step", lease, name="s", value=Jsonb(1))
    fresh.verb("append_stream", lease, items=Jsonb([1]))
    fresh.verb("release_lease", lease)
    fresh.verb("terminate_task", fresh.reserve("t"), result=Jsonb("B"))
    assert in_default(fresh) == [1, 1, 1, 1, 1]
    before = fresh.image(lease.task_id)
    if noticed == "weeks later":
        clock.advance("3 weeks")
    fresh.one("sweep")
    assert in_default(fresh) == [0, 0, 0, 0, 0]
    assert fresh.image(lease.task_id) == before
    row = fresh.row(lease.task_id)
    assert (row.status, row.result, row.data) == ("terminated", "B", LARGE.obj)
    assert fresh.events(lease.task_id) == [
        "created", "reserved", "released", "reserved", "terminated",
    ]  # fmt: skip


def test_a_partition_has_the_indexes_and_guards_of_its_parent(fresh: Queue, clock: Clock) -> None:
    clock.advance("30 weeks")
    fresh.value("select sokka.prepare_partitions()")
    for parent in PARENTS:
        counted = fresh.rows(
            "select c.relname,"
            " (select count(*) from pg_index x where x.indrelid = c.oid) as indexes,"
            " (select count(*) from pg_trigger g where g.tgrelid = c.oid and tgenabled = 'O')"
            " as guards, (select count(*) from pg_constraint k where k.conrelid = c.oid) as checks"
            " from pg_inherits i join pg_class c on c.oid = i.inhrelid"
            " where i.inhparent = %s::regclass",
            (f"sokka.{parent}",),
        )
        assert len({(row.indexes, row.guards, row.checks) for row in counted}) == 1, counted


def test_making_a_partition_does_not_wait_behind_a_reader_for_long(
    fresh: Queue, another: Callable[..., Queue], clock: Clock
) -> None:
    reader = another(autocommit=False)
    reader.rows("select from sokka.finished_tasks")
    clock.advance("7 days")
    fresh.value("select sokka.prepare_partitions()")
    reader.connection.rollback()
    fresh.value("select sokka.prepare_partitions()")
    assert len(weeks(fresh, "finished_tasks")) == 5
    assert len(weeks(fresh, "payloads")) == 5


def test_two_who_make_partitions_at_once_make_each_once(
    fresh: Queue, another: Callable[..., Queue], clock: Clock
) -> None:
    clock.advance("7 days")
    first = another(autocommit=False)
    assert first.value("select sokka.prepare_partitions()") == 6
    # It does not wait for the other for longer than a moment, and does not fail.
    fresh.value("select sokka.prepare_partitions()")
    first.connection.commit()
    assert fresh.value("select sokka.prepare_partitions()") == 0

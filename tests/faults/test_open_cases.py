"""Failures that others reported of their queues, where no test elsewhere has the same kind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from sokka_pg import FanOutRequest, Sokka, TaskContext
from sokka_pg.events import Lost
from sokka_pg.store import PgTaskStore
from tests.faults.conftest import Working
from tests.faults.waiting import Seen, until_async

Row = Callable[[Any], dict[str, Any]]

# Grants and renewals as they reach the table.
_GRANT = "old.token is null and new.token is not null"
_RENEWAL = "new.token = old.token and new.lease_expires_at > old.lease_expires_at"
# What an earlier life of a worker may have left, beside the task itself.
_TRACES = ("idle_workers", "watched_tasks")


def refuse_twice(conn: psycopg.Connection, when: str, code: str) -> None:
    """The next two changes of a task that are like this end with an error."""
    conn.execute("create sequence public.tries")
    conn.execute("grant all on sequence public.tries to public")
    conn.execute(f"""
        create function public.refuse_twice() returns trigger language plpgsql as $$
        begin
            if nextval('public.tries') <= 2 then
                raise exception 'injected' using errcode = '{code}';
            end if;
            return new;
        end $$""")
    conn.execute(
        f"create trigger refuse_twice before update on sokka.tasks for each row when ({when})"
        " execute function public.refuse_twice()"
    )


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014", "57P01", "XX000"])
@pytest.mark.parametrize("when", [_GRANT, _RENEWAL], ids=["reserve", "extend"])
async def test_a_reserve_or_a_heartbeat_that_fails_for_a_while_costs_nothing_but_time(
    app: Sokka, working: Working, row: Row, seen: Seen, conn: psycopg.Connection,
    when: str, code: str,
) -> None:
    refuse_twice(conn, when, code)

    @app.task(topic="t")
    async def slow(ctx: TaskContext) -> int:
        await asyncio.sleep(1.5)
        return ctx.attempt

    async with working("t", lease=1, poll=0.1):
        task = slow.enqueue()
        await until_async(lambda: row(task)["status"] == "terminated", "its end")
    assert (row(task)["result"], row(task)["losses"]) == (1, 0)
    assert seen.all(Lost) == []
    assert conn.execute("select last_value >= 2 from public.tries").fetchone() == (True,)


async def test_a_task_is_recovered_though_nothing_but_its_row_tells_of_its_worker(
    app: Sokka, working: Working, row: Row, db: str, conn: psycopg.Connection
) -> None:
    @app.task(topic="t")
    async def quick(ctx: TaskContext) -> int:
        return ctx.attempt

    with PgTaskStore(db) as store:
        task = quick.enqueue()
        store.watch_tasks("gone", [task.task_id], 60)
        (lease,) = store.reserve_tasks(["t"], "gone", 1, lease=0.3)
    for table in _TRACES:
        conn.execute(f"delete from sokka.{table}")
    async with working("t", poll=0.1):
        await until_async(lambda: row(task)["status"] == "terminated", "its end")
    found = row(task)
    assert (found["result"], found["losses"], found["token"] > lease.token) == (2, 1, True)


async def test_a_waiting_parent_hears_of_a_child_that_can_never_run(
    app: Sokka, working: Working, row: Row, db: str
) -> None:
    @app.task(topic="t")
    async def parent(ctx: TaskContext) -> list[str]:
        request = FanOutRequest([1], kind="child", topic="paused", deadline=0.5)
        found = await ctx.fan_out("below", request)
        return [each.failure.code for each in found.results if each.failure is not None]

    with PgTaskStore(db) as store:
        store.pause_topic("paused", reason="for ever")
        task = parent.enqueue()
        async with working("t", poll=0.1):
            await until_async(lambda: row(task)["status"] == "terminated", "its end")
    assert row(task)["result"] == ["deadline"]

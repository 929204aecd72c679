"""A worker applies retention; nobody else need."""

from __future__ import annotations

import asyncio

import psycopg

from sokka_pg.connections import ConnectionOptions
from sokka_pg.worker.housekeeping import keep_house

OLD = "timestamptz '2001-01-01 00:00+00'"
GONE = "select to_regclass('sokka.finished_tasks_20010101') is null"


async def until_gone(conn: psycopg.Connection) -> bool:
    async with asyncio.timeout(30):
        while not conn.execute(GONE).fetchone()[0]:
            await asyncio.sleep(0.01)
    return True


async def test_a_worker_drops_partitions_that_are_past_retention(
    db: str, conn: psycopg.Connection
) -> None:
    conn.execute(f"select sokka.make_partition('finished_tasks', 'finished_at', {OLD})")
    house = asyncio.create_task(keep_house(db, "sokka", ConnectionOptions(), first_s=0))
    try:
        assert await until_gone(conn)
    finally:
        house.cancel()


async def test_a_round_that_fails_is_followed_by_another(
    db: str, conn: psycopg.Connection
) -> None:
    conn.execute(f"select sokka.make_partition('finished_tasks', 'finished_at', {OLD})")
    conn.execute("alter function sokka.apply_retention rename to hidden")
    house = asyncio.create_task(
        keep_house(db, "sokka", ConnectionOptions(), first_s=0, every_s=0.05)
    )
    try:
        await asyncio.sleep(0)
        conn.execute("alter function sokka.hidden rename to apply_retention")
        assert await until_gone(conn)
    finally:
        house.cancel()

"""F13 and F14: other people's locks on the product's tables, and their old snapshots."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import psycopg
from psycopg import AsyncConnection

from tests.faults.chaos.faults import Scene
from tests.faults.chaos.faults.firing import PRODUCT, Repeated, injected, rest, session, told
from tests.faults.chaos.words import Act, Bite

_TABLES = """
    select format('%I.%I', n.nspname, c.relname)
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = 'sokka' and c.relkind = 'r'
       and c.relname in ('tasks', 'joins', 'locks', 'schedules', 'topics', 'task_steps')
     order by 1"""
_BLOCKED = f"""
    select count(*) from pg_stat_activity
     where {PRODUCT} and %s = any(pg_blocking_pids(pid))"""
_SOME = """
    select task_id from sokka.tasks
     where task_id >= gen_random_uuid() or status = 'running' limit 20 for update skip locked"""
_HELD_S = 3.0


class Locked(Repeated):
    """Table locks, row locks, and what an administrator's maintenance takes."""

    name = "F13"
    period_s = 10.0
    HOW = ("table", "rows", "vacuum full", "index", "freeze")
    INDEX = "sokka.chaos_index"

    def __init__(self) -> None:
        super().__init__()
        self.blocked = 0
        self._left: list[str] = []

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        # each in turn, in a new order each time, so that a short act has more than one sort
        if not self._left:
            self._left = [*dice.sample(self.HOW[1:], 4), "table"]
        how = self._left[-1]
        with injected(scene, self.name, how) as shot:
            async with session(scene) as asking, session(scene) as watching:
                # waiting for the lock stops everybody who comes later, too
                await asking.execute("set lock_timeout = '5s'")
                looking = asyncio.create_task(self._look(watching, asking.info.backend_pid))
                try:
                    shot.detail["table"] = await self._hold(asking, how, dice, until)
                finally:
                    looking.cancel()
                    await asyncio.wait([looking])
                    if how == "index":
                        await told(scene, f"drop index if exists {self.INDEX}")
            self._left.pop()

    async def _hold(
        self, asking: AsyncConnection[Any], how: str, dice: random.Random, until: float
    ) -> str:
        cursor = await asking.execute(_TABLES)
        tables = [name for (name,) in await cursor.fetchall()]
        # the first is the one that everybody waits for
        table = "sokka.tasks" if not self.fired or dice.random() < 0.7 else dice.choice(tables)
        held_s = min(_HELD_S, max(0.0, until - time.monotonic()))
        match how:
            case "table":
                async with asking.transaction():
                    await asking.execute(f"lock table {table} in access exclusive mode")
                    await asyncio.sleep(held_s)
            case "rows":
                table = "sokka.tasks"
                async with asking.transaction():
                    await asking.execute(_SOME)
                    await asyncio.sleep(held_s)
            case "vacuum full":
                await asking.execute(f"vacuum full {table}")
            case "freeze":
                await asking.execute(f"vacuum (freeze, analyze) {table}")
            case "index":
                table = "sokka.tasks"
                async with asking.transaction():
                    await asking.execute("create index chaos_index on sokka.tasks (attempt)")
                    await asyncio.sleep(held_s / 3)
        return table

    async def _look(self, watching: AsyncConnection[Any], holder: int) -> None:
        """Count the product's sessions that wait for the holder, at the most."""
        most = 0
        try:
            while True:
                cursor = await watching.execute(_BLOCKED, (holder,))
                found = await cursor.fetchone()
                most = max(most, int(found[0]) if found else 0)
                await asyncio.sleep(0.05)
        except psycopg.Error:
            return  # the server is gone, and the lock with it
        finally:
            self.blocked += most

    def bites(self, act: Act) -> Bite:
        return Bite(
            self.name, self.blocked,
            self.summary(f"{self.blocked} sessions of the product waited for these locks"),
        )


class OldSnapshot(Repeated):
    """A REPEATABLE READ session that stays open, so that nothing dead can be removed."""

    name = "F14"

    def __init__(self) -> None:
        super().__init__()
        self.oldest = 0

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        while time.monotonic() < until:
            try:
                await self._hold(scene, until)
            except psycopg.Error:  # the server went; another snapshot when it is back
                await asyncio.sleep(0.3)

    async def _hold(self, scene: Scene, until: float) -> None:
        async with session(scene) as holding, session(scene) as asking:
            await holding.execute("begin isolation level repeatable read")
            await holding.execute("select count(*) from sokka.tasks")
            with injected(scene, self.name, "snapshot"):
                self.fired += 1
                while time.monotonic() < until:
                    await self._look(asking, holding.info.backend_pid)
                    await rest(0.5, until)
            await holding.execute("rollback")

    async def _look(self, asking: AsyncConnection[Any], holder: int) -> None:
        cursor = await asking.execute(
            "select age(backend_xmin) from pg_stat_activity where pid = %s", (holder,)
        )
        found = await cursor.fetchone()
        if found is None:
            raise psycopg.OperationalError("the session was ended")
        self.oldest = max(self.oldest, int(found[0] or 0))

    def bites(self, act: Act) -> Bite:
        return Bite(
            self.name, self.oldest,
            f"a snapshot held back {self.oldest} transactions; opened {self.fired} times",
        )

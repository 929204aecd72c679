"""F17 and F18: settings that a role brings along, hostile to plans and to isolation."""

from __future__ import annotations

import asyncio
import random
import time

import psycopg

from tests.faults.chaos.faults import Role, Scene
from tests.faults.chaos.faults.firing import PRODUCT, Repeated, injected, session, told
from tests.faults.chaos.words import Act, Bite

_SESSIONS = (
    "select distinct usename || ' ' || pid || ' ' || backend_start from pg_stat_activity"
    f" where {PRODUCT} and usename = any(%s)"
)
_SEQUENTIAL = """
    select coalesce(sum(seq_scan), 0)::bigint from pg_stat_user_tables
     where schemaname = 'sokka'"""
_TABLES = """
    select format('%I.%I', n.nspname, c.relname)
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = 'sokka' and c.relkind = 'r' and c.relpersistence = 'p'
       and c.relname in ('tasks', 'joins', 'join_inbox', 'payloads_default',
                         'task_steps_default', 'finished_tasks_default')
     order by 1"""


class _OnRoles(Repeated):
    """A setting that stands for the whole act; it reaches whoever comes by its roles."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: set[str] = set()

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        names = [role.name for role in self.roles]
        with injected(scene, self.name, " ".join(names)):
            while time.monotonic() < until:
                try:
                    await self._look(scene, names)
                except psycopg.Error:
                    self.missed += 1
                await asyncio.sleep(min(0.5, max(0.0, until - time.monotonic())))

    async def _look(self, scene: Scene, names: list[str]) -> None:
        async with session(scene) as asking:
            cursor = await asking.execute(_SESSIONS, (names,))
            self.sessions |= {name for (name,) in await cursor.fetchall()}


class HostilePlans(_OnRoles):
    """No index may be used for a role, and the statistics are those of empty tables."""

    name = "F17"
    roles = (
        Role(
            "chaos_plans",
            {
                "enable_indexscan": "off", "enable_indexonlyscan": "off",
                "enable_bitmapscan": "off", "enable_hashjoin": "off",
                "plan_cache_mode": "force_generic_plan",
            },
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        self.scans = 0
        self._before: int | None = None

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        async with session(scene) as asking:
            tables = [name for (name,) in await (await asking.execute(_TABLES)).fetchall()]
        try:
            await told(
                scene, *(f"analyze {table}" for table in tables),
                *(f"alter table {table} set (autovacuum_enabled = off)" for table in tables),
            )
            await super().run(scene, dice, until)
        finally:
            await told(
                scene, *(f"alter table {table} reset (autovacuum_enabled)" for table in tables),
                *(f"analyze {table}" for table in tables),
            )

    async def _look(self, scene: Scene, names: list[str]) -> None:
        await super()._look(scene, names)
        async with session(scene) as asking:
            found = await (await asking.execute(_SEQUENTIAL)).fetchone()
        count = int(found[0]) if found else 0
        # a crash sets the server's counters to zero
        if self._before is not None and count > self._before:
            self.scans += count - self._before
        self._before = count

    def bites(self, act: Act) -> Bite:
        return Bite(
            self.name, min(self.scans, len(self.sessions)),
            f"{len(self.sessions)} sessions could use no index; {self.scans} sequential scans",
        )


class Isolated(_OnRoles):
    """Roles whose transactions are by default serializable, or repeatable read."""

    name = "F18"
    roles = (
        Role("chaos_serializable", {"default_transaction_isolation": "serializable"}),
        Role("chaos_repeatable", {"default_transaction_isolation": "repeatable read"}),
    )

    def __init__(self) -> None:
        super().__init__()
        self.defaults: set[str] = set()

    async def _look(self, scene: Scene, names: list[str]) -> None:
        await super()._look(scene, names)
        for name in set(names) - {known.split(":")[0] for known in self.defaults}:
            async with session(scene, name) as plain:
                found = await (await plain.execute("show default_transaction_isolation")).fetchone()
            self.defaults.add(f"{name}: {found[0] if found else ''}")

    def bites(self, act: Act) -> Bite:
        wrong = [each for each in self.defaults if not each.endswith("read committed")]
        return Bite(
            self.name, len(self.sessions) if wrong else 0,
            f"{len(self.sessions)} sessions under a default of {', '.join(sorted(self.defaults))}",
        )

"""The people at the commands: one operation after the other, on whatever there is."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import SokkaError
from sokka_pg.store_async import AsyncPgTaskStore
from tests.faults.chaos.faults import PLAIN

if TYPE_CHECKING:
    from tests.faults.chaos.scene import Scene

PATIENCE_S = 8.0
PAUSED_S = (0.2, 1.0)
SCHEDULES = ("often", "seldom")
_RUNNING = """
    select task_id, record_ver from sokka.tasks where status = 'running'
     order by random() limit 1"""
_WAITING = "select task_id, record_ver from sokka.tasks order by random() limit 1"
_FINISHED = """
    select task_id, record_ver from (
        select task_id, record_ver from sokka.finished_tasks
         order by finished_at desc limit 200) f
     order by random() limit 1"""


class Operators:
    """``act`` does one thing and says which; what was granted is counted."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._accepted: Counter[str] = Counter()
        url = make_conninfo(
            scene.url(PLAIN), application_name="sokka_pg_operator", connect_timeout=3
        )
        self._store = AsyncPgTaskStore(
            url, options=ConnectionOptions(max_size=2, wait=timedelta(seconds=3))
        )

    @property
    def accepted(self) -> Mapping[str, int]:
        return dict(self._accepted)

    async def act(self, dice: random.Random) -> str:
        verbs = {
            self.revoke: 5, self.revoke_an_old_version: 1, self.cancel: 4, self.pause: 2,
            self.resubmit: 3, self.purge: 1, self.edit_schedule: 2, self.trigger: 1,
            self.delete_schedule: 1,
        }
        if not self._scene.newest:
            # a new program at an old schema: only what both have alike
            verbs = {self.revoke: 2, self.revoke_an_old_version: 1, self.cancel: 2, self.pause: 1}
        (verb,) = dice.choices(list(verbs), list(verbs.values()))
        with suppress(SokkaError, psycopg.Error, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                if await verb(dice):
                    self._accepted[verb.__name__] += 1
        return str(verb.__name__)

    async def quiet(self) -> None:
        """Nothing is paused any more, and no schedule makes more work. Raises SokkaError."""
        await self._store.resume_topic("b")
        for name in SCHEDULES:
            with suppress(SokkaError):
                await self._store.delete_schedule(name)

    async def close(self) -> None:
        await self._store.close()

    # --- verbs ------------------------------------------------------------------

    async def revoke(self, dice: random.Random) -> bool:
        found = await self._one(_RUNNING)
        if found is not None:
            await self._store.revoke_lease(*found, reason="chaos")
        return found is not None

    async def revoke_an_old_version(self, dice: random.Random) -> bool:
        """To be refused, unless nothing happened since."""
        found = await self._one(_RUNNING)
        if found is None:
            return False
        await asyncio.sleep(dice.uniform(0.1, 0.5))
        await self._store.revoke_lease(*found, reason="chaos, late")
        return True

    async def cancel(self, dice: random.Random) -> bool:
        found = await self._one(dice.choice((_RUNNING, _WAITING)))
        if found is not None:
            await self._store.cancel(found[0], reason="chaos")
        return found is not None

    async def pause(self, dice: random.Random) -> bool:
        await self._store.pause_topic("b", reason="chaos")
        try:
            await asyncio.sleep(dice.uniform(*PAUSED_S))
        finally:
            await self._store.resume_topic("b")
        return True

    async def resubmit(self, dice: random.Random) -> bool:
        found = await self._one(_FINISHED)
        if found is not None:
            await self._store.resubmit(found[0], reason="chaos")
        return found is not None

    async def purge(self, dice: random.Random) -> bool:
        await self._store.set_topic("b", retention=timedelta(days=dice.randint(1, 30)))
        await self._store.apply_retention(1_000)
        return True

    async def edit_schedule(self, dice: random.Random) -> bool:
        every = dice.choice((1, 2, 3))
        await self._store.put_schedule(
            dice.choice(SCHEDULES),
            {
                "schedule": f"@every {every}s",
                "next_at": datetime.now(UTC) + timedelta(seconds=dice.uniform(0.2, 1.5)),
                "task": {"topic": "b", "kind": "tick", "data": {}, "max_losses": 50},
                "missed": dice.choice(("skip", "one", "all")),
            },
        )
        return True

    async def trigger(self, dice: random.Random) -> bool:
        await self._store.trigger_schedule(dice.choice(SCHEDULES), reason="chaos")
        return True

    async def delete_schedule(self, dice: random.Random) -> bool:
        await self._store.delete_schedule(dice.choice(SCHEDULES), reason="chaos")
        return True

    async def _one(self, query: Any) -> tuple[Any, int] | None:
        async with await psycopg.AsyncConnection.connect(
            self._scene.url(), autocommit=True
        ) as asking:
            cursor = await asking.execute(query)
            row = await cursor.fetchone()
        return None if row is None else (row[0], int(row[1]))

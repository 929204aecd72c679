"""Looks all the while who is connected to the server of an act."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import psycopg

from tests.faults.chaos.crew import MOST_CONNECTIONS

if TYPE_CHECKING:
    from tests.faults.chaos.scene import Scene

EVERY_S = 0.3
_CONNECTED = """
    select application_name, pid, backend_start, wait_event_type = 'Lock'
      from pg_stat_activity where application_name like 'sokka_pg%'"""


class Watch:
    """The most connections of each client at a time, and how many it made in all."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.most: dict[str, int] = defaultdict(int)
        self.waits = 0
        self._backends: dict[str, set[Any]] = defaultdict(set)

    async def run(self) -> None:
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._scene.url(), autocommit=True
                ) as asking:
                    while True:
                        await self._look(asking)
                        await asyncio.sleep(EVERY_S)
            except (psycopg.Error, OSError):
                await asyncio.sleep(EVERY_S)

    async def _look(self, asking: psycopg.AsyncConnection[Any]) -> None:
        now: dict[str, int] = defaultdict(int)
        cursor = await asking.execute(_CONNECTED)
        for name, pid, since, waits in await cursor.fetchall():
            now[name] += 1
            self._backends[name].add((pid, since))
            self.waits += bool(waits)
        for name, count in now.items():
            self.most[name] = max(self.most[name], count)

    @property
    def bounds(self) -> dict[str, int]:
        return dict.fromkeys(self.most, MOST_CONNECTIONS)

    @property
    def connects(self) -> dict[str, int]:
        return {name: len(seen) for name, seen in self._backends.items()}

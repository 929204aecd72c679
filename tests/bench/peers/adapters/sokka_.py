"""sokka_pg, at the settings that its documentation names for short tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common import Peer, main, payload

from sokka_pg import ConnectionOptions, Sokka, WorkerOptions
from sokka_pg.store_async import AsyncPgTaskStore
from sokka_pg.worker.process import spare_collector


class SokkaPeer(Peer):
    name = "sokka_pg"
    packages = ("sokka-pg", "psycopg")
    setting = "100 slots, otherwise defaults, uvloop; create_tasks_in_batches, 4,000 each"
    source = "docs/performance.md"
    history = "every event of every task, in SQL"
    remaining = "select count(*) from sokka.tasks"

    async def setup(self) -> None:
        from tests.servers import load_newest  # the SQL of this checkout, as in the bench

        await asyncio.to_thread(load_newest, self.url)

    async def open(self, clients: int) -> None:
        options = ConnectionOptions(max_size=clients)
        self.store = AsyncPgTaskStore(self.url, options=options)

    async def enqueue(self, number: int) -> None:
        await self.store.create_task("bench", payload(number), kind="count")

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        # The call for many (docs/user.md), which says itself how many share a commit.
        specs = ({"topic": "bench", "kind": "count", "data": payload(n)} for n in numbers)
        await self.store.create_tasks_in_batches(specs)

    async def work(self, slots: int | None) -> None:
        spare_collector()  # as sokka worker does
        app = Sokka(self.url)

        @app.task(topic="bench")
        async def count(number: int, pad: str) -> None:
            await self.handle(number)

        options = WorkerOptions(schedules=False)
        await app.worker({"bench": slots or 100}, options=options).run()

    async def close(self) -> None:
        await self.store.close()


if __name__ == "__main__":
    main(SokkaPeer)

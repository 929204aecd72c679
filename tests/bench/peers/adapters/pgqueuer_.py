"""pgqueuer: batches by one dequeue statement, endings gathered in a buffer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
from common import BULK, Peer, main, payload
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

_BATCH = 500


class Pgqueuer(Peer):
    name = "pgqueuer"
    packages = ("pgqueuer", "asyncpg", "uvloop")
    # guides/performance-tuning: a larger batch for short jobs, a direct asyncpg connection
    # for the manager, "pgq autovac"; durability stays at "durable", its default.
    setting = f"asyncpg, batch_size={_BATCH}, durable, autovacuum as recommended, uvloop"
    source = "https://janbjorge.github.io/pgqueuer/ (guides/performance-tuning)"
    history = "a log row for each status of a job"
    remaining = "select count(*) from pgqueuer"

    async def setup(self) -> None:
        connection = await asyncpg.connect(self.url)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
        await connection.close()

    async def open(self, clients: int) -> None:
        self.pool = await asyncpg.create_pool(self.url, min_size=clients, max_size=clients)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))

    async def enqueue(self, number: int) -> None:
        await self.queries.enqueue("count", json.dumps(payload(number)).encode())

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), BULK):
            chunk = numbers[first : first + BULK]
            await self.queries.enqueue(
                ["count"] * len(chunk),
                [json.dumps(payload(number)).encode() for number in chunk],
                [0] * len(chunk),
            )

    async def work(self, slots: int | None) -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @queuer.entrypoint("count")
        async def count(job: Job) -> None:
            await self.handle(json.loads(job.payload or b"{}")["number"])

        # max_concurrent_tasks must be twice the batch at least.
        await queuer.run(
            batch_size=slots // 2 if slots else _BATCH, max_concurrent_tasks=slots,
            dequeue_timeout=timedelta(seconds=30),
        )  # fmt: skip

    async def close(self) -> None:
        await self.pool.close()


if __name__ == "__main__":
    main(Pgqueuer)

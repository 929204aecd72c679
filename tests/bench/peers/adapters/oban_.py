"""oban for Python: the free package, one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from common import BULK, Peer, main, payload
from oban import Oban, schema, worker

_LIMIT = 100


class ObanPeer(Peer):
    name = "oban"
    packages = ("oban", "psycopg", "uvloop")
    # README and Producer: a queue's limit is its concurrency; debounce_interval is the
    # least time between two fetches, 5 ms by default.
    setting = f"queue limit {_LIMIT}, debounce_interval=0.001, pool of 10, uvloop"
    source = "https://github.com/oban-bg/oban-py"
    history = "finished jobs, until pruned"
    remaining = (
        "select count(*) from oban_jobs"
        " where state in ('available', 'executing', 'scheduled', 'retryable')"
    )

    async def setup(self) -> None:
        pool = await Oban.create_pool(self.url)
        await schema.install(pool)
        await pool.close()

    async def open(self, clients: int) -> None:
        self.pool = await Oban.create_pool(self.url, min_size=clients, max_size=clients)
        self.oban = Oban(pool=self.pool)
        await self.oban.start()

    async def enqueue(self, number: int) -> None:
        await self.oban.enqueue(Count.new(payload(number)))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), BULK):
            chunk = numbers[first : first + BULK]
            await self.oban.enqueue_many(Count.new(payload(number)) for number in chunk)

    async def work(self, slots: int | None) -> None:
        global _peer
        _peer = self
        logging.disable(logging.CRITICAL)
        pool = await Oban.create_pool(self.url, min_size=10, max_size=10)
        queue = {"limit": slots or _LIMIT, "debounce_interval": 0.001}
        oban = Oban(pool=pool, queues={"bench": queue})
        await oban.start()
        await asyncio.Event().wait()

    async def close(self) -> None:
        await self.oban.stop()
        await self.pool.close()


_peer: ObanPeer


@worker(queue="bench")
class Count:
    async def process(self, job: Any) -> None:
        await _peer.handle(job.args["number"])


if __name__ == "__main__":
    main(ObanPeer)

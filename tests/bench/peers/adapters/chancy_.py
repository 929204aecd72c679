"""chancy: a batch per poll; the end of a job wakes the next poll."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from chancy import Chancy, Job, Queue, Worker
from common import BULK, Peer, main, payload

_CONCURRENCY = 500


class ChancyPeer(Peer):
    name = "chancy"
    packages = ("chancy", "psycopg")
    # Queue: eager_polling for queues where jobs are continuously available, executor for
    # asynchronous jobs; send_outgoing_interval is a documented attribute of the worker.
    setting = (
        f"AsyncExecutor, concurrency={_CONCURRENCY}, eager_polling, polling every second, "
        "send_outgoing_interval=0.05"
    )
    source = "https://tkte.ch/chancy/ (Queue, Worker)"
    history = "finished jobs, until pruned"
    remaining = (
        "select count(*) from chancy_jobs where state not in ('succeeded', 'failed', 'expired')"
    )

    def _chancy(self, connections: int = 10) -> Chancy:
        log = logging.getLogger("chancy")
        log.setLevel(logging.CRITICAL)
        return Chancy(self.url, log=log, max_connection_pool_size=connections)

    async def setup(self) -> None:
        async with self._chancy() as chancy:
            await chancy.migrate()

    async def open(self, clients: int) -> None:
        self.chancy = self._chancy(clients)
        await self.chancy.__aenter__()

    async def enqueue(self, number: int) -> None:
        await self.chancy.push(_job(number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        jobs = [_job(number) for number in numbers]
        async for _ in self.chancy.push_many(jobs, batch_size=BULK):
            pass

    async def work(self, slots: int | None) -> None:
        global _peer
        _peer = self
        queue = Queue(
            "bench", concurrency=slots or _CONCURRENCY, executor=Chancy.Executor.Async,
            polling_interval=1, eager_polling=True,
        )  # fmt: skip
        async with self._chancy() as chancy:
            await chancy.declare(queue, upsert=True)
            worker = Worker(chancy, register_signal_handlers=False)
            worker.send_outgoing_interval = 0.05
            async with worker:
                await worker.wait_for_shutdown()

    async def close(self) -> None:
        await self.chancy.__aexit__(None, None, None)


_peer: ChancyPeer


async def count(number: int, pad: str) -> None:
    await _peer.handle(number)


def _job(number: int) -> Job:
    return Job(func="__main__.count", queue="bench", kwargs=payload(number))


if __name__ == "__main__":
    main(ChancyPeer)

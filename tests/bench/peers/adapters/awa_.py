"""awa: an engine in Rust with handlers in Python."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import awa
from common import Peer, main, payload

_WORKERS = 256
_BATCH = 10_000


@dataclass
class Count:
    number: int
    pad: str


class Awa(Peer):
    name = "awa-pg"
    packages = ("awa-pg",)
    # docs/configuration: the claim batch of 512 and the completion batch are defaults meant
    # for hot queues; more claimers are advised against; COPY for bulk producers. A shorter
    # poll for latency.
    setting = f"{_WORKERS} workers, claim_batch_size=512, poll_interval_ms=10, COPY for bulk"
    source = "https://github.com/hardbyte/awa/blob/main/docs/configuration.md"
    history = "terminal jobs, until their ring segment is pruned"
    # Enqueued so far, less what has completed; the view awa.jobs took two minutes to tell.
    remaining = """
        select greatest(0, coalesce((select max(lane_seq) from awa.ready_entries), 0)
            - coalesce((select sum(completed_count) from awa.receipt_completion_batches), 0)
            - coalesce((select sum(pruned_completed_count) from awa.queue_terminal_rollups), 0))
    """

    async def setup(self) -> None:
        client = awa.AsyncClient(self.url)
        await client.migrate()

        # The first worker of a fresh installation switches the queue storage on.
        @client.task(Count, queue="bench")
        async def count(job: awa.Job) -> None: ...

        await client.start([("bench", 1)])
        await client.shutdown()
        await client.close()

    async def open(self, clients: int) -> None:
        self.client = awa.AsyncClient(self.url, max_connections=clients)

    async def enqueue(self, number: int) -> None:
        await self.client.insert(Count(**payload(number)), queue="bench")  # type: ignore[arg-type]

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), _BATCH):
            jobs = [Count(**payload(number)) for number in numbers[first : first + _BATCH]]  # type: ignore[arg-type]
            await self.client.enqueue_many_copy(jobs, queue="bench")

    async def work(self, slots: int | None) -> None:
        client = awa.AsyncClient(self.url, max_connections=20)

        @client.task(Count, queue="bench")
        async def count(job: awa.Job) -> None:
            await self.handle(job.args.number)

        queue = {"name": "bench", "max_workers": slots or _WORKERS, "claim_batch_size": 512}
        await client.start([queue], poll_interval_ms=10)
        await asyncio.Event().wait()

    async def close(self) -> None:
        await self.client.close()


if __name__ == "__main__":
    main(Awa)

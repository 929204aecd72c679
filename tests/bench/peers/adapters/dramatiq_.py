"""dramatiq with its PostgreSQL broker: worker threads, a message per statement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import dramatiq
import psycopg2
from common import Peer, main, payload
from dramatiq_pg import PostgresBroker
from dramatiq_pg.schema import generate_init_sql
from psycopg2.pool import ThreadedConnectionPool

_THREADS = 8


class Dramatiq(Peer):
    name = "dramatiq-pg"
    packages = ("dramatiq-pg", "dramatiq", "psycopg2-binary")
    # dramatiq's guide: 8 threads per process is its default; results are switched off, since
    # no one asks for them. There is no call for bulk.
    setting = f"{_THREADS} threads, results=False"
    source = "https://gitlab.com/dalibo/dramatiq-pg and https://dramatiq.io/guide.html"
    history = "finished messages, until purged"
    remaining = "select count(*) from dramatiq.queue where state in ('queued', 'consumed')"
    sync_producers = True

    def _broker(self, connections: int) -> PostgresBroker:
        logging.disable(logging.CRITICAL)
        pool = ThreadedConnectionPool(connections, connections, self.url)
        broker = PostgresBroker(pool=pool, results=False, schema="dramatiq", prefix="")
        dramatiq.set_broker(broker)

        @dramatiq.actor(queue_name="bench", broker=broker, max_retries=0)
        def count(number: int, pad: str) -> None:
            self.handle_sync(number)

        self.count = count
        return broker

    async def setup(self) -> None:
        connection = psycopg2.connect(self.url)
        with connection, connection.cursor() as cursor:
            cursor.execute(generate_init_sql())
        connection.close()

    async def open(self, clients: int) -> None:
        self._broker(clients)

    def enqueue_sync(self, number: int) -> None:
        self.count.send(**payload(number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.enqueue_sync(number)

    async def work(self, slots: int | None) -> None:
        threads = slots or _THREADS
        broker = self._broker(threads + 4)
        worker = dramatiq.Worker(broker, worker_threads=threads)
        worker.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(Dramatiq)

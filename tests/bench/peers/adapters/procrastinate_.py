"""procrastinate: jobs in one table, one fetch and one finish per job."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import procrastinate
from common import BULK, Peer, main, payload

_CONCURRENCY = 30


class Procrastinate(Peer):
    name = "procrastinate"
    packages = ("procrastinate", "psycopg", "uvloop")
    # howto/production/concurrency: one connection per concurrent job is enough; the pool's
    # max_size follows it. howto/production/delete_finished_jobs: delete_jobs="always".
    setting = f"concurrency={_CONCURRENCY}, pool of as many, delete_jobs='always', uvloop"
    source = "https://procrastinate.readthedocs.io/en/stable/howto/production/concurrency.html"
    history = "none kept at this setting"
    remaining = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"

    def _app(self, size: int) -> procrastinate.App:
        logging.disable(logging.CRITICAL)
        connector = procrastinate.PsycopgConnector(
            conninfo=self.url, min_size=size, max_size=size
        )
        app = procrastinate.App(connector=connector)

        @app.task(name="count", queue="bench")
        async def count(number: int, pad: str) -> None:
            await self.handle(number)

        self.count = count
        return app

    async def setup(self) -> None:
        async with self._app(1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    async def open(self, clients: int) -> None:
        self.app = self._app(clients)
        await self.app.open_async()

    async def enqueue(self, number: int) -> None:
        await self.count.defer_async(**payload(number))

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), BULK):
            chunk = numbers[first : first + BULK]
            await self.count.batch_defer_async(*(payload(number) for number in chunk))

    async def work(self, slots: int | None) -> None:
        concurrency = slots or _CONCURRENCY
        async with self._app(concurrency + 2).open_async() as app:
            await app.run_worker_async(
                queues=["bench"], concurrency=concurrency, delete_jobs="always",
                install_signal_handlers=False,
            )  # fmt: skip

    async def close(self) -> None:
        await self.app.close_async()


if __name__ == "__main__":
    main(Procrastinate)

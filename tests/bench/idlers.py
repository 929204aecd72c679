"""Workers that wait, several in one event loop: ``python -m tests.bench.idlers N``."""

from __future__ import annotations

import asyncio
import signal
import sys

from sokka_pg import WorkerOptions
from tests.bench.handlers import app

TOPIC, SLOTS = "idle", 10


async def main(count: int) -> None:
    options = WorkerOptions(schedules=False, grace=0)
    workers = [app.worker({TOPIC: SLOTS}, options=options) for _ in range(count)]

    def stop() -> None:
        for worker in workers:
            worker.stop(now=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.gather(*(worker.run() for worker in workers))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

"""The worker process that a bench measures: ``python -m sokka_pg.bench.child``.

``drain COUNT``: no-op handlers until COUNT have run. ``echo``: each handler
writes its task's number and the moment it started, until SIGTERM. The database
comes from the environment, like any worker's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from sokka_pg.app import Sokka
from sokka_pg.worker import Worker

SLOTS = 100
KIND = "default"


async def _drain(app: Sokka, topic: str, count: int) -> None:
    left = count

    @app.task(kind=KIND, topic=topic)
    async def no_op(to: str, order: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            worker.stop()

    worker: Worker = app.worker({topic: SLOTS})
    await worker.run()
    await app.async_store.close()


def _echo(app: Sokka, topic: str) -> None:
    @app.task(kind=KIND, topic=topic)
    async def echo(number: int) -> None:
        # One write, so that the parent sees it at once.
        os.write(1, f"{number} {time.monotonic_ns()}\n".encode())

    app.run_worker({topic: SLOTS})


def main(topic: str, act: str, count: str = "0") -> None:
    app = Sokka()
    if act == "drain":
        asyncio.run(_drain(app, topic, int(count)))
    else:
        _echo(app, topic)


if __name__ == "__main__":
    main(*sys.argv[1:])

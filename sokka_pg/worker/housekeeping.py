"""Retention, applied by every worker now and then.

Apart from the desk, since a step may delete thousands of rows: on a connection
of its own that lives as long as one round. Steps are bounded, the database lets
one caller in at a time, and a partition that somebody reads is left for later.
"""

from __future__ import annotations

import asyncio
import logging
import random

from sokka_pg import calls
from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import SokkaError
from sokka_pg.worker.link import Link

log = logging.getLogger("sokka_pg.worker")

FIRST_S, EVERY_S = 30.0, 3600.0
STEPS = 100
STEP_S = 60.0


async def keep_house(
    database_url: str, schema: str, options: ConnectionOptions,
    *, first_s: float = FIRST_S, every_s: float = EVERY_S,
) -> None:
    """Apply retention for ever, until cancelled: ``first_s`` after the start, then
    about every ``every_s``. Spread, so that workers started together take turns."""
    await asyncio.sleep(first_s * random.uniform(0.5, 1.5))
    while True:
        try:
            await _one_round(Link(database_url, schema, options, STEP_S))
        except SokkaError as error:
            # a role that may not, or a database that is away: there is a next time
            log.warning("retention was not applied: %s", error)
        await asyncio.sleep(every_s * random.uniform(0.8, 1.2))


async def _one_round(link: Link) -> None:
    try:
        for _ in range(STEPS):
            done = await link.send(calls.apply_retention())
            for step in done:
                log.info("retention: %s %s (%s rows)", step.partition, step.action, step.rows)
            if all(step.action == "busy" for step in done):
                return
    finally:
        await link.close()

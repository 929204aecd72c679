"""Handlers for workers that are killed at random: every way in which an attempt can end."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sokka_pg import Fail, Retry, Snooze, Sokka

SOON = timedelta(milliseconds=50)
app = Sokka()


@app.task(topic="t")
async def fate(how: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    if how == "fail":
        raise Fail("wanted")
    if how == "retry":
        raise Retry("wanted", SOON)
    if how == "snooze":
        raise Snooze(SOON)
    return how

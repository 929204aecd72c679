"""What paces a scheduler's own calls, without a database."""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic
from uuid import UUID

import pytest

from sokka_pg.errors import Busy, DatabaseUnavailable, StaleToken
from sokka_pg.model import Lease
from sokka_pg.payload import Encoded, encode
from sokka_pg.workload.progress import ProgressLines
from sokka_pg.workload.sweeping import Sweeper

LEASE = Lease(UUID(int=1), "ann", 1)


class Writer:
    """Takes progress; raises the next of ``errors`` first."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.written: list[str] = []
        self.news = asyncio.Event()

    async def __call__(self, lease: Lease, text: Encoded) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.written.append(str(text))
        self.news.set()


async def reported(lines: ProgressLines, *values: int) -> None:
    for value in values:
        await lines.report(LEASE, encode(value))


async def test_the_first_is_written_at_once_and_then_the_last() -> None:
    writer = Writer()
    lines = ProgressLines(writer, 0.05)
    await reported(lines, 1, 2, 3)
    assert writer.written == ["1"]
    writer.news.clear()
    await writer.news.wait()
    assert writer.written == ["1", "3"]
    await lines.flush(LEASE)
    assert writer.written == ["1", "3"]


async def test_an_outage_holds_the_last_back_and_loses_it_not() -> None:
    writer = Writer(None, DatabaseUnavailable("away"), Busy("held"))
    lines = ProgressLines(writer, 0.01)
    await reported(lines, 1, 2)
    writer.news.clear()
    await writer.news.wait()
    assert writer.written == ["1", "2"]
    assert writer.errors == []


async def test_a_refused_line_is_forgotten_and_the_next_report_is_told() -> None:
    refused = StaleToken("stale")
    writer = Writer(None, refused, refused)
    lines = ProgressLines(writer, 3600)
    await reported(lines, 1, 2)
    await lines.flush(LEASE)
    assert len(lines) == 0
    with pytest.raises(StaleToken):
        await reported(lines, 3)


async def test_closing_writes_each_once_and_waits_for_none() -> None:
    writer = Writer(None, DatabaseUnavailable("away"))
    lines = ProgressLines(writer, 3600)
    await reported(lines, 1, 2)
    await lines.close()
    assert (writer.written, len(lines)) == (["1"], 0)


async def test_a_sweep_follows_a_deadline() -> None:
    swept = asyncio.Event()

    async def sweep() -> None:
        swept.set()

    with Sweeper(sweep).at(monotonic() + 0.02):
        await swept.wait()


async def test_a_nearer_deadline_brings_the_sweep_forward() -> None:
    swept = asyncio.Event()

    async def sweep() -> None:
        swept.set()

    sweeper = Sweeper(sweep)
    with sweeper.at(inf):
        await asyncio.sleep(0)
        with sweeper.at(monotonic()):
            await swept.wait()


def test_without_a_deadline_sweeps_are_rare() -> None:
    async def sweep() -> None: ...

    sweeper = Sweeper(sweep)
    now = monotonic()
    sweeper._dues = [inf]
    assert now + 4.9 < sweeper._next_at(now) < now + 15.1
    sweeper._dues = [inf, now + 2]
    assert now + 2 <= sweeper._next_at(now) < now + 2.1
    sweeper._dues = [now - 5]
    assert sweeper._next_at(now) == now + 1

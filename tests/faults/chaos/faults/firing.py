"""What the faults share: when to fire, what a shot is, and SQL of the harness."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection

from sokka_pg.embedded import Server
from tests.faults.chaos.faults import Role, Scene, Way
from tests.faults.chaos.words import Injection

T = TypeVar("T")

HEAL_S = 60.0
"""Longest wait for a server that must be told to stop a fault."""
_AGAIN_S = 0.3
PRODUCT = "application_name like 'sokka_pg%%' and datname = current_database()"


async def shots(
    dice: random.Random, period_s: float, until: float, least: int = 3
) -> AsyncIterator[None]:
    """The moments to fire: about every ``period_s``, in a short act ``least`` times or so."""
    period_s = min(period_s, max(0.1, (until - time.monotonic()) / least))
    wait_s = period_s * dice.uniform(0.1, 0.7)
    while time.monotonic() + wait_s < until:
        await asyncio.sleep(wait_s)
        yield
        wait_s = period_s * dice.uniform(0.5, 1.5)


async def rest(seconds: float, until: float) -> None:
    """Sleep, but not longer than until then."""
    await asyncio.sleep(max(0.0, min(seconds, until - time.monotonic())))


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run it in a thread, to its end also when the caller is cancelled meanwhile: a
    server that is half started must not be left alone."""
    going = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(going)
    except asyncio.CancelledError:
        await asyncio.wait([going])
        raise


@contextmanager
def injected(scene: Scene, fault: str, about: str = "", **detail: Any) -> Iterator[Injection]:
    """Log the block as an injection, with what the block adds to its ``detail``."""
    shot = Injection(fault, time.monotonic_ns(), None, about, detail)
    try:
        yield shot
    finally:
        shot.ended = time.monotonic_ns()
        scene.log(shot)


@asynccontextmanager
async def session(scene: Scene, role: str | None = None) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection of the harness to the product's database, in autocommit."""
    connection = await AsyncConnection.connect(
        scene.url(role), application_name="chaos", autocommit=True, connect_timeout=5
    )
    try:
        yield connection
    finally:
        await connection.close()


async def told(scene: Scene, *statements: str) -> None:
    """Say this to the server, as soon as there is one: how a setting is taken back."""
    end = time.monotonic() + HEAL_S
    while True:
        try:
            async with session(scene) as asking:
                for statement in statements:
                    await asking.execute(statement)
            return
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


class LogReader:
    """Counts lines that a server logs, over its restarts (each begins a new file)."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._place = self._now()

    def new_lines(self, *wanted: str) -> int:
        """How many since the last time (or the making of this) hold one of these words."""
        lines = self._unread().splitlines()
        self._place = self._now()
        return sum(any(word in line for word in wanted) for line in lines)

    def _now(self) -> tuple[int, int]:
        with suppress(OSError):
            facts = self._server.log.stat()
            return facts.st_ino, facts.st_size
        return 0, 0

    def _unread(self) -> str:
        inode, offset = self._place
        log = self._server.log
        before = log.with_name(log.name + ".1")
        if self._now()[0] == inode:
            return _tail(log, offset)
        return _tail(before, offset if _inode(before) == inode else 0) + _tail(log, 0)


def _inode(file: Path) -> int:
    return file.stat().st_ino if file.exists() else 0


def _tail(file: Path, offset: int) -> str:
    if not file.exists():
        return ""
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read().decode(errors="replace")


class Repeated:
    """A fault that fires again and again. A shot that meets no server is soon repeated."""

    name = ""
    period_s = 1.0
    least = 3
    wants_server = True
    """Whether a shot is wasted while another fault has the server down."""
    roles: tuple[Role, ...] = ()
    variants: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.fired = 0
        self.missed = 0
        self.trouble = ""

    def possible(self, scene: Scene | None) -> str | None:
        return None

    async def way(self, scene: Scene, variant: str, worker: str) -> Way:
        raise LookupError(f"{self.name} puts up no variant {variant!r}")

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        async for _ in shots(dice, self.period_s, until, self.least):
            if self.wants_server:
                async with scene.turn:
                    pass
            while not await self._hits(scene, dice, until) and time.monotonic() < until:
                await rest(_AGAIN_S, until)

    async def _hits(self, scene: Scene, dice: random.Random, until: float) -> bool:
        try:
            await self.fire(scene, dice, until)
        except psycopg.Error as away:
            self.missed += 1
            self.trouble = f"{type(away).__name__}: {away}".splitlines()[0]
            return False
        self.fired += 1
        return True

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        raise AssertionError("each fault says how it fires")

    async def close(self) -> None:
        """Nothing stands."""

    def summary(self, told: str) -> str:
        """``told``, with the shots that hit nothing."""
        last = self.trouble[:80]
        missed = f", {self.missed} that met no server (the last: {last})" if self.missed else ""
        return f"{told}; {self.fired} shots{missed}"

"""F10: the file system of the server's data is full for a while."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psycopg

from sokka_pg.embedded.account import unprivileged_account
from tests.faults.chaos.faults import Scene
from tests.faults.chaos.faults.counting import answered_with
from tests.faults.chaos.faults.firing import (
    HEAL_S,
    LogReader,
    Repeated,
    in_thread,
    injected,
    rest,
    session,
)
from tests.faults.chaos.words import Act, Bite

_PIECE = bytes(1 << 16)


class SmallDisk:
    """A file system in memory, mounted on ``data``, where a server is then started.

    It is an empty folder of an ordinary account, as ``Server.start`` wants it. The server's
    log and socket stand beside it in ``folder``, where there is room.
    """

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "min_wal_size": "32MB", "max_wal_size": "48MB", "wal_keep_size": "0",
    }
    """For the server: it must not fill its disk by itself."""

    def __init__(self, megabytes: int = 256) -> None:
        account = unprivileged_account()
        self.folder = Path(tempfile.mkdtemp(prefix="skd"))
        os.chown(self.folder, account.uid, account.gid)
        self.data = self.folder / "data"
        self.data.mkdir()
        try:
            subprocess.run(
                [
                    "mount", "-t", "tmpfs", "-o",
                    f"size={megabytes}m,mode=0700,uid={account.uid},gid={account.gid}",
                    "tmpfs", str(self.data),
                ],
                capture_output=True, text=True, check=True,
            )
        except BaseException:
            shutil.rmtree(self.folder)
            raise

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    @classmethod
    def refused(cls) -> str | None:
        """What stands in the way of having one here."""
        if os.geteuid() != 0:
            return "mounting a file system needs root"
        try:
            cls(1).remove()
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            return f"a tmpfs cannot be mounted: {said.strip()}"
        return None

    @property
    def filler(self) -> Path:
        return self.data / "chaos_filler"

    def fill(self) -> int:
        """Write until there is no room for a byte; how many bytes that took."""
        with suppress(OSError), self.filler.open("ab", buffering=0) as file:
            while True:
                file.write(_PIECE)
        with suppress(OSError), self.filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 512)
        return self.filler.stat().st_size

    def free(self) -> None:
        self.filler.unlink(missing_ok=True)

    def remove(self) -> None:
        """The server must be down."""
        subprocess.run(["umount", "-l", str(self.data)], capture_output=True, check=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class Full(Repeated):
    """No room for data (53100) nor for the log (PANIC), freed after about 10 s.

    A server that ended is started again when there is room, as an operator would.
    """

    name = "F10"
    period_s = 60.0
    least = 2
    wants_server = False
    FULL_S = 10.0

    def __init__(self) -> None:
        super().__init__()
        self.lines = 0
        self.panics = 0
        self.restarts = 0

    def possible(self, scene: Scene | None) -> str | None:
        if scene is not None and scene.disk is None:
            return "the server of this act does not stand on a small disk"
        return SmallDisk.refused() if scene is None else None

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        disk, server = scene.disk, scene.primary
        assert disk is not None
        async with scene.turn:
            log = LogReader(server)
            with injected(scene, self.name, "disk") as shot:
                try:
                    shot.detail["bytes"] = await in_thread(disk.fill)
                    full_until = min(until, time.monotonic() + self.FULL_S)
                    await self._keep_full(scene, full_until)
                finally:
                    await in_thread(disk.free)
                    shot.detail["ended"] = not server.running
                    await self._up_again(scene)
            self.lines += log.new_lines("No space left on device")

    async def _keep_full(self, scene: Scene, until: float) -> None:
        """What is freed meanwhile (a temporary file, an old segment) is filled, too."""
        disk, log = scene.disk, LogReader(scene.primary)
        assert disk is not None
        while time.monotonic() < until:
            await rest(0.5, until)
            await in_thread(disk.fill)
            # a new segment of the log makes the server need room at once
            with suppress(psycopg.Error):
                async with asyncio.timeout(1), session(scene) as asking:
                    await asking.execute("select pg_switch_wal()")
                    await asking.execute("checkpoint")
        self.panics += log.new_lines("PANIC")

    async def _up_again(self, scene: Scene) -> None:
        end = time.monotonic() + HEAL_S
        while True:
            try:
                if not scene.primary.running:
                    self.restarts += 1
                    await in_thread(scene.primary.restart)
                async with session(scene) as asking:
                    await asking.execute("select 1")
                return
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.2)

    def bites(self, act: Act) -> Bite:
        seen = answered_with(act, ("53100", "58030"))
        return Bite(
            self.name, len(seen) + self.lines,
            self.summary(
                f"{len(seen)} calls saw 53100, {self.lines} lines of the server's log tell of no "
                f"room, {self.panics} PANICs, {self.restarts} starts by hand"
            ),
        )

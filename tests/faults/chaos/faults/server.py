"""F4 and F5: the server crashes, and the server freezes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress

from sokka_pg.embedded import Server
from sokka_pg.embedded.postmaster import children_of
from tests.faults.chaos.faults import Scene
from tests.faults.chaos.faults.counting import held_up, injections
from tests.faults.chaos.faults.firing import LogReader, Repeated, in_thread, injected, rest
from tests.faults.chaos.words import Act, Bite

_RECOVERY = "automatic recovery in progress"


class Crashed(Repeated):
    """An immediate stop, or SIGKILL to all its processes; a start some seconds later."""

    name = "F4"
    period_s = 20.0
    least = 2
    wants_server = False
    SHARE = 0.05
    """Of what is left of the act, it is down at most; a short one would see little else."""

    def __init__(self) -> None:
        super().__init__()
        self.recoveries = 0

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        async with scene.turn:
            server = scene.primary
            how = dice.choice(("crash", "crash", "kill"))
            down_s = min(dice.uniform(0.5, 5), 0.5 + self.SHARE * (until - time.monotonic()))
            with injected(scene, self.name, "server", how=how, down_s=down_s):
                log = LogReader(server)
                try:
                    await in_thread(getattr(server, how))
                    await rest(down_s, until)
                finally:
                    await in_thread(server.restart)
                self.recoveries += log.new_lines(_RECOVERY) > 0

    def bites(self, act: Act) -> Bite:
        hurt = sum(len(held_up(act, shot)) for shot in injections(act, self.name))
        return Bite(
            self.name, self.recoveries,
            self.summary(f"{self.recoveries} recoveries in the server's log, {hurt} calls hurt"),
        )


class Frozen(Repeated):
    """SIGSTOP to the postmaster and all its children for two lengths of a lease."""

    name = "F5"
    period_s = 30.0
    least = 1
    wants_server = False

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        async with scene.turn:
            with injected(scene, self.name, "server") as shot:
                stopped: list[int] = []
                try:
                    freeze(scene.primary, stopped)
                    shot.detail["processes"] = len(stopped)
                    await rest(2 * scene.lease_s, until)
                finally:
                    thaw(stopped)
            # those that come after must find a server that answers
            await asyncio.sleep(0.1)

    def bites(self, act: Act) -> Bite:
        calls = {
            (call.process, call.number)
            for shot in injections(act, self.name) for call in held_up(act, shot)
        }
        return Bite(
            self.name, len(calls),
            self.summary(f"{len(calls)} calls got no answer or waited for half of a freeze"),
        )


def freeze(server: Server, stopped: list[int]) -> None:
    """The postmaster first: it can start no more children then."""
    _signal(server.pid, signal.SIGSTOP, stopped)
    for child in children_of(server.pid):
        _signal(child, signal.SIGSTOP, stopped)


def thaw(stopped: list[int]) -> None:
    for pid in reversed(stopped):
        _signal(pid, signal.SIGCONT, [])


def _signal(pid: int, number: signal.Signals, done: list[int]) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        done.append(pid)

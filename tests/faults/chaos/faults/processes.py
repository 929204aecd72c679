"""F1 and F2: workers that die, and workers that sleep through their leases."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress

from tests.faults.chaos.faults import CrewMember, Scene
from tests.faults.chaos.faults.counting import injections, lost_leases
from tests.faults.chaos.faults.firing import Repeated, injected, rest
from tests.faults.chaos.words import FAIL, Act, Bite


def awake(scene: Scene) -> list[CrewMember]:
    return [worker for worker in scene.crew.workers if worker.os_pid is not None]


class Killed(Repeated):
    """SIGKILL: to a worker alone, to it and its children, now and then to half of the crew."""

    name = "F1"
    period_s = 3.5
    wants_server = False

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        living = awake(scene)
        if not living:
            return
        many = max(1, len(living) // 2) if dice.random() < 0.15 else 1
        await asyncio.gather(
            *(self._kill(scene, dice, worker) for worker in dice.sample(living, many))
        )

    async def _kill(self, scene: Scene, dice: random.Random, worker: CrewMember) -> None:
        group = dice.random() < 0.5
        with injected(scene, self.name, worker.name, os_pid=worker.os_pid, group=group):
            try:
                worker.kill(group=group)
                await asyncio.sleep(dice.uniform(0, 1))
            finally:
                worker.restart()

    def bites(self, act: Act) -> Bite:
        shots = injections(act, self.name)
        # a lease that has just been renewed runs out one length later, and is then swept
        back = {
            change.pos for shot in shots
            for change in lost_leases(act, shot, shot.about, 4 * act.lease_s)
        }
        return Bite(
            self.name, len(back),
            self.summary(f"{len(back)} leases taken back from {len(shots)} killed workers"),
        )


class Paused(Repeated):
    """SIGSTOP for a half to five lengths of a lease, then SIGCONT. The first pause and every
    other one outlast the lease: short acts have two of them, which must show something."""

    name = "F2"
    period_s = 3.0
    wants_server = False
    LONG, SHORT = (1.5, 5.0), (0.5, 1.0)

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        living = awake(scene)
        if not living:
            return
        worker = dice.choice(living)
        leases = dice.choice(self.SHORT if self.fired % 2 else self.LONG)
        group = worker.os_pid
        with injected(scene, self.name, worker.name, leases=leases):
            try:
                worker.pause()
                await rest(leases * scene.lease_s, until)
            finally:
                worker.resume()
                if group is not None and worker.os_pid != group:
                    _resume_the_rest(group)

    def bites(self, act: Act) -> Bite:
        shots = injections(act, self.name)
        lost = {
            change.pos for shot in shots
            for change in lost_leases(act, shot, shot.about, act.lease_s)
        }
        paused = {shot.about for shot in shots}
        stale = [
            call for call in act.calls
            if call.outcome == FAIL and call.pid in paused and call.sqlstate.startswith("SK00")
        ]
        return Bite(
            self.name, len(lost) + len(stale),
            self.summary(
                f"{len(lost)} leases lost during {len(shots)} pauses, "
                f"{len(stale)} writes of those workers refused"
            ),
        )


def _resume_the_rest(group: int) -> None:
    """Of a worker that was killed alone while all were stopped: its children are to find
    out, and end."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGCONT)

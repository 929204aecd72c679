"""F19 and F20: hostile data from producers, and operators who are at work."""

from __future__ import annotations

import random

from tests.faults.chaos.faults import Scene
from tests.faults.chaos.faults.firing import Repeated, injected, rest
from tests.faults.chaos.words import Act, Bite


class Poison(Repeated):
    """One in a hundred tasks has data or a result that cannot be taken."""

    name = "F19"
    SHARE = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.tried = 0
        self.refused = 0

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        load = scene.load
        with injected(scene, self.name, "producers", share=self.SHARE):
            self.fired += 1
            try:
                load.poison_share = self.SHARE
                await rest(float("inf"), until)
            finally:
                load.poison_share = 0.0
                self.tried, self.refused = load.poisoned, load.refused

    def bites(self, act: Act) -> Bite:
        return Bite(
            self.name, self.tried,
            f"{self.tried} hostile tasks were brought, {self.refused} of them refused at once",
        )


class Operated(Repeated):
    """Revoke, cancel, pause, resubmit, purge, schedule edit: one after the other."""

    name = "F20"
    period_s = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.accepted: dict[str, int] = {}

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        try:
            await super().run(scene, dice, until)
        finally:
            self.accepted = dict(scene.operators.accepted)

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        with injected(scene, self.name) as shot:
            shot.about = await scene.operators.act(dice)

    def bites(self, act: Act) -> Bite:
        shown = ", ".join(f"{name} {count}" for name, count in sorted(self.accepted.items()))
        return Bite(
            self.name, sum(self.accepted.values()),
            self.summary(f"accepted operations: {shown or 'none'}"),
        )

"""F15: a pooler in transaction mode, which pauses and reconnects."""

from __future__ import annotations

import random

from tests.faults import programs
from tests.faults.chaos.faults import PLAIN, Scene, Way
from tests.faults.chaos.faults.backends import Crowded, ShortTime
from tests.faults.chaos.faults.bouncer import Bouncer
from tests.faults.chaos.faults.firing import Repeated, in_thread, injected, rest
from tests.faults.chaos.faults.settings import HostilePlans, Isolated
from tests.faults.chaos.words import Act, Bite


class Pooled(Repeated):
    """PgBouncer with fewer connections than callers; RECONNECT, and PAUSE for a while.

    Settings of a role reach a session behind it as they are: nobody sets it up.
    """

    name = "F15"
    period_s = 5.0
    variants = ("pooler",)
    POOL = 3

    def __init__(self) -> None:
        super().__init__()
        self.bouncer: Bouncer | None = None
        self.waited = 0
        self.replaced = 0
        self.passed = 0

    def possible(self, scene: Scene | None) -> str | None:
        return None if programs.find("pgbouncer") else "there is no program pgbouncer"

    async def way(self, scene: Scene, variant: str, worker: str) -> Way:
        kinds = (Crowded, ShortTime, HostilePlans, Isolated)
        roles = [PLAIN, *(role.name for kind in kinds for role in kind.roles)]
        if self.bouncer is None:
            urls = {role: scene.url(role) for role in roles}
            self.bouncer = await in_thread(Bouncer, urls, self.POOL)
        return Way(variant, self.bouncer.url, arguments=("--pooler",), roles=tuple(roles))

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        if self.bouncer is None:
            return
        await super().run(scene, dice, until)
        stats = await self.bouncer.say("show stats")
        self.passed = sum(
            int(row["total_xact_count"]) for row in stats if row["database"] != "pgbouncer"
        )

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        bouncer = self.bouncer
        assert bouncer is not None
        how = dice.choice(("reconnect", "pause"))
        with injected(scene, self.name, "pooler", how=how):
            if how == "reconnect":
                self.replaced += sum(
                    int(row["sv_active"]) + int(row["sv_idle"]) + int(row["sv_used"])
                    for row in await bouncer.say("show pools")
                )
                await bouncer.say("reconnect")
                return
            async with bouncer.paused():
                await rest(dice.uniform(0.5, 2) * scene.lease_s, until)
                self.waited += sum(
                    int(row["cl_waiting"]) for row in await bouncer.say("show pools")
                )

    def bites(self, act: Act) -> Bite:
        return Bite(
            self.name, self.waited + self.replaced,
            self.summary(
                f"{self.passed} transactions went through it, {self.waited} clients waited in a "
                f"pause, {self.replaced} server connections were replaced"
            ),
        )

    async def close(self) -> None:
        if self.bouncer is not None:
            await in_thread(self.bouncer.close)
            self.bouncer = None

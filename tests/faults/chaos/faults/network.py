"""F6 and F7: a network that refuses, cuts, delays and swallows; a worker cut off from all."""

from __future__ import annotations

import os
import random
import time
from collections import Counter

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.faults import programs
from tests.faults.chaos.faults import Scene, Way
from tests.faults.chaos.faults.counting import held_up, injections, lost_leases
from tests.faults.chaos.faults.firing import Repeated, in_thread, injected, rest
from tests.faults.chaos.faults.namespace import Namespace
from tests.faults.chaos.proxy import WITHIN, Proxy
from tests.faults.chaos.words import Act, Bite

_PATIENCE_S = 6.0
TRIES = 3


def proxies_of(scene: Scene, address: str, seed: str) -> list[Proxy]:
    """A proxy before each server of the act."""
    return [
        Proxy(server.url(scene.database), random.Random(f"{seed} {n}"), address=address)
        for n, server in enumerate(scene.servers)
    ]


def through(scene: Scene, proxies: list[Proxy], role: str) -> str:
    """The URL of the product's database by the proxies; of several, to the one that writes."""
    ends = [conninfo_to_dict(proxy.url) for proxy in proxies]
    url = make_conninfo(
        scene.url(role),
        host=",".join(str(end["host"]) for end in ends),
        port=",".join(str(end["port"]) for end in ends),
    )
    return make_conninfo(url, target_session_attrs="read-write") if len(ends) > 1 else url


class Cut(Repeated):
    """Every way in which a TCP connection fails, of one worker or of all that have a proxy."""

    name = "F6"
    period_s = 5.0
    variants = ("proxied",)
    COMMITS = ("commit reset", "commit silence")
    OTHERS = ("refuse", "reset", "hole up", "hole down", "hole", "delay", "forget")

    def __init__(self) -> None:
        super().__init__()
        self.proxies: dict[str, list[Proxy]] = {}
        self._left: list[str] = []

    async def way(self, scene: Scene, variant: str, worker: str) -> Way:
        found = self.proxies[worker] = proxies_of(scene, "127.0.0.1", worker)
        return Way(variant, lambda role: through(scene, found, role))

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        if not self.proxies:
            return
        workers = sorted(self.proxies)
        hit = workers if dice.random() < 0.2 else [dice.choice(workers)]
        how = self._next(dice)
        lasting_s = dice.choice((0.3, 1.0, 1.0, 2.0)) * scene.lease_s
        proxies = [proxy for worker in hit for proxy in self.proxies[worker]]
        with injected(scene, self.name, " ".join(hit), how=how):
            try:
                for proxy in proxies:
                    await in_thread(_do, proxy, how, dice.uniform(0.05, 0.5))
                if how in self.COMMITS:
                    await self._cut_off(proxies, scene, until)
                elif how not in ("reset", "forget"):
                    await rest(lasting_s, until)
            finally:
                for proxy in proxies:
                    await in_thread(proxy.heal)

    async def _cut_off(self, proxies: list[Proxy], scene: Scene, until: float) -> None:
        """Wait for a commit to cut: locks of others may hold it up."""
        until = min(until, time.monotonic() + _PATIENCE_S)
        before = sum(proxy.counts[WITHIN] for proxy in proxies)
        while time.monotonic() < until:
            await rest(0.05, until)
            if sum(proxy.counts[WITHIN] for proxy in proxies) > before:
                # for the silence that may follow
                await rest(scene.lease_s, until)
                return

    def _next(self, dice: random.Random) -> str:
        """Every other time within a commit; the rest in turn, so that a short act has many."""
        if not self._left:
            for other in dice.sample(self.OTHERS, len(self.OTHERS)):
                self._left += [other, dice.choice(self.COMMITS)]
        return self._left.pop()

    def bites(self, act: Act) -> Bite:
        counts: Counter[str] = Counter()
        for proxies in self.proxies.values():
            for proxy in proxies:
                counts.update(proxy.counts)
        shown = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        return Bite(
            self.name, counts.total(), self.summary(f"at the proxies: {shown or 'nothing'}")
        )

    async def close(self) -> None:
        for proxies in self.proxies.values():
            for proxy in proxies:
                await in_thread(proxy.close)
        self.proxies.clear()


def _do(proxy: Proxy, how: str, least_s: float) -> None:
    match how.split():
        case ["refuse"]:
            proxy.refuse()
        case ["reset"]:
            proxy.reset()
        case ["hole", *ways]:
            proxy.hole(*(ways or ("up", "down")))
        case ["delay"]:
            proxy.delay(least_s, 4 * least_s)
        case ["forget"]:
            proxy.forget()
        case ["commit", then]:
            proxy.cut_commits(then)


class Partitioned(Repeated):
    """A worker in a network namespace of its own, whose packets are dropped for a while."""

    name = "F7"
    period_s = 10.0
    variants = ("partitioned",)

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, tuple[Namespace, list[Proxy]]] = {}
        self.sent_again = 0

    def possible(self, scene: Scene | None) -> str | None:
        if os.geteuid() != 0:
            return "a network namespace needs root"
        if programs.find("ip") is None:
            return "there is no program ip"
        return Namespace.refused()

    async def way(self, scene: Scene, variant: str, worker: str) -> Way:
        space = await in_thread(Namespace)
        proxies = proxies_of(scene, space.outer, worker)
        self.places[worker] = space, proxies
        return Way(variant, lambda role: through(scene, proxies, role), prefix=space.prefix)

    async def fire(self, scene: Scene, dice: random.Random, until: float) -> None:
        if not self.places:
            return
        for _ in range(TRIES):
            # a worker that is down, or whose server is, sends nothing that could be dropped
            if await self._cut_off(scene, dice, until) or time.monotonic() > until:
                break
            await rest(0.3, until)

    async def _cut_off(self, scene: Scene, dice: random.Random, until: float) -> int:
        """Whether something was sent into nothing meanwhile, and how often."""
        worker = dice.choice(sorted(self.places))
        space = self.places[worker][0]
        how = dice.choice(space.ways())
        before = await in_thread(space.retransmitted)
        with injected(scene, self.name, worker, how=how):
            try:
                await in_thread(space.drop, how)
                await rest(dice.choice((0.5, 1.5, 3.0)) * scene.lease_s, until)
            finally:
                await in_thread(space.heal)
        again: int = await in_thread(space.retransmitted) - before
        self.sent_again += again
        return again

    def bites(self, act: Act) -> Bite:
        shots = injections(act, self.name)
        lost = sum(len(lost_leases(act, shot, shot.about, act.lease_s)) for shot in shots)
        hurt = sum(len(held_up(act, shot, shot.about)) for shot in shots)
        return Bite(
            self.name, self.sent_again,
            self.summary(
                f"{self.sent_again} segments sent again into nothing, {hurt} calls hurt, "
                f"{lost} leases lost meanwhile"
            ),
        )

    async def close(self) -> None:
        for space, proxies in self.places.values():
            for proxy in proxies:
                await in_thread(proxy.close)
            await in_thread(space.remove)
        self.places.clear()

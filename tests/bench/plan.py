"""How much is measured: three sizes of the same work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run. ``seconds``: of one open-ended run of pgbench; ``tasks``: of one
    drain; ``large``: of the parts where the size is the point; ``samples``: pickups of a
    round; ``weighed``: tasks whose bytes are counted."""

    name: str = "standard"
    rounds: int = 3
    seconds: int = 1
    tasks: int = 20_000
    large: int = 100_000
    finished: int = 1_000_000
    leases: int = 10_000
    samples: int = 60
    idle_workers: int = 100
    idle_seconds: float = 10.0
    weighed: int = 10_000


STANDARD = Plan()
SMOKE = Plan(
    name="smoke", rounds=1, seconds=0, tasks=200, large=300, finished=1_000, leases=100,
    samples=3, idle_workers=4, idle_seconds=0.5, weighed=100,
)  # fmt: skip
LONG = Plan(
    name="long", rounds=5, seconds=5, tasks=50_000, large=1_000_000, finished=10_000_000,
    samples=300, idle_seconds=30.0,
)  # fmt: skip
PLANS = {plan.name: plan for plan in (STANDARD, SMOKE, LONG)}

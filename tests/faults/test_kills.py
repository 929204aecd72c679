"""Workers that die by SIGKILL at random instants leave nothing stuck and nothing leaked."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.faults.kills.killing import Killing

SEED = "SOKKA_TEST_SEED"
KILLS = 25


def test_workers_killed_at_random_instants_leave_nothing_behind(db: str, tmp_path: Path) -> None:
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(10**6))
    print(f"{SEED}={seed}")  # the same load and victims, at nearly the same instants
    with Killing(db, tmp_path, seed, pause_s=0.2) as run:
        run.kill(KILLS)
        run.check()
    print(run.figures)
    assert run.figures.events["lease_lost"] > 0
    assert run.figures.holding > 0

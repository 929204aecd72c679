"""F8: workers whose clocks are wrong, from their start or suddenly."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.faults import programs
from tests.faults.chaos.faults import Scene, Way
from tests.faults.chaos.faults.counting import belongs
from tests.faults.chaos.faults.firing import Repeated, in_thread, injected, rest
from tests.faults.chaos.words import OK, Act, Bite

STEP_BACK_S = 90
SHIFTS = {"clock-ahead": "+300", "clock-behind": "-300", "clock-step": "+0",
          "clock-fast": "+0 x2", "clock-slow": "+0 x0.5"}
PACED = ("clock-fast", "clock-slow")


@dataclass
class _Clock:
    variant: str
    environment: dict[str, str]
    file: Path
    off_s: float | None = None


class WrongClocks(Repeated):
    """Minutes ahead or behind, 90 s back in the middle, twice or half as fast.

    Where only the wall clock is wrong, the monotonic one is right, as on a machine whose
    clock was set. A clock of another pace is another pace for both: then the worker's
    recorder must not go by CLOCK_MONOTONIC, which ``CHAOS_CLOCK=uptime`` tells it.
    """

    name = "F8"
    variants = tuple(SHIFTS)

    def __init__(self) -> None:
        super().__init__()
        self.clocks: dict[str, _Clock] = {}

    def possible(self, scene: Scene | None) -> str | None:
        return None if programs.find("faketime") else "there is no program faketime"

    async def way(self, scene: Scene, variant: str, worker: str) -> Way:
        file = scene.folder / f"{worker}.clock"
        file.write_text(SHIFTS[variant] + "\n")
        environment = await in_thread(environment_of, variant, file)
        self.clocks[worker] = _Clock(variant, environment, file)
        return Way(variant, scene.url, environment=environment)

    async def run(self, scene: Scene, dice: random.Random, until: float) -> None:
        stepped = [clock for clock in self.clocks.values() if clock.variant == "clock-step"]
        with injected(
            scene, self.name, " ".join(self.clocks),
            clocks={worker: clock.variant for worker, clock in self.clocks.items()},
        ):
            self.fired += 1
            await rest((until - time.monotonic()) * dice.uniform(0.3, 0.6), until)
            with injected(scene, self.name, "step", back_s=STEP_BACK_S, clocks=len(stepped)):
                for clock in stepped:
                    clock.file.write_text(f"-{STEP_BACK_S}\n")
                for clock in self.clocks.values():
                    clock.off_s = await in_thread(_off_by, clock)
                await rest(until - time.monotonic(), until)

    def bites(self, act: Act) -> Bite:
        worked = {
            worker: sum(call.outcome == OK and belongs(call.pid, worker) for call in act.calls)
            for worker, clock in self.clocks.items() if self._wrong(clock)
        }
        shown = ", ".join(
            f"{worker} ({self.clocks[worker].variant}) {count}" for worker, count in worked.items()
        )
        return Bite(self.name, sum(worked.values()), f"calls answered under a wrong clock: {shown}")

    def _wrong(self, clock: _Clock) -> bool:
        """A clock of another pace begins right each time a process starts."""
        return clock.variant in PACED or (clock.off_s is not None and abs(clock.off_s) > 30)

    async def close(self) -> None:
        """The library's shared memory goes by the os pid, and a killed process leaves it."""
        for left in Path("/dev/shm").glob("*faketime_*_*"):
            pid = left.name.rpartition("_")[2]
            if pid.isdigit() and not Path("/proc", pid).exists():
                left.unlink(missing_ok=True)


def environment_of(variant: str, file: Path) -> dict[str, str]:
    """The library alone: the program ``faketime`` would stand between, and a kill hit it."""
    faketime = programs.find("faketime")
    assert faketime is not None
    library = subprocess.run(
        [faketime, "-m", "+1 second", "printenv", "LD_PRELOAD"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()
    paced: Mapping[str, str] = (
        {"FAKETIME": SHIFTS[variant], "CHAOS_CLOCK": "uptime"} if variant in PACED
        else {
            "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
    )
    return {"LD_PRELOAD": library, **paced}


def _off_by(clock: _Clock) -> float:
    """How far the clock is off, seconds, by a process that has it."""
    done = subprocess.run(
        ["date", "+%s"], env=clock.environment, capture_output=True, text=True, check=True
    )
    with suppress(ValueError):
        return float(done.stdout) - time.time()
    return 0.0

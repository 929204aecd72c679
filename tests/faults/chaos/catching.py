"""Whether each seeded defect is found: its act is played and judged, by a second seed if need be.

``python -m tests.faults.chaos`` with MUTANT=all does it for all of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from sokka_pg.embedded import Binaries
from tests.faults.chaos import running, whole
from tests.faults.chaos.judging.verdict import Verdict, judge
from tests.faults.chaos.mutants import MUTANTS
from tests.faults.chaos.report.report import write_report
from tests.faults.chaos.words import Run

SEEDS = 2


@dataclass
class Caught:
    """What came of a defect: the seed that showed it, if any, and the rules that were broken."""

    name: str
    seed: int | None
    verdict: Verdict
    seconds: float

    @property
    def rules(self) -> Counter[str]:
        return Counter(each.rule for each in self.verdict.broken)

    def __str__(self) -> str:
        rules = ", ".join(f"{rule} ({n})" for rule, n in self.rules.most_common())
        told = f"seed {self.seed}: {rules}" if self.seed is not None else "NOT FOUND"
        return f"{self.name:18} {self.seconds:5.0f} s  {told}"


def wanted(name: str, seed: int, binaries: Binaries) -> whole.Wanted:
    """The one act in which a defect shows, with its faults alone and a small crew."""
    return whole.Wanted(
        seed, MUTANTS[name].seconds, (), binaries, name, None,
        f"make chaos MUTANT={name} SEED={seed}",
    )


async def catch(
    name: str, binaries: Binaries, folder: Path | None = None, seeds: int = SEEDS
) -> Caught:
    """Play it until it is found, at most ``seeds`` times. What is found by none of its own
    rules does not count: then the harness, and not the defect, was the reason."""
    mutant, began = MUTANTS[name], time.monotonic()
    for seed in range(mutant.seed, mutant.seed + seeds):
        place = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-", dir=folder))
        asked = wanted(name, seed, binaries)
        plan = whole.make_plan(asked)
        act = await running.play(plan.acts[0], place / mutant.act, binaries, name)
        run = Run(
            seed, mutant.seconds, dataclasses.asdict(plan), whole.versions(binaries), [act],
            command=asked.command,
        )
        verdict = judge(run)
        if folder is None:
            shutil.rmtree(place)
        else:
            write_report(run, verdict, folder / f"{name}.html")
        found = {each.rule for each in verdict.broken} & set(mutant.rules)
        caught = Caught(name, seed if found else None, verdict, time.monotonic() - began)
        if found:
            break
    return caught


def catch_all(
    binaries: Binaries, names: Iterable[str] = MUTANTS, folder: Path | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Each in turn; 0 if all were found, else 1."""
    missed = 0
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        caught = asyncio.run(catch(name, binaries, folder))
        say(str(caught))
        missed += caught.seed is None
    return 1 if missed else 0

"""A whole run: plan, acts, verdict, report."""

from __future__ import annotations

import dataclasses
import logging
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psycopg

import sokka_pg
from sokka_pg.embedded import Binaries
from tests.faults.chaos import keeping, running
from tests.faults.chaos import plan as plans
from tests.faults.chaos.faults import PLAIN, fault
from tests.faults.chaos.judging.verdict import Verdict, judge
from tests.faults.chaos.report.report import write_report
from tests.faults.chaos.scene import binaries_of
from tests.faults.chaos.words import Act, Run

Work: TypeAlias = Callable[[], int]
DURATION = "10m"
CODES = {"pass": 0, "FAIL": 1, "unknown": 3}
REPORT = "report.html"
EVERY = "all"
"""As MUTANT: all of them, one after another (catching.py)."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for."""

    seed: int
    duration_s: float
    acts: tuple[str, ...]
    binaries: Binaries
    mutant: str
    out: Path | None
    command: str


def read_environment(given: Mapping[str, str]) -> Wanted:
    """DURATION, SEED, PG, ACTS, MUTANT and OUT. Raises ValueError, saying what is wrong."""
    said = {
        name: given[name].strip() for name in ("DURATION", "SEED", "PG", "ACTS", "MUTANT", "OUT")
        if given.get(name, "").strip()
    }
    mutant = said.get("MUTANT", "")
    seed = _whole(said, "SEED")
    if mutant and mutant != EVERY:
        own = _mutant(mutant).seed
        seed = own if seed is None else seed
    elif seed is None:
        seed = random.SystemRandom().randrange(10**6)
    said["SEED"] = str(seed)
    return Wanted(
        seed, plans.read_duration(said.get("DURATION", DURATION)),
        tuple(plans.read_acts(said.get("ACTS", ""))), binaries_of(_whole(said, "PG")), mutant,
        Path(said["OUT"]) if "OUT" in said else None,
        " ".join(["make chaos", *(f"{name}={text}" for name, text in said.items())]),
    )


def _whole(said: Mapping[str, str], name: str) -> int | None:
    if name not in said:
        return None
    if not said[name].isdigit():
        raise ValueError(f"{name}: a whole number, not {said[name]!r}")
    return int(said[name])


def _mutant(name: str) -> Any:
    """A defect by its name. Raises ValueError."""
    from tests.faults.chaos.mutants import MUTANTS

    if name not in MUTANTS:
        raise ValueError(f"MUTANT: {EVERY}, or one of {', '.join(MUTANTS)}, not {name!r}")
    return MUTANTS[name]


def make_plan(wanted: Wanted) -> plans.Plan:
    """The plan of the seed, for this machine."""
    shapes, acts, duration_s = dict(plans.SHAPES), wanted.acts, wanted.duration_s
    if wanted.mutant:
        # the one act in which the defect is to be seen
        mutant = _mutant(wanted.mutant)
        acts, duration_s = (mutant.act,), float(mutant.seconds)
        shapes[mutant.act] = dataclasses.replace(
            shapes[mutant.act], faults=mutant.faults, workers=mutant.workers
        )
    names = {name for act in acts for name in shapes[act].faults}
    made = {name: fault(name) for name in sorted(names)}
    impossible = {name: why for name, each in made.items() if (why := each.possible(None))}
    needs = {
        name: plans.Needs(tuple(each.variants), tuple(role.name for role in each.roles))
        for name, each in made.items()
    }
    return plans.plan(wanted.seed, duration_s, acts, needs, impossible, PLAIN, shapes)


# --- the run ----------------------------------------------------------------------


async def run(wanted: Wanted) -> int:
    """Play all acts, judge them, say so. The code to end with."""
    folder = _folder(wanted)
    found = Run(
        wanted.seed, wanted.duration_s, {}, versions(wanted.binaries), command=wanted.command
    )
    trouble = ""
    try:
        plan = make_plan(wanted)
        found.plan, found.not_run = dataclasses.asdict(plan), dict(plan.not_run)
        _say(f"seed {wanted.seed}: {wanted.command}")
        _say("versions: " + ", ".join(f"{name} {what}" for name, what in found.versions.items()))
        _say(f"folder: {folder}")
        logging.basicConfig(filename=folder / "run.log", level=logging.INFO)
        for act_plan in plan.acts:
            _announce(act_plan)
            began = time.monotonic()
            found.acts.append(
                await running.play(
                    act_plan, folder / act_plan.name, wanted.binaries, wanted.mutant
                )
            )
            _tell(found.acts[-1], time.monotonic() - began)
    except Exception as error:  # the harness itself: neither pass nor FAIL
        trouble = f"{type(error).__name__}: {error}"
        (folder / "trouble.txt").write_text(traceback.format_exc())
        traceback.print_exc()
    keeping.save_run(found, folder)
    code = finish(found, folder, trouble)
    if code == 0 and wanted.out is None:
        _say(f"(history removed; OUT=folder keeps it; the report stays: {_keep_report(folder)})")
    return code


def finish(run: Run, folder: Path, trouble: str = "") -> int:
    """Judge it, write the report, say the verdict."""
    began = time.monotonic()
    verdict = judge(run)
    if trouble and verdict.verdict == "pass":
        verdict = dataclasses.replace(verdict, verdict="unknown")
    write_report(run, verdict, folder / REPORT)
    _say_verdict(run, verdict, trouble)
    _say(f"judged in {time.monotonic() - began:.1f} s; report: {folder / REPORT}")
    return CODES[verdict.verdict]


def judge_again(folder: Path) -> int:
    """A kept run. Raises ValueError, if there is none."""
    return finish(keeping.load_run(folder), folder)


def _folder(wanted: Wanted) -> Path:
    if wanted.out is None:
        return Path(tempfile.mkdtemp(prefix=f"chaos-{wanted.seed}-"))
    wanted.out.mkdir(parents=True, exist_ok=True)
    return wanted.out.resolve()


def _keep_report(folder: Path) -> Path:
    kept = folder.with_suffix(".html")
    shutil.move(folder / REPORT, kept)
    shutil.rmtree(folder)
    return kept


def versions(binaries: Binaries) -> dict[str, str]:
    """What was tested, and on what."""
    said = subprocess.run(
        [binaries.bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    git = shutil.which("git")
    state = "" if git is None else subprocess.run(
        [git, "describe", "--always", "--dirty"], capture_output=True, text=True,
        cwd=Path(__file__).parents[3],
    ).stdout.strip()
    return {
        "sokka_pg": getattr(sokka_pg, "__version__", "") or state or "?",
        "source": state or "no checkout", "postgresql": said.stdout.strip().split(" ", 2)[-1],
        "python": platform.python_version(), "psycopg": psycopg.__version__,
        "system": platform.platform(terse=True),
    }


# --- what is said -----------------------------------------------------------------


def _say(text: str) -> None:
    print(text, flush=True)


def _announce(act: plans.ActPlan) -> None:
    seats = ", ".join(f"{seat.name} {seat.variant}/{seat.role}" for seat in act.seats)
    _say(f"\nact {act.name}: {act.seconds:.0f} s, lease {act.lease_s:g} s, {' '.join(act.faults)}")
    _say(f"  crew: {seats}")
    for name, why in act.not_run.items():
        _say(f"  NOT RUN {name}: {why}")


def _tell(act: Act, took_s: float) -> None:
    _say("  " + ", ".join(f"{name} {n}" for name, n in running.counts(act).items()))
    drained = act.after.drained_at
    _say(
        f"  {took_s:.0f} s in all, {(act.ended - act.began) / 1e9:.0f} s of them before the drain, "
        + ("which did not end" if drained is None
           else f"{(drained - act.after.quiet_at) / 1e9:.1f} s in it")
    )
    for bite in act.bites:
        _say(f"  {bite.fault:4} {bite.count:6}  {bite.evidence}")


def _say_verdict(run: Run, verdict: Verdict, trouble: str) -> None:
    _say("")
    for name, why in run.not_run.items():
        _say(f"NOT RUN act {name}: {why}")
    if trouble:
        _say(f"the run itself broke down: {trouble}")
    found: Any = verdict.counts
    _say("counts: " + ", ".join(f"{name} {n}" for name, n in found.items()))
    for broken in verdict.broken[:20]:
        _say(f"  {broken}")
    if len(verdict.broken) > 20:
        _say(f"  … {len(verdict.broken) - 20} more")
    for line in verdict.story:
        _say(f"    {line}")
    for reason in verdict.why:
        _say(f"  unknown: {reason}")
    _say(f"verdict: {verdict.verdict} (seed {run.seed}: {run.command})")
    sys.stdout.flush()

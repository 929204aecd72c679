"""One run of the bench: the parts that were asked for, in order."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass

from sokka_pg.bench import steady, trials, workers
from sokka_pg.bench.figures import Figure, Ratio, Report, environment
from sokka_pg.bench.ground import Line, scratch
from sokka_pg.bench.trials import Tell
from sokka_pg.errors import BadArgument

PARTS = ("enqueue", "verbs", "worker", "latency", "pinned", "hot")
"""What is measured unless told otherwise. ``finished`` and ``soak`` take minutes
and come with their sizes."""

_PINNED_PER_TASK = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. ``tasks``: the size of a throughput run (the pinned
    snapshot takes five times as many); ``rounds``: runs of which the median
    counts; ``finished`` and ``soak``: sizes of the long parts, 0 for none."""

    parts: tuple[str, ...] = PARTS
    tasks: int = 20_000
    rounds: int = 3
    finished: int = 0
    soak: int = 0

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise BadArgument.of("--only", f"must be one or several of {', '.join(PARTS)}")
        for name, least, most in (
            ("tasks", 1_000, 1_000_000), ("rounds", 1, 25),
            ("finished", 0, 100_000_000), ("soak", 0, 100_000_000),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise BadArgument.of(f"--{name}", f"must be from {least} to {most}")


def _nobody(text: str, share: float | None = None, /) -> None:
    """Hears nothing."""


def run(url: str, plan: Plan, tell: Tell = _nobody) -> Report:
    """Measure. ``tell`` hears what is going on. Raises SokkaError."""
    with scratch(url) as line:
        report = Report(environment(line.connection, asdict(plan)))
        _throughput(report, line, plan, tell)
        if "latency" in plan.parts:
            _add(report, workers.pickup(line, tell))
        if "pinned" in plan.parts:
            _add(report, steady.pinned(line, plan.tasks * _PINNED_PER_TASK, plan.rounds, tell))
        if "hot" in plan.parts:
            _add(report, steady.hot(line, tell))
        _long_parts(report, line, plan, tell)
    return report


def _throughput(report: Report, line: Line, plan: Plan, tell: Tell) -> None:
    by_part = {
        "enqueue": trials.ENQUEUE,
        "verbs": trials.VERBS,
        "worker": (workers.TRIAL,),
    }
    chosen = [trial for part in plan.parts for trial in by_part.get(part, ())]
    if "worker" in plan.parts and "verbs" not in plan.parts:
        chosen.append(trials.VERBS[0])  # what a worker is compared with
    if chosen:
        report.figures += trials.interleaved(chosen, line, plan.tasks, plan.rounds, tell)
        report.ratios += trials.ratios(report.figures)


def _long_parts(report: Report, line: Line, plan: Plan, tell: Tell) -> None:
    with ExitStack() as stack:
        if plan.finished:
            beside = stack.enter_context(scratch(line.url))
            found = steady.finished(line, beside, plan.finished, plan.tasks, plan.rounds, tell)
            _add(report, found)
    if plan.soak:
        with scratch(line.url) as fresh:
            _add(report, workers.soak(fresh, plan.soak, tell))


def _add(report: Report, found: tuple[list[Figure], list[Ratio]]) -> None:
    report.figures += found[0]
    report.ratios += found[1]

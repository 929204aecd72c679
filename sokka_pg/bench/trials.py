"""Throughput of the verbs: one call per task, batches, and one call for both ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sokka_pg import calls
from sokka_pg.bench.figures import Figure, Ratio, at_least
from sokka_pg.bench.ground import BULK, DATA, Line, pairs
from sokka_pg.model import Settlement

PID = "bench"
BATCH = 100
SINGLE = "reserve + terminate, one by one"
WORKER = "worker process, no-op async handlers"


class Tell(Protocol):
    """Hears what is measured, and how far along that is (0 to 1), where it is known."""

    def __call__(self, text: str, share: float | None = None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """Something whose rate is measured.

    ``work(line, topic, count)`` does it and returns seconds. ``share``: of the
    plan's tasks, since calls one by one are slow; ``filled``: whether the topic's
    tasks stand there before.
    """

    part: str
    name: str
    work: Callable[[Line, str, int], float]
    share: float = 1.0
    filled: bool = True

    def rate(self, line: Line, topic: str, tasks: int) -> float:
        count = max(BATCH, int(tasks * self.share))
        if self.filled:
            line.fill(topic, count)
        return count / self.work(line, topic, count)


def timed(work: Callable[[Line, str, int], None]) -> Callable[[Line, str, int], float]:
    def seconds(line: Line, topic: str, count: int) -> float:
        begun = time.perf_counter()
        work(line, topic, count)
        return time.perf_counter() - begun

    return seconds


def _enqueue_single(line: Line, topic: str, count: int) -> None:
    for _ in range(count):
        line.run(calls.create_task(topic, DATA))


def _enqueue_bulk(line: Line, topic: str, count: int) -> None:
    line.fill(topic, count)


def one_by_one(line: Line, topic: str, count: int) -> None:
    for _ in range(count):
        leased = line.run(calls.reserve_task(topic, PID))
        assert leased is not None  # noqa: S101  (the topic was filled)
        line.run(calls.terminate(leased.lease))


def batches(line: Line, topic: str, count: int) -> None:
    while leased := line.run(calls.reserve_tasks([topic], PID, BATCH)):
        line.run(calls.terminate_many(PID, pairs(leased)))


def settle_and_reserve(line: Line, topic: str, count: int) -> None:
    """The whole topic, with one call for the end of a batch and the next one."""
    drain(line, topic, None)


def drain(line: Line, topic: str, after_batch: Callable[[int], None] | None) -> None:
    settled: list[Settlement] = []
    while True:
        answer = line.run(calls.settle_and_reserve(PID, settled, [topic], BATCH))
        if after_batch is not None and settled:
            after_batch(len(settled))
        if not answer.leases:
            return
        settled = [Settlement(each.task_id, each.token, "terminate") for each in answer.leases]


ENQUEUE = (
    Trial("enqueue", "create_task, one by one", timed(_enqueue_single), 0.05, filled=False),
    Trial("enqueue", f"create_tasks of {BULK}", timed(_enqueue_bulk), filled=False),
)
VERBS = (
    Trial("verbs", SINGLE, timed(one_by_one), 0.05),
    Trial("verbs", f"reserve_tasks + terminate_tasks of {BATCH}", timed(batches)),
    Trial("verbs", f"settle_and_reserve of {BATCH}", timed(settle_and_reserve)),
)


def interleaved(
    trials: Sequence[Trial], line: Line, tasks: int, rounds: int, tell: Tell
) -> list[Figure]:
    """Each trial once per round, in a turning order: a machine that slows down or
    warms up does so for all."""
    rates: dict[str, list[float]] = {trial.name: [] for trial in trials}
    for turn in range(rounds):
        shift = turn % len(trials)
        for step, trial in enumerate((*trials[shift:], *trials[:shift])):
            share = (turn * len(trials) + step) / (rounds * len(trials))
            tell(f"{trial.name} ({turn + 1} of {rounds})", share)
            topic = f"{trial.name} {turn}"
            rates[trial.name].append(trial.rate(line, topic, tasks))
    return [Figure.of(trial.part, trial.name, rates[trial.name]) for trial in trials]


def ratios(figures: Sequence[Figure]) -> list[Ratio]:
    """How much more the other ways do than calls one by one."""
    single = next((each for each in figures if each.name == SINGLE), None)
    if single is None:
        return []
    found = []
    for each in figures:
        if each.part in ("verbs", "worker") and each is not single:
            name = f"{each.name} / {SINGLE}"
            value = each.median / single.median
            found.append(
                at_least(each.part, name, value, 5.0) if each.name == WORKER
                else Ratio(each.part, name, value, "", True)
            )  # fmt: skip
    return found

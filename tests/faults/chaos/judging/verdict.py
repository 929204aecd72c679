"""The verdict on a run: pass, FAIL with the shortest story of one task, or unknown, where
the run shows too little. Pure: no database, no clock, no chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.faults.chaos.judging import (
    answers,
    callers,
    clients,
    effects,
    failover,
    linear,
    liveness,
    queue,
    reading,
    relations,
    replay,
    story,
    ticks,
)
from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.words import Act, Bite, Change, Run

# What a run must have seen of its faults, or it shows nothing.
NEEDED = {
    "refused_stale_writes": "no stale write was refused",
    "infos": "no answer was lost",
    "recovered": "no enqueue of unknown fate turned up",
    "overlapping_effects": "no two attempts were at the same work at once",
}
# Beyond so many of one rule in an act they say nothing new.
MOST_OF_A_RULE = 50


@dataclass
class Verdict:
    """``why``: the reasons for which it is unknown. ``story``: what happened to one task."""

    verdict: str
    broken: list[Fault] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    bites: list[Bite] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """As it is printed."""
        told = [f"verdict: {self.verdict}"]
        told += [f"  {name.replace('_', ' ')}: {count}" for name, count in self.counts.items()]
        told += [f"  {bite.fault}: {bite.count} ({bite.evidence})" for bite in self.bites]
        told += [f"unknown: {reason}" for reason in self.why]
        rules = Counter(fault.rule for fault in self.broken)
        told += [f"broken: {rule}, {count} times" for rule, count in rules.most_common()]
        told += [f"  {fault}" for fault in self.broken[:20]]
        return [*told, *self.story]


@dataclass
class Judged:
    """What was found in one act."""

    broken: list[Fault]
    counts: Counter[str]


def judge(run: Run) -> Verdict:
    """Every rule that did not hold; else whether the run shows enough to say so."""
    judged = {act.name: judge_act(act) for act in run.acts}
    broken = [fault for each in judged.values() for fault in each.broken]
    counts: Counter[str] = Counter()
    for each in judged.values():
        counts.update(each.counts)
    bites = _bites(run)
    why = [] if broken else _doubts(run, counts, bites)
    return Verdict(
        "FAIL" if broken else "unknown" if why else "pass",
        broken, why, dict(counts), bites, _story(run.acts, broken),
    )  # fmt: skip


def judge_act(act: Act) -> Judged:
    said = reading.read(act)
    of_task = replay.by_task(act.changes)
    lost = failover.lost_changes(act)
    found = queue.account(said, of_task)
    orders = linear.Orders()
    broken = [
        *replay.check(act.name, of_task, act.changes),
        *relations.check(act.name, of_task, act.changes),
        *ticks.check(said, of_task),
        *callers.check(said, of_task),
        *clients.check(said),
        *answers.check(said, of_task, lost),
        *failover.check(said, of_task),
        *queue.check(said, found, of_task, failover.forgotten(act, of_task)),
        *effects.check(act.name, act.effects, of_task, _lost_grants(lost)),
        *liveness.check(act),
        *linear.check(said, of_task, lost, orders),
    ]
    counts = found.counts
    counts["unexpected"] = sum(
        fault.rule == "I8" and "nobody had asked" in fault.message for fault in broken
    )
    counts["overlapping_effects"] = effects.overlaps(act.effects)
    counts["refused_stale_writes"] += effects.refused(act.effects)
    counts.update(
        calls=len(act.calls), changes=len(act.changes), effects=len(act.effects),
        orders_found=orders.found, orders_given_up=orders.given_up,
        orders_left_out=orders.left_out, failovers=len(act.losses),
        changes_lost_at_failovers=sum(len(loss.lost_changes) for loss in act.losses),
    )  # fmt: skip
    return Judged(sorted(_fewer(broken), key=lambda fault: fault.pos or 1 << 62), counts)


def _lost_grants(lost: dict[str, list[Change]]) -> set[tuple[str, int]]:
    return {
        (task, change.row["token"]) for task, changes in lost.items()
        for change in failover.grants(changes)
    }  # fmt: skip


def _fewer(broken: list[Fault]) -> Iterator[Fault]:
    seen: Counter[str] = Counter()
    for fault in broken:
        seen[fault.rule] += 1
        if seen[fault.rule] <= MOST_OF_A_RULE:
            yield fault


def _bites(run: Run) -> list[Bite]:
    found: dict[str, Bite] = {}
    for act in run.acts:
        for bite in act.bites:
            whole = found.setdefault(bite.fault, Bite(bite.fault, 0, ""))
            whole.count += bite.count
            if bite.evidence and bite.evidence not in whole.evidence:
                whole.evidence = "; ".join(filter(None, (whole.evidence, bite.evidence)))
    return sorted(found.values(), key=lambda bite: int(bite.fault.lstrip("F") or 0))


def _doubts(run: Run, counts: Counter[str], bites: list[Bite]) -> list[str]:
    told = [f"{bite.fault} had no effect" for bite in bites if not bite.count]
    bitten = {bite.fault for bite in bites}
    left_out = set(run.not_run).union(*(act.not_run for act in run.acts))
    for planned in run.plan.get("acts", ()):
        for fault in planned.get("faults", ()):
            if fault not in bitten and fault not in left_out:
                bitten.add(fault)
                told.append(f"{fault} was planned, and nothing is known of it")
    if not run.acts:
        told.append("no act was played")
    return told + [reason for name, reason in NEEDED.items() if not counts[name]]


def _story(acts: Sequence[Act], broken: list[Fault]) -> list[str]:
    """The shortest among those of the tasks of the first few faults."""
    told = []
    of_name = {act.name: act for act in acts}
    for fault in [fault for fault in broken if fault.task][:5]:
        lines = story.tell(of_name[fault.act], fault.task, fault.pos)
        told.append([str(fault), *lines])
    return min(told, key=len, default=[])

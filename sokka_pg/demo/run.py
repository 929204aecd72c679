"""The demo from beginning to end."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from sokka_pg import migrate
from sokka_pg.demo import fates, sources
from sokka_pg.demo.counting import Plain, count_plainly
from sokka_pg.demo.crew import Hand, Job, crew
from sokka_pg.demo.handlers import KIND
from sokka_pg.demo.hosting import Host, host, interruptible
from sokka_pg.demo.table import Desk
from sokka_pg.demo.telling import Patience, Snapshot, Teller
from sokka_pg.demo.verdict import Evidence, Findings, judge
from sokka_pg.store import PgTaskStore

WARM_UP = 200
"""The two workers that are hit end one in so many tasks each before they are."""
BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for. ``files``: at most so many; ``database_url``: None for the
    embedded server; ``queue``: the queue's schema; ``keep``: leave it all standing."""

    queue: str
    files: int | None = None
    database_url: str | None = None
    keep: bool = False


def play(plan: Plan, teller: Teller) -> dict[str, Any]:
    """Run the demo; the facts, of which ``ok`` says whether all agree.

    Raises ``DemoFailed`` where it came to no end, ``UsageError`` where it cannot
    begin, ``DatabaseUnavailable``. Whatever it started is ended when this returns
    or raises, except a server that is kept.
    """
    with interruptible() as hold_signals, ExitStack() as stack:
        try:
            return _play(plan, teller, stack)
        finally:
            hold_signals()


def _play(plan: Plan, teller: Teller, stack: ExitStack) -> dict[str, Any]:
    found = sources.find(plan.files)
    teller.said("starting PostgreSQL" if plan.database_url is None else "using the database named")
    place = stack.enter_context(host(plan.database_url, plan.keep))
    migrate.upgrade(place.url, plan.queue)
    desk = stack.enter_context(Desk(place.url, plan.queue, place.topic))
    desk.prepare()
    if not place.embedded and not plan.keep:
        stack.callback(desk.drop)
    teller.said(f"PostgreSQL {desk.version()} is up, schema {plan.queue} migrated")
    _enqueue(found, place, plan.queue)
    teller.said(f"{len(found.files):,} tasks enqueued, one per file of {found.origin}")
    scene = _work(found, place, plan.queue, desk, teller)
    unfenced = desk.write_without_lease(next(iter(scene.frozen_with)), found.files[0].name)
    plain = count_plainly(found.files, place.folder, teller)
    teller.said(f"one plain process counted the same files in {plain.seconds:.1f} s")
    evidence = _evidence(found, desk, scene, plain, unfenced is not None)
    facts = _facts(found, place, desk, scene, plain, evidence, judge(evidence))
    place.kept = plan.keep
    return facts | {"kept": _kept(place, desk, plan) if plan.keep else None}


def _enqueue(found: sources.Sources, place: Host, queue: str) -> None:
    specs = [
        {
            "topic": place.topic, "kind": KIND, "priority": priority, "retry": 5,
            "data": {"name": file.name, "path": file.path},
        }
        for file, priority in found.priorities()
    ]
    store = PgTaskStore(place.url, queue)
    try:
        for start in range(0, len(specs), BATCH):
            store.create_tasks(specs[start : start + BATCH])
    finally:
        store.close()


def _work(
    found: sources.Sources, place: Host, queue: str, desk: Desk, teller: Teller
) -> fates.Scene:
    """Let the workers run until every task is done and both stories are told."""
    total = len(found.files)
    hold_after = total // WARM_UP
    names = {"w1": hold_after, "w2": hold_after, "w3": None, "w4": None}
    patience = Patience("the workers")
    with crew(names, Job(place.url, queue, place.topic, place.folder)) as hands:
        teller.said(f"{len(hands)} worker processes started")
        scene = fates.Scene(desk, hands, teller.said)
        stories = [fates.beginning(scene), fates.killing(scene), fates.freezing(scene)]
        while stories or scene.look.unfinished:
            scene.glance()
            stories = [story for story in stories if next(story, story) is None]
            done = total - scene.look.unfinished
            views = [hand.view(scene.look) for hand in hands]
            teller.show(Snapshot("tasks", done, total, views))
            for hand in hands:
                hand.must_live()
            patience.tick((done, *(view.state for view in views)), _last_words(hands))
        for hand in hands:
            hand.read()
    return scene


def _last_words(hands: list[Hand]) -> str:
    return "".join(f"\n{hand.name}: {hand.last_words()}" for hand in hands)


def _evidence(
    found: sources.Sources, desk: Desk, scene: fates.Scene, plain: Plain, refused: bool
) -> Evidence:
    return Evidence(
        names=[file.name for file in found.files], rows=desk.rows(), tasks=desk.tasks(),
        lost=desk.lost_leases(), plain=plain.rows,
        refusals=[refusal for hand in scene.hands for refusal in hand.refusals],
        killed=scene.victim.pid or "", killed_with=scene.killed_with,
        frozen=scene.sleeper.pid or "", frozen_with=scene.frozen_with,
        unfenced_refused=refused,
    )


def _facts(
    found: sources.Sources, place: Host, desk: Desk, scene: fates.Scene, plain: Plain,
    evidence: Evidence, findings: Findings,
) -> dict[str, Any]:
    began = min(task["leased_at"] for task in evidence.tasks)
    seconds = (max(task["finished_at"] for task in evidence.tasks) - began).total_seconds()
    example = next(iter(scene.frozen_with))
    return {
        "ok": findings.ok,
        "server": {"version": desk.version(), "embedded": place.embedded},
        "python": ".".join(map(str, sys.version_info[:3])),
        "files": len(found.files), "origin": found.origin,
        "tasks": findings.tasks, "rows": findings.rows,
        "stale_writes_refused": evidence.refusals,
        "leases_lost": findings.leases_lost,
        "unfenced_write_refused": evidence.unfenced_refused,
        "workers": [_worker(hand, scene) for hand in scene.hands],
        "seconds": round(seconds, 3), "plain_seconds": round(plain.seconds, 3),
        "tasks_per_second": round(len(evidence.tasks) / max(seconds, 0.001), 1),
        "history": {
            "task_id": example,
            "name": next(task["name"] for task in evidence.tasks if task["task_id"] == example),
            "events": desk.history(example),
        },
        "comparison": findings.comparison,
        "checks": [asdict(check) for check in findings.checks],
    }


def _worker(hand: Hand, scene: fates.Scene) -> dict[str, Any]:
    rows = scene.look.rows.get(hand.pid or "", 0)
    return {"name": hand.name, "pid": hand.pid, "fate": hand.fate, "rows": rows}


def _kept(place: Host, desk: Desk, plan: Plan) -> dict[str, Any]:
    return {
        "url": place.url if place.embedded else None, "topic": desk.topic,
        "folder": str(place.folder) if place.embedded else None,
        "schema": plan.queue, "remove": [str(path) for path in place.leftovers],
    }

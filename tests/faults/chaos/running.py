"""One act, from an empty folder to all that was seen of it."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from sokka_pg.embedded import Binaries
from tests.faults.chaos import effects, keeping, recorder
from tests.faults.chaos.drain import LIMIT_S, drain
from tests.faults.chaos.faults import Fault, fault
from tests.faults.chaos.judging import witness
from tests.faults.chaos.plan import ActPlan
from tests.faults.chaos.scene import Scene, offset_us
from tests.faults.chaos.words import INFO, OK, Act, Bite, Life
from tests.proof.replay import GRANTERS

log = logging.getLogger(__name__)

SERVING_S = 90.0
HEAL_S = 60.0
UNDISTURBED_S = 2.0
"""Some work is still to come when nothing is broken any more."""
LOOK_EVERY_S = 0.5
# A defect may be that the drain never ends: so long is enough to see it.
DEFECT_LIMIT_S = 20.0


async def play(plan: ActPlan, folder: Path, binaries: Binaries, mutant: str = "") -> Act:
    """Play an act. Whatever happens, nothing of it runs on afterwards."""
    scene = Scene(plan, folder, binaries, mutant)
    faults: dict[str, Fault] = {}
    try:
        return await _played(scene, faults)
    finally:
        scene.crew.kill()
        for name, each in faults.items():
            try:
                await each.close()
            except Exception:  # the others, and the servers, still have to go
                log.exception("%s could not be taken down", name)
        # the servers' end waits for processes: not on the loop, which proxies still need
        await _whole(scene.close)


async def _played(scene: Scene, faults: dict[str, Fault]) -> Act:
    plan = scene.plan
    await _whole(scene.raise_servers)
    act = Act(
        plan.name, scene.binaries.version, plan.lease_s, time.monotonic_ns(), 0,
        await offset_us(scene.url()), not_run=dict(plan.not_run),
    )
    for name in plan.faults:
        made = fault(name)
        why = made.possible(scene)
        if why is None:
            faults[name] = made
        else:
            act.not_run[name] = why
    scene.make_roles([role for each in faults.values() for role in each.roles])
    recorder.install(scene.folder / "history", "operator")
    scene.hire()
    await scene.seat(faults)
    scene.crew.start()
    await _serving(scene)
    act.not_run |= await _under_faults(scene, faults)
    act.ended = time.monotonic_ns()
    act.after = await drain(scene, DEFECT_LIMIT_S if scene.mutant else LIMIT_S)
    await asyncio.to_thread(_collect, scene, act)
    for each in faults.values():
        act.losses.extend(getattr(each, "losses", ()))
    act.bites = [
        Bite(name, 0, act.not_run[name]) if name in act.not_run else each.bites(act)
        for name, each in faults.items()
    ]
    keeping.save_act(act, scene.folder)
    return act


async def _whole(work: Any) -> None:
    """In a thread, to its end also when this is cancelled: a server that is half started
    must not be left alone."""
    going = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(going)
    except asyncio.CancelledError:
        await asyncio.wait([going])
        raise


async def _serving(scene: Scene) -> None:
    end = time.monotonic() + SERVING_S
    while scene.crew.serving() < len(scene.crew.workers):
        if time.monotonic() > end:
            raise TimeoutError(
                f"act {scene.name}: not all workers serve after {SERVING_S:.0f} s; see "
                f"{scene.folder / 'logs'}"
            )
        await asyncio.sleep(LOOK_EVERY_S / 5)


async def _at_work(scene: Scene) -> None:
    """Until the producers have begun: they take a while to start."""
    end = time.monotonic() + SERVING_S
    while not scene.load.counts.get("attempted"):
        if time.monotonic() > end:
            raise TimeoutError(f"act {scene.name}: nothing was enqueued; see {scene.folder}/logs")
        await asyncio.sleep(0.1)


async def _under_faults(scene: Scene, faults: dict[str, Fault]) -> dict[str, str]:
    """Producers and faults at once, until the time of the act is over and all is healed.
    Which faults broke down by themselves, and how."""
    broken: dict[str, str] = {}
    watch = asyncio.create_task(scene.watch.run())
    revive = asyncio.create_task(_revive(scene))
    scene.load.start()
    await _at_work(scene)
    until = time.monotonic() + scene.plan.seconds
    fires = {
        asyncio.create_task(each.run(scene, scene.plan.dice(name), until), name=name)
        for name, each in faults.items()
    }
    try:
        await asyncio.sleep(scene.plan.seconds)
        late = (await asyncio.wait(fires, timeout=HEAL_S))[1] if fires else set()
        if late:
            raise TimeoutError(
                f"act {scene.name}: not healed after {HEAL_S:.0f} s: "
                f"{', '.join(sorted(task.get_name() for task in late))}"
            )
        for task in fires:
            if (trouble := task.exception()) is not None:
                (scene.folder / f"{task.get_name()}.txt").write_text(
                    "".join(traceback.format_exception(trouble))
                )
                broken[task.get_name()] = f"broke down: {type(trouble).__name__}: {trouble}"
        await asyncio.sleep(UNDISTURBED_S)
    finally:
        await _ended(fires | {revive})
        await asyncio.to_thread(scene.load.stop)
        await _ended({watch})
    return broken


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _revive(scene: Scene) -> None:
    while True:
        scene.crew.replace_the_dead()
        await asyncio.sleep(LOOK_EVERY_S)


def _collect(scene: Scene, act: Act) -> None:
    """Everything that was seen, from the files and from the two databases."""
    with closing(
        psycopg.connect(scene.primary.url(scene.database), application_name="chaos")
    ) as asking:
        witness.keep(asking, scene.folder / keeping.CHANGES)
    act.changes = witness.kept(scene.folder / keeping.CHANGES)
    act.calls, act.transactions = keeping.read_history(scene.folder / "history")
    act.effects = effects.read(scene.folder / "effects", scene.effects_url)
    act.injections = sorted(scene.injections, key=lambda each: each.began)
    served_s = max(0.1, (act.ended - act.began) / 1e9)
    act.after.log_lines_per_s = {
        name: round(lines / served_s, 3) for name, lines in scene.crew.log_lines().items()
    }
    act.after.purged = [
        change.id for change in act.changes
        if change.source == "finished_tasks" and change.new is None
    ]
    _note_recovery(act)


def _note_recovery(act: Act) -> None:
    """When each worker that was there at the end first asked for tasks again."""
    waiting: dict[str, Life] = {life.worker: life for life in act.after.lives}
    for call in act.calls:
        life = waiting.get(call.pid)
        if (
            life is not None and call.ended is not None and call.outcome == OK
            and call.began > act.after.quiet_at
            and call.function in GRANTERS | {"mark_idle"}
        ):
            life.reserved_after_ns = call.ended
            del waiting[call.pid]


def counts(act: Act) -> dict[str, int]:
    """The size of an act, for a line on the screen."""
    made = sum(1 for each in act.changes if each.source == "tasks" and each.old is None)
    ended = sum(1 for each in act.changes if each.source == "finished_tasks" and each.old is None)
    unknown = sum(1 for call in act.calls if call.outcome == INFO)
    refused = sum(1 for call in act.calls if call.sqlstate.startswith("SK"))
    return {
        "tasks": made, "ended": ended, "calls": len(act.calls), "unanswered": unknown,
        "refused": refused, "changes": len(act.changes), "effects": len(act.effects),
        "unfinished": len(act.after.unfinished),
    }

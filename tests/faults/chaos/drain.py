"""When all faults are over: does everything come to an end by itself, and what is left?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from sokka_pg.errors import SokkaError
from tests.faults.chaos.crew import GRACE_S, LEFT_AFTER_S
from tests.faults.chaos.words import After, Left

if TYPE_CHECKING:
    from tests.faults.chaos.scene import Scene

# Sweeps of the workers, their polls, the longest waits of tasks, and the work itself.
LIMIT_S = 120.0
RECOVERY_S = 20.0
LOOK_EVERY_S = 0.2
_TASK: LiteralString = """
    task_id::text, topic, kind, status, pid, token, attempt, failures, losses, run_at,
    lease_expires_at, waits_for::text, is_join"""
_UNFINISHED: LiteralString = f"select {_TASK} from sokka.tasks order by created_at"
_STUCK: LiteralString = f"""
    select {_TASK} from sokka.tasks
     where not (status = 'starting' and pid is null and token is null
        or status = 'snoozed' and pid is null and token is null
           and (run_at is not null or waits_for is not null or is_join)
        or status = 'running' and pid is not null
           and lease_expires_at < clock_timestamp() + interval '1 minute')"""
_LEASES = "select topic, count(*) from sokka.live_leases group by topic"
_BACKENDS = """
    select application_name, pid, state, left(query, 200) from pg_stat_activity
     where application_name like 'sokka_pg%' and datname = current_database()"""
_LOCKS = """
    select l.pid, l.mode, coalesce(l.relation::regclass::text, l.locktype)
      from pg_locks l join pg_stat_activity a using (pid)
     where a.application_name like 'sokka_pg%' and l.database = (
           select oid from pg_database where datname = current_database())
       and l.granted and a.state = 'idle'"""
_PREPARED = "select gid from pg_prepared_xacts where database = current_database()"
_PRESENT = "select task_id::text from sokka.all_tasks"


async def drain(scene: Scene, limit_s: float = LIMIT_S) -> After:
    """Wait for the end of all tasks, see who serves again, and stop the crew."""
    after = After(quiet_at=time.monotonic_ns(), drain_limit_s=limit_s)
    await _until(lambda: _quiet(scene), RECOVERY_S)
    if await _until(lambda: _finished(scene), limit_s):
        after.drained_at = time.monotonic_ns()
    await _until(lambda: _all_serve(scene), RECOVERY_S)
    after.unfinished = await _asked(scene, _UNFINISHED)
    after.stuck = await _asked(scene, _STUCK)
    after.slots = await _asked(scene, _LEASES)
    after.left += await _locked_still(scene)
    await _dismiss(scene, after)
    after.present = [row["task_id"] for row in await _asked(scene, _PRESENT)]
    after.lives = scene.crew.lives
    after.connections_max = dict(scene.watch.most)
    after.connections_bound = scene.watch.bounds
    after.reconnects = scene.watch.connects
    return after


async def _until(look: Callable[[], Awaitable[bool]], limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with suppress(psycopg.Error, SokkaError):
            if await look():
                return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False


async def _quiet(scene: Scene) -> bool:
    await scene.operators.quiet()
    return True


async def _finished(scene: Scene) -> bool:
    (row,) = await _asked(scene, "select count(*) as open from sokka.tasks")
    return bool(row["open"] == 0)


async def _all_serve(scene: Scene) -> bool:
    return scene.crew.serving() == len(scene.crew.workers)


async def _asked(scene: Scene, query: LiteralString) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(
        scene.url(), autocommit=True, row_factory=dict_row
    ) as asking:
        cursor = await asking.execute(query)
        rows = await cursor.fetchall()
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | bool | str) else str(value)


async def _left(scene: Scene, query: LiteralString, what: str) -> list[Left]:
    rows = await _asked(scene, query)
    return [Left(what, " ".join(str(value) for value in row.values())) for row in rows]


async def _locked_still(scene: Scene) -> list[Left]:
    """Locks and activity are two looks: a session may have begun a call in between. What
    is left stays left."""
    found: list[Left] = []

    async def none() -> bool:
        found[:] = await _left(scene, _LOCKS, "a lock of an idle session")
        return not found

    await _until(none, LEFT_AFTER_S)
    return found


async def _dismiss(scene: Scene, after: After) -> None:
    """Ask all workers to stop, and look for what stays behind."""
    for worker in scene.crew.workers:
        worker.ask_to_stop()
    for worker in scene.crew.workers:
        if not await asyncio.to_thread(worker.wait, GRACE_S + LEFT_AFTER_S):
            after.left.append(Left("a worker that does not stop", worker.name))
    await scene.operators.close()

    # a pooler keeps its own sessions, under the name of whoever used them last
    pooled = {
        worker.application_name for worker in scene.crew.workers if worker.variant == "pooler"
    }

    async def staying() -> list[Left]:
        found = await _left(scene, _BACKENDS, "a session of a worker that has ended")
        return [left for left in found if left.about.partition(" ")[0] not in pooled]

    async def gone() -> bool:
        return not await staying()

    await _until(gone, LEFT_AFTER_S)
    after.left += await staying()
    after.left += await _left(scene, _PREPARED, "a prepared transaction")
    after.left += [
        Left("a process of a worker that has ended", f"{worker.seat.name} {pid}")
        for worker in scene.crew.workers for pid in worker.orphans()
    ]

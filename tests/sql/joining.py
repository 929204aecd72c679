"""Fan-outs as tests need them: made in one line, their children ended in any order."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from tests.sql.calling import Queue, Row
from tests.sql.states import ERROR

FAR = "9998-12-31 00:00:00+00"


def specs(count: int, topic: str = "c", **more: Any) -> Jsonb:
    return Jsonb([{"topic": topic, "data": n} | more for n in range(1, count + 1)])


def proof(lease: Row) -> dict[str, Any]:
    """A lease as the parent of a fan-out."""
    return {"parent_task_id": lease.task_id, "pid": lease.pid, "token": lease.token}


def fan_out(queue: Queue, count: int, *, topic: str = "c", **options: Any) -> UUID:
    """A fan-out with so many candidates; the id of its join."""
    task_id: UUID = queue.one("fan_out", specs=specs(count, topic), **options).task_id
    return task_id


def join(queue: Queue, join_id: UUID) -> Row:
    return queue.one("get_join", task_id=join_id)


def children(queue: Queue, join_id: UUID) -> list[UUID]:
    """All candidates in their order, live and finished."""
    rows = queue.rows(
        "select task_id from sokka.all_tasks where parent_task_id = %s order by candidate",
        (join_id,),
    )
    return [row.task_id for row in rows]


def statuses(queue: Queue, join_id: UUID) -> list[str]:
    """Of each candidate: its status; held, where its join holds it back."""
    rows = queue.rows(
        "select case when status = 'snoozed' and run_at = sokka.until_told() then 'held'"
        " else status end as status from sokka.all_tasks where parent_task_id = %s"
        " order by candidate",
        (join_id,),
    )
    return [row.status for row in rows]


def lease(queue: Queue, task_id: UUID, pid: str = "w1", span: str = "1 hour") -> Row:
    return queue.one("acquire_lease", task_id=task_id, pid=pid, lease=span)


def succeed(queue: Queue, *task_ids: UUID) -> None:
    for task_id in task_ids:
        queue.verb("terminate_task", lease(queue, task_id), result=Jsonb("good"))


def fail(queue: Queue, *task_ids: UUID) -> None:
    for task_id in task_ids:
        queue.verb("fail_task", lease(queue, task_id), error=ERROR)


def sweep_all(queue: Queue) -> None:
    """Sweep until nothing is left for joins to look at."""
    for _ in range(100):
        # A scan of this session begins where the last one stopped, for a second.
        queue.execute("set skpg_hint.sokka = ''")
        queue.one("sweep")
        if not queue.value("select count(*) from sokka.join_inbox"):
            return
    raise AssertionError("the inbox of the joins does not become empty")


def fired(queue: Queue, join_id: UUID) -> int:
    """How often a join has ended, or become ready."""
    return sum(event in ("terminated", "failed") for event in queue.events(join_id))

"""Schedules as the tests put and fire them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from psycopg.types.json import Jsonb

from tests.sql.calling import Queue, Row

LONG_AGO = "2024-01-01T00:00:00+00:00"
FAR = "2999-01-01T00:00:00+00:00"


def specification(**said: Any) -> dict[str, Any]:
    """A schedule that has been due for long."""
    return {
        "schedule": "@every 1h",
        "next_at": LONG_AGO,
        "task": {"topic": "ticks", "data": {"n": 1}},
    } | said


def put(queue: Queue, name: str, overwrite: bool = True, **said: Any) -> Row:
    return queue.one(
        "put_schedule", name=name, spec=Jsonb(specification(**said)), overwrite=overwrite
    )


def schedule(queue: Queue, name: str) -> Any:
    """The schedule as all_schedules shows it; None where there is none."""
    found = queue.call("get_schedule", name=name)
    return found[0] if found else None


def fire_of(due: Row, **said: Any) -> dict[str, Any]:
    """Its tick becomes a task, and the next one is far off, unless something else is said."""
    fire = {
        "schedule_id": str(due.schedule_id),
        "generation": due.generation,
        "due_at": due.due_at.isoformat(),
        "ticks": [due.due_at.isoformat()],
        "next_at": FAR,
    }
    return fire | said


def hours_after(moment: datetime, hours: float) -> str:
    return (moment + timedelta(hours=hours)).isoformat()


def fire(queue: Queue, *fires: dict[str, Any]) -> list[Row]:
    return queue.call("fire_schedules", fires=Jsonb(list(fires)))


def fire_due(queue: Queue, **said: Any) -> list[Row]:
    """Fire what is due now, each in the same way."""
    return fire(queue, *(fire_of(due, **said) for due in queue.call("due_schedules")))


def tasks_of(queue: Queue, name: str) -> list[Row]:
    """The tasks that a schedule made, by their ticks."""
    return queue.rows(
        "select t.*, f.fire_at, f.extra, f.generation"
        " from sokka.fired_ticks f join sokka.all_tasks t using (task_id)"
        " where f.name = %s order by f.fire_at, t.task_id",
        (name,),
    )

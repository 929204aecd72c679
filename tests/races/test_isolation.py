"""Verbs on leases need READ COMMITTED: under an old snapshot a dead lease looks alive."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.races.ordering import Session
from tests.sql import states
from tests.sql.calling import Queue

BATCH = {"pid": "w1", "task_ids": [], "tokens": []}
OTHERS: dict[str, dict[str, Any]] = {
    "reserve_task": {"topic": "t", "pid": "w1"},
    "reserve_tasks": {"topics": ["t"], "pid": "w1", "max_tasks": 1},
    "extend_leases": BATCH,
    "terminate_tasks": BATCH,
    "settle_tasks": BATCH | {"verbs": []},
    "sweep": {},
}
ON_A_TASK: dict[str, dict[str, Any]] = {
    "acquire_lease": {"pid": "w1"},
    "revoke_lease": {"record_ver": 2},
}
PROVEN: dict[str, dict[str, Any]] = {"wait_for_task": {"waits_for": uuid4()}}


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("function", [*states.LEASE_VERBS, *PROVEN, *OTHERS, *ON_A_TASK])
def test_a_verb_on_leases_is_refused_under_an_old_snapshot(
    queue: Queue, opened: Session, function: str, isolation: str
) -> None:
    claim = states.running(queue)
    queue.create("t")
    before = queue.image(claim.task_id)
    if function in OTHERS:
        arguments = OTHERS[function]
    elif function in ON_A_TASK:
        arguments = ON_A_TASK[function] | {"task_id": claim.task_id}
    else:
        arguments = (states.LEASE_VERBS | PROVEN)[function] | claim.arguments()
    opened.execute(f"set transaction isolation level {isolation}")
    found = opened.refused(function, **arguments)
    assert found.sqlstate == "25001"
    assert found.detail == {"isolation": isolation, "expected": {"isolation": "read committed"}}
    assert queue.image(claim.task_id) == before


@pytest.mark.parametrize("isolation", ["read committed", "read uncommitted"])
def test_a_verb_on_leases_works_where_each_statement_sees_the_newest(
    queue: Queue, opened: Session, isolation: str
) -> None:
    lease = queue.leased("t")
    opened.execute(f"set transaction isolation level {isolation}")
    opened.verb("assert_lease", lease)
    opened.verb("terminate_task", lease)
    opened.commit()
    assert queue.row(lease.task_id).status == "terminated"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_reading_and_creating_work_under_an_old_snapshot(
    queue: Queue, opened: Session, isolation: str
) -> None:
    opened.execute(f"set transaction isolation level {isolation}")
    opened.rows("select * from sokka.all_tasks")
    task_id = opened.create("t", unique_key="k", data=Jsonb(1))
    assert opened.call("get_task", task_id=task_id)[0].data == 1
    assert len(opened.call("list_tasks")) == 1
    opened.call("cancel_task", task_id=task_id)
    opened.commit()
    assert queue.row(task_id).status == "failed"

"""Every wait is bounded: a few seconds for a verb, none for a revoke or a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.races.ordering import Session, answer, refused
from tests.sql.calling import Queue, Refusal
from tests.sql.states import ERROR

Sessions = Callable[..., Session]

VERBS: dict[str, dict[str, Any]] = {
    "extend_lease": {},
    "renew_lease": {},
    "report_progress": {"progress": None},
    "save_checkpoint": {"checkpoint": None},
    "record_step": {"name": "s", "value": None},
    "append_stream": {"items": Jsonb([1])},
    "wait_for_task": {"waits_for": uuid4()},
    "assert_lease": {},
    "release_lease": {},
    "terminate_task": {},
    "snooze_task": {"snooze": "1 s"},
    "fail_task": {"error": ERROR},
    "retry_task": {"error": ERROR},
}


def test_verbs_on_a_row_that_another_call_holds_give_up_as_busy(
    queue: Queue, opened: Session, session: Sessions
) -> None:
    """All at once, for each of them waits for its few seconds."""
    lease = queue.leased("t", max_attempts=3)
    opened.rows("select from sokka.tasks where task_id = %s for update", (lease.task_id,))
    before = queue.image(lease.task_id)
    proof = {"task_id": lease.task_id, "pid": lease.pid, "token": lease.token}
    calls = {verb: session().begin(verb, **proof, **given) for verb, given in VERBS.items()}
    calls["cancel_task"] = session().begin("cancel_task", task_id=lease.task_id)
    calls["fan_out"] = session().begin(
        "fan_out", specs=Jsonb([]), parent_task_id=lease.task_id, pid=lease.pid, token=lease.token
    )
    calls["acquire_lease"] = session().begin("acquire_lease", task_id=lease.task_id, pid="w2")
    assert {verb: refused(call) for verb, call in calls.items()} == dict.fromkeys(calls, "55P03")
    assert queue.image(lease.task_id) == before


@pytest.mark.parametrize("lock_timeout", ["100 ms", "1 h"])
def test_the_callers_own_lock_timeout_changes_nothing_of_that(
    queue: Queue, opened: Session, session: Sessions, lock_timeout: str
) -> None:
    lease = queue.leased("t")
    opened.rows("select from sokka.tasks where task_id = %s for update", (lease.task_id,))
    other = session()
    other.execute(f"set lock_timeout = '{lock_timeout}'")
    assert refused(other.begin_verb("extend_lease", lease)) == "55P03"


@pytest.mark.parametrize("function", ["revoke_lease", "settle_tasks", "sweep", "create_task"])
def test_a_worker_that_is_slow_to_fall_asleep_holds_nobody_up_for_long(
    queue: Queue, opened: Session, other: Session, function: str
) -> None:
    """Its mark locks the topic until it commits, and what makes tasks ready asks for that."""
    lease = queue.leased("t", lease="1 ms" if function == "sweep" else "1 hour")
    if function == "sweep":
        queue.until_expired(lease.task_id)
    opened.value("select sokka.mark_idle(array['t'], 'sleeper', '1 minute')")
    other.execute("set statement_timeout = '8 s'")
    arguments: dict[str, dict[str, Any]] = {
        "revoke_lease": {"task_id": lease.task_id, "record_ver": lease.record_ver},
        "settle_tasks": {
            "pid": "w1", "task_ids": [lease.task_id], "tokens": [lease.token],
            "verbs": ["release"],
        },
        "sweep": {},
        "create_task": {"topic": "t"},
    }  # fmt: skip
    found = answer(other.begin(function, **arguments[function]))
    assert not isinstance(found, Refusal) or found.sqlstate == "55P03", found

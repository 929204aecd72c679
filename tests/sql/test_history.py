"""task_history is complete: whatever happens to a task, in order, without gaps."""

from __future__ import annotations

from random import Random

import pytest

from tests.sql.calling import Clock, Queue
from tests.sql.walks import Walk


@pytest.mark.parametrize("seed", range(8))
def test_history_and_counters_are_what_a_model_of_the_contract_says(
    fresh: Queue, clock: Clock, seed: int
) -> None:
    clock.stop()
    random = Random(seed)
    for number in range(12):
        walk = Walk(fresh, clock, random, f"t{number}")
        version = 1
        for _ in range(40):
            if walk.model.finished:
                break
            walk.step()
            version = check(fresh, walk, version)
        else:
            if walk.model.status != "running":
                fresh.one("cancel_task", task_id=walk.task_id)


def check(queue: Queue, walk: Walk, version: int) -> int:
    """Compare the task with its model; its version."""
    model, row = walk.model, queue.row(walk.task_id)
    told = [event[0] for event in model.events]
    assert (row.status, row.attempt, row.failures, row.losses) == (
        model.status, model.attempt, model.failures, model.losses,
    ), told  # fmt: skip
    assert (row.error or {}).get("code") == model.code or not model.finished, told
    assert row.checkpoint == model.checkpoint
    assert row.record_ver >= version
    history = queue.history(walk.task_id)
    assert [event.seq for event in history] == list(range(1, len(history) + 1)), told
    assert [event.event for event in history] == told
    assert [event.at for event in history] == sorted(event.at for event in history)
    for event, (name, pid, token) in zip(history, model.events, strict=True):
        if name != "cancel_requested" and (pid or not model.finished):
            assert (event.pid, event.token) == (pid, token), (name, told)
    revokes = told.count("revoked")
    assert model.starts <= (
        max(model.max_attempts, 1) + model.max_losses * (1 + told.count("snoozed")
        + told.count("retried")) + told.count("snoozed") + told.count("released") + revokes
    ), told  # fmt: skip
    if not model.finished:
        assert row.losses <= model.max_losses
        assert row.failures < max(model.max_attempts, 1)
    return int(row.record_ver)


def test_each_event_tells_what_it_was_about(fresh: Queue) -> None:
    lease = fresh.leased("t", max_attempts=3)
    fresh.verb("snooze_task", lease, snooze="0")
    lease = fresh.reserve("t")
    fresh.verb("retry_task", lease, error={"code": "e1"}, delay="0")
    lease = fresh.reserve("t")
    version = fresh.row(lease.task_id).record_ver
    fresh.one("revoke_lease", task_id=lease.task_id, record_ver=version, reason="stuck")
    lease = fresh.reserve("t")
    fresh.one("cancel_task", task_id=lease.task_id, reason="unwanted")
    fresh.verb("fail_task", lease, error={"code": "e2", "message": "m"})
    details = {event.event: event.detail for event in fresh.history(lease.task_id)}
    assert details["created"] == {"topic": "t", "kind": "default"}
    assert details["snoozed"] == {"seconds": 0}
    assert details["retried"] == {"error": {"code": "e1"}, "failures": 1}
    assert details["revoked"]["reason"] == "stuck"
    assert details["cancel_requested"] == {"reason": "unwanted"}
    assert details["failed"] == {"error": {"code": "e2", "message": "m"}}


def test_a_task_that_just_works_has_its_three_events(fresh: Queue) -> None:
    lease = fresh.leased("t")
    fresh.verb("terminate_task", lease)
    history = fresh.history(lease.task_id)
    assert [(e.seq, e.event, e.pid, e.token, e.attempt) for e in history] == [
        (1, "created", None, None, None),
        (2, "reserved", "w1", lease.token, 1),
        (3, "terminated", "w1", lease.token, 1),
    ]
    assert fresh.value("select count(*) from sokka.past_leases") == 0


def test_a_refused_call_leaves_no_event(fresh: Queue) -> None:
    lease = fresh.leased("t")
    for token in (lease.token - 1, lease.token + 1):
        fresh.refused("terminate_task", task_id=lease.task_id, pid="w1", token=token)
    assert fresh.events(lease.task_id) == ["created", "reserved"]


def test_an_unknown_task_has_no_history(fresh: Queue) -> None:
    assert fresh.rows("select * from sokka.task_history") == []

"""What operators do, what is written down of it, and what they see."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue, Row
from tests.sql.states import ERROR


def acts(queue: Queue) -> list[Row]:
    return queue.rows("select * from sokka.audit_log order by id")


def test_each_act_leaves_one_line_that_says_who_what_and_why(fresh: Queue) -> None:
    actor = fresh.value("select session_user::text")
    lease = fresh.leased("t")
    fresh.one("revoke_lease", task_id=lease.task_id, record_ver=2, reason="stuck")
    fresh.one("cancel_task", task_id=lease.task_id, reason="unwanted")
    new = fresh.one("resubmit_task", task_id=lease.task_id, reason="wanted after all")
    fresh.one("pause_topic", topic="t", reason="flood")
    fresh.one("resume_topic", topic="t", reason="dry again")
    fresh.one("set_topic", topic="t", lease="1 minute", retention="1 day")
    fresh.call("raise_token_epoch", reason="restored")
    found = acts(fresh)
    assert [(act.action, act.task_id, act.topic, act.reason) for act in found] == [
        ("revoke", lease.task_id, "t", "stuck"),
        ("cancel", lease.task_id, "t", "unwanted"),
        ("resubmit", lease.task_id, "t", "wanted after all"),
        ("pause", None, "t", "flood"),
        ("resume", None, "t", "dry again"),
        ("set", None, "t", None),
        ("raise_token_epoch", None, None, "restored"),
    ]
    assert {act.actor for act in found} == {actor}
    assert [act.at for act in found] == sorted(act.at for act in found)
    assert found[0].detail == {"pid": "w1", "token": lease.token, "status": "running"}
    assert found[2].detail == {"new_task_id": str(new.task_id)}


def test_the_actor_is_who_logged_in_whatever_role_was_set(fresh: Queue) -> None:
    fresh.execute("set role pg_monitor")
    fresh.execute("reset role")
    task_id = fresh.create("t")
    name = f"actor_{uuid4().hex[:12]}"
    fresh.execute(f"create role {name}")
    fresh.execute(f"grant usage on schema sokka to {name}")
    fresh.execute(f"grant execute on function sokka.cancel_task to {name}")
    fresh.execute(f"set role {name}")
    fresh.one("cancel_task", task_id=task_id)
    fresh.execute("reset role")
    fresh.execute(f"drop owned by {name}")
    fresh.execute(f"drop role {name}")
    assert acts(fresh)[0].actor == fresh.value("select session_user::text")


def test_a_refused_act_and_one_that_rolled_back_leave_no_line(fresh: Queue) -> None:
    lease = fresh.leased("t")
    fresh.refused("revoke_lease", task_id=lease.task_id, record_ver=1)
    fresh.refused("cancel_task", task_id=uuid4())
    fresh.refused("resubmit_task", task_id=lease.task_id)
    with fresh.connection.transaction(force_rollback=True):
        fresh.one("pause_topic", topic="t")
    assert acts(fresh) == []


def test_pausing_twice_keeps_the_first_time(fresh: Queue, clock: Clock) -> None:
    clock.stop()
    first = fresh.one("pause_topic", topic="t").paused_at
    clock.advance("1 minute")
    assert fresh.one("pause_topic", topic="t").paused_at == first
    assert vars(fresh.one("resume_topic", topic="t")) == {"topic": "t", "paused_at": None}
    assert fresh.one("resume_topic", topic="never paused").paused_at is None


def test_a_paused_topics_task_may_be_acquired_by_name(queue: Queue, topic: str) -> None:
    task_id = queue.create(topic)
    queue.one("pause_topic", topic=topic)
    assert queue.one("acquire_lease", task_id=task_id, pid="w1").task_id == task_id


@pytest.mark.parametrize("own_group", [True, False])
def test_a_resubmitted_task_is_like_the_old_one_with_its_attempts_ahead(
    queue: Queue, topic: str, own_group: bool
) -> None:
    options: dict[str, Any] = {
        "data": {"n": 1}, "kind": "k", "sub_topic": "s", "priority": 2, "max_attempts": 3,
        "retry": {"initial": 1, "max": 9}, "timeout": timedelta(seconds=9),
        "unique_key": "key", "headers": {"h": "v"}, "max_losses": 2,
    }  # fmt: skip
    group = {} if own_group else {"task_group_id": uuid4()}
    old = queue.leased(topic, **options, **group)
    queue.verb("save_checkpoint", old, checkpoint=Jsonb(3))
    queue.verb("fail_task", old, error=ERROR)
    before = queue.image(old.task_id)
    new = queue.one("resubmit_task", task_id=old.task_id)
    row = queue.row(new.task_id)
    for name in set(options) - {"retry"}:
        assert getattr(row, name) == options[name], name
    assert row.retry["max"] == 9
    assert (row.status, row.attempt, row.failures, row.losses) == ("starting", 0, 0, 0)
    assert (row.resubmit_of, row.checkpoint, row.error) == (old.task_id, None, None)
    assert row.task_group_id == (new.task_id if own_group else group["task_group_id"])
    assert new.created
    after = queue.image(old.task_id)
    assert after | {"acts": 0} == before | {"acts": 0}
    assert queue.history(new.task_id)[0].detail["resubmit_of"] == str(old.task_id)


def test_a_resubmit_meets_the_unique_key_of_another_and_says_so(queue: Queue, topic: str) -> None:
    old = queue.leased(topic, unique_key="k")
    queue.verb("terminate_task", old)
    holder = queue.create(topic, unique_key="k")
    before = queue.image(old.task_id)
    found = queue.refused("resubmit_task", task_id=old.task_id)
    assert (found.sqlstate, found.detail["task_id"]) == ("SK012", str(holder))
    assert queue.image(old.task_id) == before


def test_a_large_payload_is_resubmitted_with_its_task(queue: Queue, topic: str) -> None:
    data = [str(uuid4()) for _ in range(300)]
    old = queue.leased(topic, data=Jsonb(data))
    queue.verb("terminate_task", old)
    new = queue.one("resubmit_task", task_id=old.task_id)
    assert new.data == data
    assert queue.reserve(topic).data == data


def test_topic_stats_count_the_live_and_show_what_is_set(fresh: Queue, clock: Clock) -> None:
    now = clock.stop()
    fresh.create("a")
    clock.advance("1 s")
    fresh.create("a")
    lease = fresh.leased("b")
    fresh.verb("snooze_task", fresh.leased("a", priority=0), snooze="1 minute")
    states.terminated(fresh)
    fresh.one("pause_topic", topic="c")
    fresh.one("set_topic", topic="b", lease="1 minute", retention="2 days")
    found = {row.topic: row for row in fresh.rows("select * from sokka.topic_stats")}
    assert set(found) == {"a", "b", "c"}
    a, b, c = found["a"], found["b"], found["c"]
    assert (a.starting, a.snoozed, a.running) == (2, 1, 0)
    assert a.oldest_ready_at == now
    assert a.next_due_at == now + timedelta(seconds=61)
    assert (b.running, b.oldest_lease_at) == (1, lease.leased_at)
    assert (b.lease, b.retention) == (timedelta(minutes=1), timedelta(days=2))
    assert (c.starting, c.paused_at is not None, a.paused_at) == (0, True, None)


def test_live_leases_are_those_of_running_tasks(fresh: Queue) -> None:
    lease = fresh.leased("t", kind="k")
    fresh.create("t")
    states.snoozed(fresh)
    (found,) = fresh.rows("select * from sokka.live_leases")
    assert vars(found) == {name: getattr(lease, name) for name in vars(found)}


CANCELLING: dict[str, dict[str, Any]] = {
    "release_lease": {},
    "snooze_task": {"snooze": "1 hour"},
    "retry_task": {"error": {"code": "boom"}, "delay": "1 hour"},
}


@pytest.mark.parametrize("verb", CANCELLING)
def test_giving_a_task_back_with_a_cancel_request_standing_ends_it(
    fresh: Queue, verb: str
) -> None:
    lease = fresh.leased("t", max_attempts=9)
    asked = fresh.one("cancel_task", task_id=lease.task_id, reason="enough")
    assert (asked.status, asked.outcome) == ("running", "requested")
    again = fresh.one("cancel_task", task_id=lease.task_id, reason="again")
    assert (again.outcome, again.record_ver) == ("already_requested", asked.record_ver)
    assert fresh.verb("extend_lease", lease).cancel_requested is True
    assert fresh.verb("assert_lease", lease).cancel_requested is True
    answer = fresh.verb(verb, lease, **CANCELLING[verb])
    row = fresh.row(lease.task_id)
    assert (answer.status, answer.record_ver) == ("failed", row.record_ver)
    assert (row.error["code"], row.error["reason"]) == ("cancelled", "enough")
    assert (row.pid, row.token) == ("w1", lease.token)
    assert (row.cancel_reason, row.cancel_requested_at is not None) == ("enough", True)
    assert fresh.events(lease.task_id) == ["created", "reserved", "cancel_requested", "failed"]


@pytest.mark.parametrize("how", ["expiry", "revoke"])
def test_losing_a_task_with_a_cancel_request_standing_ends_it(
    fresh: Queue, clock: Clock, how: str
) -> None:
    clock.stop()
    lease = fresh.leased("t", lease="1 s")
    fresh.one("cancel_task", task_id=lease.task_id)
    found = fresh.refused("acquire_lease", task_id=lease.task_id, pid="w1")
    assert (found.sqlstate, found.detail["error_code"]) == ("SK002", "cancelled")
    if how == "expiry":
        clock.advance("1 s")
        assert fresh.one("sweep").failed_lost == 1
    else:
        version = fresh.row(lease.task_id).record_ver
        answer = fresh.one("revoke_lease", task_id=lease.task_id, record_ver=version)
        assert answer.status == "failed"
    row = fresh.row(lease.task_id)
    assert (row.status, row.error["code"]) == ("failed", "cancelled")
    assert row.losses == (1 if how == "expiry" else 0)


@pytest.mark.parametrize("verb", ["terminate_task", "fail_task"])
def test_the_owners_own_end_wins_over_a_cancel_request(queue: Queue, topic: str, verb: str) -> None:
    lease = queue.leased(topic)
    queue.one("cancel_task", task_id=lease.task_id)
    queue.verb(verb, lease, **({"error": ERROR} if verb == "fail_task" else {}))
    row = queue.row(lease.task_id)
    assert row.status == ("failed" if verb == "fail_task" else "terminated")
    assert row.error == (ERROR if verb == "fail_task" else None)

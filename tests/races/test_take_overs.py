"""Two who want the same task: one wins, the other is told, nothing is done twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.races.ordering import Session, accepted, answer, refused
from tests.sql.calling import Clock, Queue, Row
from tests.sql.states import ERROR

Sessions = Callable[..., Session]


def lost(queue: Queue, clock: Clock, topic: str = "t") -> Row:
    """A lease whose time is over."""
    lease = queue.leased(topic, lease="1 s")
    clock.advance("1 s")
    return lease


ENDS: dict[str, dict[str, Any]] = {
    "terminate_task": {"result": Jsonb("A")},
    "fail_task": {"error": ERROR},
    "retry_task": {"error": ERROR},
    "snooze_task": {"snooze": "1 hour"},
    "release_lease": {},
}
KEEPS: dict[str, dict[str, Any]] = {
    "extend_lease": {},
    "report_progress": {"progress": Jsonb(1)},
    "save_checkpoint": {"checkpoint": Jsonb(1)},
    "record_step": {"name": "s", "value": None},
    "append_stream": {"items": Jsonb([1])},
    "assert_lease": {},
}


@pytest.mark.parametrize("verb", [*ENDS, *KEEPS])
def test_who_waited_for_a_revoke_is_judged_by_what_it_left(
    queue: Queue, opened: Session, other: Session, verb: str
) -> None:
    lease = queue.leased("t")
    opened.call("revoke_lease", task_id=lease.task_id, record_ver=lease.record_ver)
    call = other.begin_verb(verb, lease, **(ENDS | KEEPS)[verb])
    other.blocked_by(opened)
    opened.commit()
    before = queue.image(lease.task_id)
    assert refused(call) == "SK006"
    assert queue.image(lease.task_id) == before


@pytest.mark.parametrize("verb", [*ENDS, *KEEPS])
def test_who_waited_for_a_finish_is_told_that_it_is_done(
    queue: Queue, opened: Session, other: Session, verb: str
) -> None:
    lease = queue.leased("t")
    opened.verb("terminate_task", lease, result=Jsonb("B"))
    call = other.begin_verb(verb, lease, **(ENDS | KEEPS)[verb])
    other.blocked_by(opened)
    opened.commit()
    assert refused(call) == "SK002"
    assert queue.row(lease.task_id).result == "B"


@pytest.mark.parametrize("verb", [*ENDS, *KEEPS])
def test_who_waited_until_its_lease_was_over_is_told_so(
    queue: Queue, opened: Session, other: Session, clock: Clock, verb: str
) -> None:
    """The clock is read after the wait: read before, it revives a dead lease."""
    clock.stop()
    lease = queue.leased("t", lease="1 s")
    strength = "for update" if verb == "assert_lease" else "for no key update"
    opened.rows(f"select from sokka.tasks where task_id = %s {strength}", (lease.task_id,))
    call = other.begin_verb(verb, lease, **(ENDS | KEEPS)[verb])
    other.blocked_by(opened)
    clock.advance("1 s")
    opened.commit()
    before = queue.image(lease.task_id)
    assert refused(call) == "SK004"
    assert queue.image(lease.task_id) == before


def test_who_waited_for_a_new_grant_is_told_that_its_token_is_old(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    lease = lost(queue, clock)
    (granted,) = opened.call("acquire_lease", task_id=lease.task_id, pid="w1", lease="1 hour")
    calls = other.begin_verb("terminate_task", lease)
    other.blocked_by(opened)
    opened.commit()
    assert refused(calls) == "SK005"
    assert queue.row(lease.task_id).token == granted.token > lease.token


def test_of_two_who_acquire_one_gets_it(
    queue: Queue, opened: Session, other: Session
) -> None:
    task_id = queue.create("t")
    opened.call("acquire_lease", task_id=task_id, pid="w1", lease="1 hour")
    call = other.begin("acquire_lease", task_id=task_id, pid="w2", lease="1 hour")
    other.blocked_by(opened)
    opened.commit()
    assert refused(call) == "SK009"
    assert queue.row(task_id).attempt == 1


def test_a_reserve_passes_by_what_another_is_taking(
    queue: Queue, opened: Session, other: Session
) -> None:
    first, second = queue.create("t"), queue.create("t")
    (taken,) = opened.call("reserve_task", topic="t", pid="w1", lease="1 hour")
    assert accepted(other.begin("reserve_task", topic="t", pid="w2")).task_id == second
    assert answer(other.begin("reserve_task", topic="t", pid="w2")) == []
    opened.commit()
    assert taken.task_id == first


def test_a_sweep_leaves_alone_what_another_is_taking_back(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    lease = lost(queue, clock)
    (first,) = opened.call("sweep")
    second = accepted(other.begin("sweep"))
    assert (first.taken_back, second.taken_back, second.woken) == (1, 0, 0)
    assert second.next_due_at is not None
    opened.commit()
    row = queue.row(lease.task_id)
    assert (row.losses, row.status) == (1, "starting")
    third = accepted(other.begin("sweep"))
    assert third.taken_back == 0


def test_a_sweep_passes_by_a_task_that_is_being_finished(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    """The lease runs out between the owner's accepted end and its commit."""
    clock.stop()
    lease = queue.leased("t", lease="1 s")
    rest = queue.leased("t", lease="1 s")
    opened.verb("terminate_task", lease, result=Jsonb("B"))
    clock.advance("1 s")
    swept = accepted(other.begin("sweep"))
    assert (swept.taken_back, swept.failed_lost) == (1, 0)
    opened.commit()
    assert accepted(other.begin("sweep")).taken_back == 0
    row = queue.row(lease.task_id)
    assert (row.status, row.result, row.losses) == ("terminated", "B", 0)
    assert queue.events(lease.task_id) == ["created", "reserved", "terminated"]
    assert queue.row(rest.task_id).status == "starting"


def test_a_sweep_acts_on_the_row_it_locked_not_on_the_one_it_read(
    queue: Queue, session: Sessions, clock: Clock
) -> None:
    """Held up between its look and its act, while the task passes on to a new owner."""
    clock.stop()
    leases = [queue.leased("t", lease="1 s") for _ in range(30)]
    clock.advance("1 s")
    # The sweep stops at the first task of its batch, in the history that it writes.
    # It locks its batch in portions; the last task is not in the first of them.
    first, *_, second = sorted(leases, key=lambda lease: lease.task_id)
    gate = session(autocommit=False)
    gate.value("select pg_advisory_xact_lock(7)")
    queue.execute(
        "create function public.stop() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock_shared(7); return new; end $$"
    )
    queue.execute(
        "create trigger stop before insert on sokka.past_leases for each row"
        f" when (new.task_id = '{first.task_id}' and new.pid = 'w1')"
        " execute function public.stop()"
    )
    sweeper = session()
    sweep = sweeper.begin("sweep")
    sweeper.blocked_by(gate)
    (taken,) = queue.call("acquire_lease", task_id=second.task_id, pid="w2", lease="1 hour")
    queue.verb("terminate_task", taken, result=Jsonb("B"))
    finished = queue.image(second.task_id)
    gate.commit()
    swept = accepted(sweep)
    assert (swept.taken_back, swept.failed_lost) == (29, 0)
    assert queue.image(second.task_id) == finished
    assert queue.row(first.task_id).status == "starting"


def test_a_cancel_and_the_owners_end_agree_on_one_end(
    queue: Queue, opened: Session, other: Session
) -> None:
    lease = queue.leased("t")
    opened.verb("terminate_task", lease, result=Jsonb("B"))
    call = other.begin("cancel_task", task_id=lease.task_id)
    other.blocked_by(opened)
    opened.commit()
    assert accepted(call).outcome == "already_done"
    assert queue.row(lease.task_id).result == "B"


@pytest.mark.parametrize("verb", ENDS)
def test_a_cancel_request_made_just_before_an_end_is_seen_by_it(
    queue: Queue, opened: Session, other: Session, verb: str
) -> None:
    lease = queue.leased("t", max_attempts=3)
    opened.call("cancel_task", task_id=lease.task_id, reason="stop")
    call = other.begin_verb(verb, lease, **ENDS[verb])
    other.blocked_by(opened)
    opened.commit()
    accepted(call)
    row = queue.row(lease.task_id)
    own = {"terminate_task": ("terminated", None), "fail_task": ("failed", "boom")}
    status, code = own.get(verb, ("failed", "cancelled"))
    assert (row.status, (row.error or {}).get("code")) == (status, code)


def test_a_waiting_task_is_either_cancelled_or_reserved(
    queue: Queue, opened: Session, other: Session
) -> None:
    task_id = queue.create("t")
    opened.call("reserve_task", topic="t", pid="w1", lease="1 hour")
    call = other.begin("cancel_task", task_id=task_id)
    other.blocked_by(opened)
    opened.commit()
    assert accepted(call).outcome == "requested"
    again = queue.create("t")
    opened.call("cancel_task", task_id=again)
    assert answer(other.begin("reserve_task", topic="t", pid="w1")) == []
    opened.commit()
    assert queue.row(again).status == "failed"


@pytest.mark.parametrize("function", ["extend_leases", "terminate_tasks"])
def test_a_heartbeat_and_a_finishing_batch_do_not_wait_for_each_other(
    queue: Queue, opened: Session, other: Session, function: str
) -> None:
    lease = queue.leased("t")
    batch = {"pid": "w1", "task_ids": [lease.task_id], "tokens": [lease.token]}
    elder = "terminate_tasks" if function == "extend_leases" else "extend_leases"
    opened.call(elder, **batch)
    assert accepted(other.begin(function, **batch)).verdict == "55P03"
    opened.commit()
    last = accepted(other.begin(function, **batch))
    assert last.verdict == ("SK002" if function == "extend_leases" else "ok")


def test_two_batches_over_the_same_tasks_in_any_order_never_deadlock(
    queue: Queue, session: Sessions
) -> None:
    workers = [session() for _ in range(3)]
    for _ in range(10):
        queue.call("create_tasks", specs=Jsonb([{"topic": "t"}] * 40))
        leases = queue.call("reserve_tasks", topics=["t"], pid="w1", max_tasks=40)
        orders = [leases, leases[::-1], sorted(leases, key=lambda lease: hash(lease.token))]
        calls = [
            worker.begin(
                "terminate_tasks", pid="w1", task_ids=[lease.task_id for lease in order],
                tokens=[lease.token for lease in order],
            )
            for worker, order in zip(workers, orders, strict=True)
        ]  # fmt: skip
        verdicts = [row.verdict for call in calls for row in answer(call)]
        assert verdicts.count("ok") == 40
        assert set(verdicts) <= {"ok", "SK002", "55P03"}

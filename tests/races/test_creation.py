"""Creating at once: the same id, the same key, and the end of who holds it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.races.ordering import Session, accepted, answer, refused
from tests.sql.calling import Queue, Refusal

Sessions = Callable[..., Session]


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_of_two_who_create_the_same_id_the_second_waits_for_the_first(
    queue: Queue, opened: Session, other: Session, commit: bool
) -> None:
    task_id = uuid4()
    opened.create("t", task_id=task_id)
    call = other.begin("create_task", topic="elsewhere", task_id=task_id)
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    if commit:
        assert refused(call) == "SK008"
    else:
        assert accepted(call).created
    assert queue.row(task_id).topic == ("t" if commit else "elsewhere")


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_of_two_who_create_the_same_key_the_second_gets_the_firsts_task(
    queue: Queue, opened: Session, other: Session, commit: bool
) -> None:
    first = opened.create("t", unique_key="k")
    call = other.begin("create_task", topic="t", unique_key="k")
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    row = accepted(call)
    assert row.created is not commit
    assert (row.task_id == first) is commit
    assert queue.value("select count(*) from sokka.tasks where unique_key = 'k'") == 1


def test_a_key_whose_holder_is_being_finished_is_free_when_that_commits(
    queue: Queue, opened: Session, other: Session
) -> None:
    lease = queue.leased("t", unique_key="k")
    opened.verb("terminate_task", lease)
    call = other.begin("create_task", topic="t", unique_key="k", on_conflict="error")
    other.blocked_by(opened)
    opened.commit()
    row = accepted(call)
    assert row.created
    assert row.task_id != lease.task_id


def test_a_key_whose_holder_is_not_finished_after_all_stays_taken(
    queue: Queue, opened: Session, other: Session
) -> None:
    lease = queue.leased("t", unique_key="k")
    opened.verb("terminate_task", lease)
    call = other.begin("create_task", topic="t", unique_key="k")
    other.blocked_by(opened)
    opened.rollback()
    row = accepted(call)
    assert (row.created, row.task_id) == (False, lease.task_id)


def test_an_id_is_refused_while_its_task_is_being_finished(
    queue: Queue, opened: Session, other: Session
) -> None:
    """The id was made here, so that only the task itself stands in the way."""
    lease = queue.leased("t")
    opened.verb("terminate_task", lease)
    call = other.begin("create_task", topic="t", task_id=lease.task_id)
    other.blocked_by(opened)
    opened.commit()
    assert refused(call) == "SK008"
    assert queue.value("select count(*) from sokka.all_tasks") == 1


KEYS = [chr(number) for number in range(ord("a"), ord("z") + 1)]


def test_bulk_calls_with_the_same_keys_in_any_order_never_deadlock(
    queue: Queue, session: Sessions
) -> None:
    workers = [session() for _ in range(3)]
    for round_number in range(25):
        topic = f"t{round_number}"
        calls = [
            worker.begin(
                "create_tasks",
                specs=Jsonb([{"topic": topic, "unique_key": key} for key in keys]),
            )
            for worker, keys in zip(
                workers, [KEYS, KEYS[::-1], KEYS[13:] + KEYS[:13]], strict=True
            )
        ]
        answers = [answer(call) for call in calls]
        assert not [found for found in answers if isinstance(found, Refusal)]
        rows = [row for found in answers for row in found]
        assert sum(row.created for row in rows) == len(KEYS)
        assert len({row.task_id for row in rows}) == len(KEYS)


def test_a_bulk_call_waits_for_the_first_key_in_order_and_holds_no_later_one(
    queue: Queue, opened: Session, session: Sessions
) -> None:
    opened.create("t", unique_key="a")
    bulk, single = session(), session()
    specs = [{"topic": "t", "unique_key": key} for key in ("b", "a")]
    call = bulk.begin("create_tasks", specs=Jsonb(specs))
    bulk.blocked_by(opened)
    assert accepted(single.begin("create_task", topic="t", unique_key="b")).created
    opened.commit()
    assert [row.created for row in answer(call)] == [False, False]


def test_bulk_calls_with_the_same_ids_in_any_order_never_deadlock(
    queue: Queue, session: Sessions
) -> None:
    workers = [session() for _ in range(3)]
    for _ in range(15):
        ids = [str(uuid4()) for _ in range(30)]
        calls = [
            worker.begin("create_tasks", specs=Jsonb([{"topic": "t", "task_id": i} for i in order]))
            for worker, order in zip(workers, [ids, ids[::-1], sorted(ids)], strict=True)
        ]
        answers = [answer(call) for call in calls]
        refusals = [found for found in answers if isinstance(found, Refusal)]
        assert [found.sqlstate for found in refusals] == ["SK008", "SK008"]


def test_creating_waits_a_few_seconds_at_most(
    queue: Queue, opened: Session, other: Session
) -> None:
    opened.create("t", unique_key="k")
    assert refused(other.begin("create_task", topic="t", unique_key="k")) == "55P03"


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_many_create_at_once_under_any_isolation(
    queue: Queue, session: Sessions, isolation: str
) -> None:
    workers = [session() for _ in range(4)]
    for worker in workers:
        worker.execute(f"set default_transaction_isolation = '{isolation}'")
    calls = [
        worker.begin_act(
            lambda worker=worker: [worker.create("t", task_id=uuid4()) for _ in range(25)]
        )
        for worker in workers
    ]
    # A serializable transaction may have to be repeated; none may be half done.
    made = [found for call in calls if isinstance(found := answer(call), list)]
    failed = [found for call in calls if isinstance(found := answer(call), Refusal)]
    assert {found.sqlstate for found in failed} <= {"40001"}
    assert made
    assert queue.value("select count(*) from sokka.tasks") >= 25 * len(made)

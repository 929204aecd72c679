"""When the connection breaks after a statement took effect and before its answer came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from sokka_pg.errors import DatabaseUnavailable, TaskAlreadyExists, WrongOwner
from sokka_pg.model import DueSchedule, ScheduleFire, Status
from sokka_pg.store import PgTaskStore
from tests.contract.callers import AsyncCaller, SyncCaller
from tests.contract.proxy import LossyProxy

Lossy = SyncCaller | AsyncCaller
Row = Callable[[UUID], dict[str, Any]]
SCHEDULE: dict[str, Any] = {
    "schedule": "once",
    "next_at": datetime(2024, 1, 1, tzinfo=UTC),
    "task": {"topic": "ticks"},
}


@pytest.fixture
def proxy(db: str) -> Iterator[LossyProxy]:
    found = LossyProxy(db)
    yield found
    found.close()


@pytest.fixture(params=[SyncCaller, AsyncCaller], ids=["sync", "async"])
def lossy(request: pytest.FixtureRequest, proxy: LossyProxy) -> Iterator[Lossy]:
    """A store whose answers can be lost, already connected."""
    found = request.param(proxy.url)
    found("task", uuid4())
    yield found
    found.close()


@pytest.fixture
def leased(store: PgTaskStore) -> Any:
    store.create_task("t", {"n": 1})
    return store.reserve_task("t", "w1", 60)


def test_a_task_with_an_id_is_created_once_and_the_caller_hears_of_it(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore
) -> None:
    task_id = uuid4()
    proxy.lose_next_answer()
    created = lossy("create_task", "t", {"n": 1}, task_id=task_id)
    assert proxy.lost == 1
    assert (created.task_id, created.created) == (task_id, True)
    assert len(store.list_tasks({"topic": "t"}).items) == 1
    with pytest.raises(TaskAlreadyExists):
        lossy("create_task", "t", {"n": 1}, task_id=task_id)


def test_a_task_without_an_id_is_not_created_twice_and_the_doubt_is_told(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore
) -> None:
    proxy.lose_next_answer()
    with pytest.raises(DatabaseUnavailable) as lost:
        lossy("create_task", "t", {"n": 1})
    assert lost.value.detail["sent"] is True
    assert len(store.list_tasks({"topic": "t"}).items) == 1


@pytest.mark.parametrize(
    ("verb", "options", "status"),
    [("terminate", {"result": 1}, Status.TERMINATED), ("fail", {"error": "x"}, Status.FAILED)],
)
def test_an_end_that_was_not_heard_of_is_known_as_ones_own(
    lossy: Lossy, proxy: LossyProxy, leased: Any, row: Row, verb: str, options: Any, status: Status
) -> None:
    proxy.lose_next_answer()
    outcome = lossy(verb, leased, **options)
    assert proxy.lost == 1
    assert outcome.status == status
    assert outcome.record_ver == row(leased.task_id)["record_ver"]


def test_an_extension_is_repeated(lossy: Lossy, proxy: LossyProxy, leased: Any) -> None:
    proxy.lose_next_answer()
    assert lossy("extend_lease", leased, duration=120).lease_expires_at > leased.lease_expires_at
    assert proxy.lost == 1


@pytest.mark.parametrize("room", [3, 2])
def test_items_are_appended_once_though_the_answer_was_lost(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore, leased: Any, room: int
) -> None:
    store.open_stream(leased.task_id, max_items=4)
    store.append_stream(leased, items=["before"] * (4 - room))
    proxy.lose_next_answer()
    appended = lossy("append_stream", leased, items=["a", "b", "c"], after=4 - room)
    assert proxy.lost == 1
    assert (appended.accepted, appended.last_seq, appended.free_items) == (room, 4, 0)
    items = [item.item for item in store.read_stream(leased.task_id, 4 - room)]
    assert items == ["a", "b", "c"][:room]


def test_items_of_which_the_caller_did_not_say_where_they_go_are_not_appended_again(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore, leased: Any
) -> None:
    proxy.lose_next_answer()
    with pytest.raises(DatabaseUnavailable):
        lossy("append_stream", leased, items=["a"])
    assert len(store.read_stream(leased.task_id)) == 1


def test_a_fan_out_with_an_id_is_repeated(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore, leased: Any
) -> None:
    task_id = uuid4()
    proxy.lose_next_answer()
    made = lossy("fan_out", [{"topic": "u"}] * 2, task_id=task_id, parent=leased)
    assert proxy.lost == 1
    assert (made.task_id, made.total) == (task_id, 2)
    assert store.topics("u")[0].starting == 2


def test_a_step_is_recorded_once_and_its_value_is_told(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore, leased: Any
) -> None:
    proxy.lose_next_answer()
    assert lossy("record_step", leased, name="pay", value=7).value == 7
    assert proxy.lost == 1
    assert [step.value for step in store.steps(leased.task_id)] == [7]


def test_a_released_lock_is_known_by_its_end(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore
) -> None:
    lock = store.try_lock("k", "a", 60)
    assert lock is not None
    proxy.lose_next_answer()
    assert lossy("release_lock", "k", "a", lock.token) is None
    assert proxy.lost == 1
    assert store.try_lock("k", "b", 60) is not None
    with pytest.raises(WrongOwner):
        lossy("release_lock", "k", "a", lock.token)


def test_a_lock_is_renewed_though_the_answer_was_lost(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore
) -> None:
    lock = store.try_lock("k", "a", 60)
    assert lock is not None
    proxy.lose_next_answer()
    assert lossy("renew_lock", "k", "a", lock.token, 120) > lock.lock_expires_at
    assert proxy.lost == 1


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("try_lock", ("k", "a", 60)),
        ("put_schedule", ("s", {**SCHEDULE, "schedule": "another"})),
        ("trigger_schedule", ("s",)),
        ("delete_schedule", ("s",)),
    ],
)
def test_an_act_that_could_be_done_twice_is_not_repeated(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore, verb: str, arguments: tuple[Any, ...]
) -> None:
    store.put_schedule("s", SCHEDULE)
    proxy.lose_next_answer()
    with pytest.raises(DatabaseUnavailable) as lost:
        lossy(verb, *arguments)
    assert lost.value.detail["sent"] is True
    assert proxy.lost == 1


def test_ticks_that_fired_unheard_do_not_fire_again(
    proxy: LossyProxy, store: PgTaskStore
) -> None:
    store.put_schedule("s", SCHEDULE)

    def plan(due: list[DueSchedule]) -> list[ScheduleFire]:
        return [
            ScheduleFire(each.schedule_id, each.generation, each.due_at, [each.due_at])
            for each in due
        ]

    with PgTaskStore(proxy.url) as lossy:
        lossy.next_schedule_at()

        def plan_and_break(due: list[DueSchedule]) -> list[ScheduleFire]:
            # The answer to fire_schedules comes through, that to the commit does not.
            proxy.lose_answer_after(1)
            return plan(due)

        with pytest.raises(DatabaseUnavailable):
            lossy.fire_due(plan_and_break)
        assert proxy.lost == 1
        assert lossy.fire_due(plan) == []
    assert len(store.list_tasks({"topic": "ticks"}).items) == 1


def test_a_snooze_is_not_repeated(lossy: Lossy, proxy: LossyProxy, leased: Any, row: Row) -> None:
    proxy.lose_next_answer()
    with pytest.raises(DatabaseUnavailable):
        lossy("snooze", leased, delay=60)
    assert row(leased.task_id)["status"] == "snoozed"


def test_what_somebody_else_did_meanwhile_is_no_success_of_ours(
    lossy: Lossy, proxy: LossyProxy, store: PgTaskStore, leased: Any, row: Row
) -> None:
    store.revoke_lease(leased.task_id, row(leased.task_id)["record_ver"])
    other = store.reserve_task("t", "w2", 60)
    assert other is not None
    proxy.lose_next_answer()
    with pytest.raises(WrongOwner):
        lossy("terminate", leased)
    assert row(leased.task_id)["status"] == "running"


def test_a_commit_that_was_not_heard_of_is_known_by_the_end_of_its_task(
    proxy: LossyProxy, leased: Any, row: Row
) -> None:
    with PgTaskStore(proxy.url) as lossy, lossy.transaction(leased, terminate=True) as fenced:
        fenced.connection.execute("create table effects (n int)")
        # The fence's answers to come: to the end of the task, and to the commit.
        fenced.connection.execute("insert into effects values (1)")
        proxy.lose_answer_after(1)
    assert proxy.lost == 1
    assert row(leased.task_id)["status"] == "terminated"


def test_an_end_that_was_not_committed_is_not_taken_for_one(
    proxy: LossyProxy, leased: Any, row: Row
) -> None:
    with (
        PgTaskStore(proxy.url) as lossy,
        pytest.raises(DatabaseUnavailable),
        lossy.transaction(leased, terminate=True),
    ):
        proxy.lose_answer_after(0)
    assert row(leased.task_id)["status"] == "running"

"""Watching: who waits for news of a task is told, and nobody else costs anything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql.calling import Clock, Queue
from tests.sql.joining import children, fail, fan_out, succeed, sweep_all
from tests.sql.test_notifications import heard

Another = Callable[..., Queue]


@pytest.fixture
def listener(another: Another) -> Iterator[Queue]:
    found = another()
    found.execute("listen sokka")
    yield found


def watch(queue: Queue, *task_ids: UUID, watcher: str = "me", span: str = "1 minute") -> int:
    marked: int = queue.value(
        "select sokka.watch_tasks(%s, %s, %s)", watcher, list(task_ids), span
    )
    return marked


def unwatch(queue: Queue, *task_ids: UUID, watcher: str = "me") -> None:
    queue.value("select sokka.unwatch_tasks(%s, %s)", watcher, list(task_ids) or None)


def news(task_id: UUID) -> str:
    return "d" + hashlib.md5(str(task_id).encode()).hexdigest()[:8]


ENDS: dict[str, Callable[[Queue, UUID], object]] = {
    "success": succeed,
    "failure": fail,
    "cancel": lambda queue, task_id: queue.one("cancel_task", task_id=task_id),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_end_of_a_watched_task_is_told_and_of_another_not(
    fresh: Queue, listener: Queue, how: str
) -> None:
    watched, other = fresh.create("t"), fresh.create("t")
    assert watch(fresh, watched) == 1
    ENDS[how](fresh, other)
    assert heard(fresh, listener) == []
    ENDS[how](fresh, watched)
    assert heard(fresh, listener) == [news(watched)]


def test_progress_appends_and_acknowledgements_are_news(fresh: Queue, listener: Queue) -> None:
    held, other = fresh.leased("t"), fresh.leased("t")
    watch(fresh, held.task_id)
    for row in (other, held):
        fresh.verb("report_progress", row, progress=Jsonb(1))
    assert heard(fresh, listener) == [news(held.task_id)]
    for row in (other, held):
        fresh.verb("append_stream", row, items=Jsonb([1, 2]))
    assert heard(fresh, listener) == [news(held.task_id)]
    for row in (other, held):
        fresh.call("read_stream", task_id=row.task_id, after=0)
    assert heard(fresh, listener) == []
    for row in (other, held):
        fresh.call("read_stream", task_id=row.task_id, after=1)
    assert heard(fresh, listener) == [news(held.task_id)]


def test_what_is_no_news_is_not_told(fresh: Queue, listener: Queue) -> None:
    task_id = fresh.create("t")
    watch(fresh, task_id)
    held = fresh.reserve("t")
    fresh.verb("extend_lease", held)
    fresh.verb("save_checkpoint", held, checkpoint=Jsonb(1))
    fresh.verb("record_step", held, name="s", value=None)
    fresh.one("open_stream", task_id=task_id, max_items=1)
    fresh.verb("append_stream", held, items=Jsonb([1]))
    assert heard(fresh, listener) == [news(task_id)]
    assert fresh.verb("append_stream", held, items=Jsonb([2])).accepted == 0
    fresh.verb("release_lease", held)
    assert heard(fresh, listener) == []


def test_an_end_by_the_sweep_or_in_a_batch_is_told(
    fresh: Queue, listener: Queue, clock: Clock
) -> None:
    late = fresh.create("t", expires_at=clock.now())
    watch(fresh, late, span="1 day")
    clock.advance("1 s")
    fresh.one("sweep")
    assert heard(fresh, listener) == [news(late)]
    held = fresh.leased("u")
    watch(fresh, held.task_id)
    fresh.call("terminate_tasks", pid="w1", task_ids=[held.task_id], tokens=[held.token])
    assert heard(fresh, listener) == [news(held.task_id)]


def test_who_watches_a_fan_out_hears_of_its_end(fresh: Queue, listener: Queue) -> None:
    join_id = fan_out(fresh, 2, policy="all")
    one, two = children(fresh, join_id)
    watch(fresh, join_id)
    succeed(fresh, one)
    assert heard(fresh, listener) == []
    succeed(fresh, two)
    assert heard(fresh, listener) == [news(join_id)]


def test_who_watches_what_a_cancel_takes_along_hears_of_it(
    fresh: Queue, listener: Queue
) -> None:
    join_id = fan_out(fresh, 2)
    (one, _) = children(fresh, join_id)
    watch(fresh, one)
    fresh.one("cancel_task", task_id=join_id)
    assert heard(fresh, listener) == [news(one)]


def test_what_rolls_back_is_not_told(fresh: Queue, listener: Queue) -> None:
    held = fresh.leased("t")
    watch(fresh, held.task_id)
    with fresh.connection.transaction(force_rollback=True):
        fresh.verb("terminate_task", held)
    assert heard(fresh, listener) == []


def test_one_transaction_tells_of_a_task_once(fresh: Queue, listener: Queue) -> None:
    held = fresh.leased("t")
    for watcher in ("me", "you"):
        watch(fresh, held.task_id, watcher=watcher)
    with fresh.connection.transaction():
        for number in range(5):
            fresh.verb("report_progress", held, progress=Jsonb(number))
        fresh.verb("terminate_task", held)
    assert heard(fresh, listener) == [news(held.task_id)]


@pytest.mark.parametrize(("count", "single"), [(20, True), (21, False), (300, False)])
def test_more_than_twenty_at_once_are_told_as_many(
    fresh: Queue, listener: Queue, count: int, single: bool
) -> None:
    fresh.call("create_tasks", specs=Jsonb([{"topic": "t"}] * count))
    leases = fresh.call("reserve_tasks", topics=["t"], pid="w1", max_tasks=count)
    ids = [row.task_id for row in leases]
    assert watch(fresh, *ids) == count
    fresh.call(
        "terminate_tasks", pid="w1", task_ids=ids, tokens=[row.token for row in leases]
    )
    assert sorted(heard(fresh, listener)) == (sorted(map(news, ids)) if single else ["d*"])


def test_one_watched_among_many_is_told_by_its_own_name(fresh: Queue, listener: Queue) -> None:
    fresh.call("create_tasks", specs=Jsonb([{"topic": "t"}] * 50))
    leases = fresh.call("reserve_tasks", topics=["t"], pid="w1", max_tasks=50)
    watch(fresh, leases[7].task_id)
    fresh.call(
        "terminate_tasks", pid="w1", task_ids=[row.task_id for row in leases],
        tokens=[row.token for row in leases],
    )  # fmt: skip
    assert heard(fresh, listener) == [news(leases[7].task_id)]


def test_nobody_is_told_where_it_is_switched_off(fresh: Queue, listener: Queue) -> None:
    held = fresh.leased("t")
    watch(fresh, held.task_id)
    fresh.execute("update sokka.settings set notify = false")
    fresh.verb("report_progress", held, progress=Jsonb(1))
    fresh.verb("append_stream", held, items=Jsonb([1]))
    fresh.call("read_stream", task_id=held.task_id, after=1)
    fresh.verb("terminate_task", held)
    assert heard(fresh, listener) == []


# Marks


def test_a_mark_that_is_over_is_none_and_may_be_renewed(
    fresh: Queue, listener: Queue, clock: Clock
) -> None:
    clock.stop()
    held = fresh.leased("t")
    watch(fresh, held.task_id, span="1 s")
    clock.advance("0.999 s")
    fresh.verb("report_progress", held, progress=Jsonb(1))
    assert heard(fresh, listener) == [news(held.task_id)]
    clock.advance("0.001 s")
    fresh.verb("report_progress", held, progress=Jsonb(2))
    assert heard(fresh, listener) == []
    assert watch(fresh, held.task_id, span="1 s") == 1
    fresh.verb("report_progress", held, progress=Jsonb(3))
    assert heard(fresh, listener) == [news(held.task_id)]


def test_marks_are_taken_back_by_whoever_set_them(fresh: Queue, listener: Queue) -> None:
    one, two = fresh.create("t"), fresh.create("t")
    for watcher in ("me", "you"):
        assert watch(fresh, one, two, one, watcher=watcher) == 2
    unwatch(fresh, one)
    assert fresh.value("select count(*) from sokka.watched_tasks where watcher = 'me'") == 1
    unwatch(fresh)
    assert fresh.value("select count(*) from sokka.watched_tasks where watcher = 'me'") == 0
    assert fresh.value("select count(*) from sokka.watched_tasks") == 2
    succeed(fresh, one)
    assert heard(fresh, listener) == [news(one)]
    unwatch(fresh, watcher="you")
    succeed(fresh, two)
    assert heard(fresh, listener) == []


def test_marks_that_nobody_took_back_go_with_the_next_who_does(
    fresh: Queue, clock: Clock
) -> None:
    watch(fresh, uuid4(), watcher="gone", span="1 hour")
    watch(fresh, uuid4(), watcher="here", span="10 days")
    clock.advance("2 days")
    unwatch(fresh, uuid4(), watcher="me")
    assert fresh.value("select count(*) from sokka.watched_tasks") == 2
    unwatch(fresh, watcher="me")
    assert fresh.value("select array_agg(watcher) from sokka.watched_tasks") == ["here"]


def test_ids_of_any_kind_may_be_watched(fresh: Queue) -> None:
    assert watch(fresh) == 0
    finished = fresh.create("t")
    succeed(fresh, finished)
    assert watch(fresh, uuid4(), finished) == 2
    assert watch(fresh, *(uuid4() for _ in range(10_000))) == 10_000


def test_two_who_watch_the_same_tasks_in_any_order_do_not_deadlock(
    fresh: Queue, another: Another
) -> None:
    ids = [uuid4() for _ in range(50)]
    other = another(autocommit=False)
    watch(other, *ids, watcher="you")
    assert watch(fresh, *reversed(ids), watcher="me") == 50
    other.connection.rollback()


# Looking


def test_a_look_tells_how_tasks_stand_without_their_payloads(fresh: Queue) -> None:
    held = fresh.leased("t", data=Jsonb("x" * 100))
    fresh.verb("report_progress", held, progress=Jsonb(42))
    fresh.verb("append_stream", held, items=Jsonb([1, 2, 3]))
    fresh.call("read_stream", task_id=held.task_id, after=2)
    fresh.one("cancel_task", task_id=held.task_id)
    done, waiting = fresh.create("t"), fresh.create("t")
    succeed(fresh, done)
    found = {
        row.task_id: row
        for row in fresh.call("peek_tasks", task_ids=[done, uuid4(), held.task_id, waiting, done])
    }
    assert set(found) == {done, held.task_id, waiting}
    row, whole = found[held.task_id], fresh.row(held.task_id)
    assert (row.status, row.attempt, row.progress) == ("running", 1, 42)
    assert (row.stream_seq, row.stream_read) == (3, 2)
    for column in ("record_ver", "cancel_requested_at", "updated_at", "finished_at"):
        assert getattr(row, column) == getattr(whole, column), column
    row, whole = found[done], fresh.row(done)
    assert (row.status, row.stream_seq, row.stream_read) == ("terminated", None, None)
    assert (row.record_ver, row.finished_at) == (whole.record_ver, whole.finished_at)
    assert (found[waiting].status, found[waiting].finished_at) == ("starting", None)


def test_a_look_at_ten_thousand_is_one_call(fresh: Queue) -> None:
    join_id = fan_out(fresh, 9_999)
    ids = [join_id, *children(fresh, join_id)]
    assert len(fresh.call("peek_tasks", task_ids=ids)) == 10_000
    assert fresh.call("peek_tasks", task_ids=[]) == []


def test_a_tree_that_is_cancelled_is_told_of_part_by_part(fresh: Queue, listener: Queue) -> None:
    join_id = fan_out(fresh, 2_500)
    last = children(fresh, join_id)[-1]
    watch(fresh, last)
    fresh.one("cancel_task", task_id=join_id)
    sweep_all(fresh)
    assert heard(fresh, listener) == [news(last)]

"""Streams and steps with two at once: one order, no gap, and no ghost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from tests.races.ordering import Session, accepted, answer, refused
from tests.sql.calling import Clock, Queue, Row
from tests.sql.joining import lease

Sessions = Callable[..., Session]


def append(queue: Queue, held: Row, *items: Any, after: int | None = None) -> Row:
    return queue.verb("append_stream", held, items=Jsonb(list(items)), after=after)


def written(queue: Queue, held: Row) -> list[Any]:
    rows = queue.call("read_stream", task_id=held.task_id)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [row.item for row in rows]


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_of_two_appends_the_second_waits_and_goes_on_behind_the_first(
    queue: Queue, opened: Session, other: Session, commit: bool
) -> None:
    held = queue.leased("t")
    append(opened, held, "a", "b")
    call = other.begin_verb("append_stream", held, items=Jsonb(["c"]))
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    assert accepted(call).last_seq == (3 if commit else 1)
    assert written(queue, held) == (["a", "b", "c"] if commit else ["c"])


def test_of_two_repeats_after_a_lost_answer_one_is_told_that_it_is_written(
    queue: Queue, opened: Session, other: Session
) -> None:
    held = queue.leased("t")
    append(queue, held, 1)
    append(opened, held, 2, after=1)
    call = other.begin_verb("append_stream", held, items=Jsonb([2]), after=1)
    other.blocked_by(opened)
    opened.commit()
    found = answer(call)
    assert (found.sqlstate, found.detail["last_seq"]) == ("SK007", 2)
    assert written(queue, held) == [1, 2]


def test_an_append_that_waited_for_a_take_over_is_a_ghosts(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    held = queue.leased("t", lease="1 s")
    append(queue, held, 1)
    clock.advance("1 s")
    (again,) = opened.call("acquire_lease", task_id=held.task_id, pid="w1", lease="1 hour")
    call = other.begin_verb("append_stream", held, items=Jsonb(["ghost"]), after=1)
    other.blocked_by(opened)
    opened.commit()
    assert refused(call) == "SK005"
    append(queue, again, 2, after=1)
    assert written(queue, held) == [1, 2]


def test_a_take_over_waits_for_an_append_under_way_and_goes_on_behind_it(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    held = queue.leased("t", lease="1 s")
    append(opened, held, 1)
    clock.advance("1 s")
    assert accepted(other.begin("sweep")).taken_back == 0
    call = other.begin("acquire_lease", task_id=held.task_id, pid="w2", lease="1 hour")
    other.blocked_by(opened)
    opened.commit()
    again = accepted(call)
    assert append(queue, again, 2).last_seq == 2
    assert written(queue, held) == [1, 2]


def test_of_two_who_open_a_stream_by_appending_both_find_the_same_one(
    queue: Queue, opened: Session, other: Session
) -> None:
    held = queue.leased("t")
    opened.call("open_stream", task_id=held.task_id, max_items=5)
    call = other.begin_verb("append_stream", held, items=Jsonb([1]))
    other.blocked_by(opened)
    opened.commit()
    assert accepted(call).free_items == 4
    assert queue.value("select count(*) from sokka.streams") == 1


def test_a_producer_waits_for_who_is_making_room_for_it(
    queue: Queue, opened: Session, other: Session
) -> None:
    held = queue.leased("t")
    queue.one("open_stream", task_id=held.task_id, max_items=1)
    append(queue, held, 1)
    opened.call("read_stream", task_id=held.task_id, after=1)
    call = other.begin_verb("append_stream", held, items=Jsonb([2]))
    other.blocked_by(opened)
    opened.commit()
    assert accepted(call).accepted == 1


def test_of_two_readers_neither_waits_and_the_farther_counts(
    queue: Queue, opened: Session, other: Session
) -> None:
    held = queue.leased("t")
    append(queue, held, *range(5))
    opened.call("read_stream", task_id=held.task_id, after=2)
    rows = answer(other.begin("read_stream", task_id=held.task_id, after=4))
    assert [row.seq for row in rows] == [5]
    opened.commit()
    assert queue.one("get_stream", task_id=held.task_id).consumed_seq == 2
    answer(other.begin("read_stream", task_id=held.task_id, after=4))
    assert queue.one("get_stream", task_id=held.task_id).consumed_seq == 4


def test_a_reader_sees_items_only_when_they_are_committed_and_then_all(
    queue: Queue, opened: Session
) -> None:
    held = queue.leased("t")
    append(queue, held, 1)
    append(opened, held, 2, 3)
    assert written(queue, held) == [1]
    opened.commit()
    assert written(queue, held) == [1, 2, 3]


def test_a_producer_and_its_reader_in_a_hurry_lose_nothing(
    queue: Queue, session: Sessions
) -> None:
    held = queue.leased("t")
    queue.one("open_stream", task_id=held.task_id, max_items=5)
    producer, reader = session(), session()

    def produce() -> None:
        sent = 0
        while sent < 200:
            sent += append(producer, held, *range(sent, min(sent + 3, 200)), after=sent).accepted

    def consume() -> list[Any]:
        seen: list[Any] = []
        while len(seen) < 200:
            rows = reader.call(
                "read_stream", task_id=held.task_id, after=len(seen), max_items=4
            )
            seen += [row.item for row in rows]
        return seen

    calls = [producer.begin_act(produce), reader.begin_act(consume)]
    assert [answer(call) for call in calls] == [None, list(range(200))]
    queue.call("read_stream", task_id=held.task_id, after=200)
    found = queue.one("get_stream", task_id=held.task_id)
    assert (found.consumed_seq, found.pending_items, found.pending_bytes) == (200, 0, 0)


# Steps


@pytest.mark.parametrize("commit", [True, False], ids=["commits", "rolls back"])
def test_of_two_who_record_a_step_the_first_value_stays(
    queue: Queue, opened: Session, other: Session, commit: bool
) -> None:
    held = queue.leased("t")
    opened.verb("record_step", held, name="s", value=Jsonb("first"))
    call = other.begin_verb("record_step", held, name="s", value=Jsonb("second"))
    other.blocked_by(opened)
    opened.commit() if commit else opened.rollback()
    found = accepted(call)
    assert found.recorded is not commit
    assert found.value == ("first" if commit else "second")
    assert len(queue.call("list_steps", task_id=held.task_id)) == 1


def test_a_step_that_waited_for_a_take_over_is_not_recorded(
    queue: Queue, opened: Session, other: Session, clock: Clock
) -> None:
    clock.stop()
    held = queue.leased("t", lease="1 s")
    clock.advance("1 s")
    opened.call("acquire_lease", task_id=held.task_id, pid="w2", lease="1 hour")
    call = other.begin_verb("record_step", held, name="s", value=Jsonb("ghost"))
    other.blocked_by(opened)
    opened.commit()
    assert refused(call) == "SK003"
    assert queue.call("list_steps", task_id=held.task_id) == []
    again = lease(queue, held.task_id, pid="w2")
    assert queue.verb("record_step", again, name="s", value=None).recorded

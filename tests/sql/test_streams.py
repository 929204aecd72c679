"""Streams: numbered items, in order, bounded, written by the owner of the lease only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from tests.sql import states
from tests.sql.calling import Clock, Queue, Row
from tests.sql.states import ERROR, WRONG_STATES

Another = Callable[..., Queue]


def append(queue: Queue, held: Row, *items: Any, after: int | None = None) -> Row:
    return queue.verb("append_stream", held, items=Jsonb(list(items)), after=after)


def read(queue: Queue, task_id: UUID, after: int = 0, **bounds: int) -> list[Row]:
    return queue.call("read_stream", task_id=task_id, after=after, **bounds)


def items(rows: list[Row]) -> list[Any]:
    return [row.item for row in rows]


def state(queue: Queue, task_id: UUID) -> Row:
    return queue.one("get_stream", task_id=task_id)


@pytest.fixture
def held(fresh: Queue) -> Row:
    return fresh.leased("t")


# Order and numbers


def test_items_are_numbered_from_one_and_read_in_order(fresh: Queue, held: Row) -> None:
    found = append(fresh, held, "a", {"b": 1}, None)
    assert (found.accepted, found.last_seq) == (3, 3)
    found = append(fresh, held, [4])
    assert (found.accepted, found.last_seq) == (1, 4)
    rows = read(fresh, held.task_id)
    assert [(row.seq, row.item) for row in rows] == [(1, "a"), (2, {"b": 1}), (3, None), (4, [4])]
    assert [row.seq for row in read(fresh, held.task_id, 2)] == [3, 4]
    assert read(fresh, held.task_id, 4) == []


def test_a_reader_may_go_back_as_long_as_the_items_are_kept(fresh: Queue, held: Row) -> None:
    append(fresh, held, 1, 2, 3)
    assert items(read(fresh, held.task_id, 3)) == []
    assert items(read(fresh, held.task_id, 0)) == [1, 2, 3]
    assert state(fresh, held.task_id).consumed_seq == 3


def test_a_stream_opens_with_its_first_item_or_before(fresh: Queue, held: Row) -> None:
    assert fresh.call("get_stream", task_id=held.task_id) == []
    assert fresh.refused("read_stream", task_id=held.task_id).sqlstate == "SK001"
    append(fresh, held, 1)
    found = state(fresh, held.task_id)
    assert (found.max_items, found.max_bytes) == (1000, 8_388_608)
    assert (found.status, found.last_seq, found.consumed_seq) == ("running", 1, 0)
    assert (found.pending_items, found.pending_bytes, found.error) == (1, 1, None)
    waiting = fresh.create("t")
    (opened,) = fresh.call("open_stream", task_id=waiting, max_items=2, max_bytes=4096)
    assert (opened.max_items, opened.max_bytes, opened.status) == (2, 4096, "starting")
    assert read(fresh, waiting) == []


def test_opening_again_changes_nothing(fresh: Queue, held: Row) -> None:
    fresh.one("open_stream", task_id=held.task_id, max_items=2)
    append(fresh, held, 1)
    again = fresh.one("open_stream", task_id=held.task_id, max_items=500, max_bytes=4096)
    assert (again.max_items, again.max_bytes, again.last_seq) == (2, 8_388_608, 1)


@pytest.mark.parametrize(("state", "code"), [
    (states.unknown, "SK001"), (states.failed, "SK002"), (states.terminated, "SK002"),
])  # fmt: skip
def test_only_a_live_task_gets_a_stream(fresh: Queue, state: states.State, code: str) -> None:
    claim = state(fresh)
    found = fresh.refused("open_stream", task_id=claim.task_id)
    assert (found.sqlstate, found.detail["task_id"]) == (code, str(claim.task_id))
    assert fresh.value("select count(*) from sokka.streams") == 0


# Bounds


def test_a_producer_gets_as_many_in_as_there_is_room_for(fresh: Queue, held: Row) -> None:
    fresh.one("open_stream", task_id=held.task_id, max_items=3)
    found = append(fresh, held, 1, 2)
    assert (found.accepted, found.free_items) == (2, 1)
    found = append(fresh, held, 3, 4, 5)
    assert (found.accepted, found.last_seq, found.free_items) == (1, 3, 0)
    found = append(fresh, held, 4)
    assert (found.accepted, found.last_seq) == (0, 3)
    assert items(read(fresh, held.task_id)) == [1, 2, 3]
    # Reading is not acknowledging; asking for what comes after is.
    assert append(fresh, held, 4).accepted == 0
    read(fresh, held.task_id, 2)
    found = append(fresh, held, 4, 5, 6)
    assert (found.accepted, found.last_seq, found.free_items) == (2, 5, 0)
    assert items(read(fresh, held.task_id, 2)) == [3, 4, 5]


def test_bytes_are_bounded_as_items_are(fresh: Queue, held: Row) -> None:
    fresh.one("open_stream", task_id=held.task_id, max_bytes=1024)
    large = "x" * 398
    found = append(fresh, held, large, large, large)
    assert (found.accepted, found.free_bytes) == (2, 1024 - 800)
    # The small one that comes after one that does not fit waits for its turn.
    assert append(fresh, held, large, 1).accepted == 0
    assert append(fresh, held, 1, large).accepted == 1
    read(fresh, held.task_id, 1)
    found = state(fresh, held.task_id)
    assert (found.pending_items, found.pending_bytes) == (2, 401)
    assert append(fresh, held, large).accepted == 1
    read(fresh, held.task_id, 4)
    assert (state(fresh, held.task_id).pending_bytes, state(fresh, held.task_id).consumed_seq) == (
        0, 4,
    )  # fmt: skip


def test_an_item_that_never_fits_is_refused_and_named(fresh: Queue, held: Row) -> None:
    fresh.one("open_stream", task_id=held.task_id, max_bytes=1024)
    proven = states.of(held).arguments()
    found = fresh.refused("append_stream", **proven, items=Jsonb([1, "x" * 1023]))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "items[2]")
    assert state(fresh, held.task_id).last_seq == 0
    assert append(fresh, held, "x" * 1022).accepted == 1
    # However full the stream is: it would not fit an empty one either.
    found = fresh.refused("append_stream", **proven, items=Jsonb(["x" * 1023]))
    assert found.sqlstate == "22023"


def test_an_item_is_bounded_like_any_payload(fresh: Queue, held: Row) -> None:
    proven = states.of(held).arguments()
    found = fresh.refused("append_stream", **proven, items=Jsonb([1, 2, "x" * 1_048_575]))
    assert (found.sqlstate, found.detail["argument"]) == ("22023", "items[3]")
    assert append(fresh, held, "x" * 1_048_574).accepted == 1
    fresh.execute("update sokka.settings set max_data_bytes = 1024")
    assert fresh.refused("append_stream", **proven, items=Jsonb(["x" * 1023])).sqlstate == "22023"


@pytest.mark.parametrize("count", [1, 1000])
def test_up_to_a_thousand_items_are_one_append(fresh: Queue, held: Row, count: int) -> None:
    assert append(fresh, held, *range(count)).accepted == count
    assert items(read(fresh, held.task_id, max_items=10_000)) == list(range(count))


def test_a_reader_is_given_no_more_than_it_asked_for(fresh: Queue, held: Row) -> None:
    append(fresh, held, *["x" * 8] * 200)
    assert len(read(fresh, held.task_id)) == 100
    assert [row.seq for row in read(fresh, held.task_id, 100, max_items=7)] == [*range(101, 108)]
    assert len(read(fresh, held.task_id, max_bytes=30)) == 3
    assert len(read(fresh, held.task_id, max_bytes=31)) == 4
    # At least one, however little it asked for.
    assert len(read(fresh, held.task_id, max_bytes=1)) == 1


def test_a_producer_and_a_reader_take_turns_through_a_narrow_stream(
    fresh: Queue, held: Row
) -> None:
    fresh.one("open_stream", task_id=held.task_id, max_items=7)
    sent, seen, after = 0, [], 0
    while len(seen) < 100:
        if sent < 100:
            found = append(fresh, held, *range(sent, min(sent + 10, 100)), after=sent)
            sent += found.accepted
            assert found.last_seq == sent
        rows = read(fresh, held.task_id, after, max_items=3)
        assert state(fresh, held.task_id).pending_items <= 7
        seen += items(rows)
        after = rows[-1].seq
    assert seen == list(range(100))


# Acknowledging


def test_acknowledging_never_goes_back_nor_beyond_what_is_there(fresh: Queue, held: Row) -> None:
    append(fresh, held, 1, 2, 3)
    for after, consumed in ((2, 2), (1, 2), (0, 2), (99, 3), (2, 3), (-5, 3)):
        read(fresh, held.task_id, after)
        found = state(fresh, held.task_id)
        assert found.consumed_seq == consumed
        assert (found.pending_items, found.pending_bytes) == (3 - consumed, 3 - consumed)
    assert append(fresh, held, 4).last_seq == 4


# A repeat after a lost answer


def test_a_repeated_append_is_recognised_by_the_number_it_follows(fresh: Queue, held: Row) -> None:
    append(fresh, held, 1, 2, after=0)
    proven = states.of(held).arguments()
    for after in (0, 1, 3, -1):
        found = fresh.refused("append_stream", **proven, items=Jsonb([1, 2]), after=after)
        assert found.sqlstate == "SK007"
        assert found.detail["last_seq"] == 2
        assert found.detail["task_id"] == str(held.task_id)
        assert found.detail["expected"] == {"last_seq": after}
    assert append(fresh, held, 3, after=2).last_seq == 3
    assert items(read(fresh, held.task_id)) == [1, 2, 3]


def test_an_append_that_rolls_back_leaves_no_gap(fresh: Queue, held: Row) -> None:
    append(fresh, held, 1)
    with fresh.connection.transaction(force_rollback=True):
        append(fresh, held, 2, 3)
    assert append(fresh, held, "two", after=1).last_seq == 2
    assert items(read(fresh, held.task_id)) == [1, "two"]


# Owners


@pytest.mark.parametrize("state", WRONG_STATES, ids=lambda state: state.__name__)
def test_without_the_lease_nothing_is_appended(fresh: Queue, state: states.State) -> None:
    claim = state(fresh)
    before = fresh.image(claim.task_id)
    found = fresh.refused("append_stream", **claim.arguments(), items=Jsonb([1]))
    assert found.sqlstate == WRONG_STATES[state]
    assert fresh.image(claim.task_id) == before
    assert fresh.value("select count(*) from sokka.streams") == 0
    assert fresh.value("select count(*) from sokka.stream_items") == 0


def test_a_ghost_is_refused_and_the_new_owner_goes_on(fresh: Queue, clock: Clock) -> None:
    held = fresh.leased("t", lease="1 s")
    append(fresh, held, 1, 2)
    clock.advance("1 s")
    ghost = states.of(held).arguments() | {"items": Jsonb(["ghost"])}
    assert fresh.refused("append_stream", **ghost).sqlstate == "SK004"
    fresh.one("sweep")
    assert fresh.refused("append_stream", **ghost).sqlstate == "SK006"
    again = fresh.reserve("t")
    assert fresh.refused("append_stream", **ghost).sqlstate == "SK005"
    assert append(fresh, again, 3, after=2).last_seq == 3
    assert fresh.refused("append_stream", **ghost, after=3).sqlstate == "SK005"
    assert items(read(fresh, held.task_id)) == [1, 2, 3]
    tokens = fresh.rows("select token from sokka.stream_items order by seq")
    assert [row.token for row in tokens] == [held.token, held.token, again.token]


def test_appending_leaves_the_task_as_it_was(fresh: Queue, held: Row) -> None:
    before = fresh.row(held.task_id)
    append(fresh, held, 1)
    read(fresh, held.task_id, 1)
    assert fresh.row(held.task_id) == before


# Transactions


def test_a_reader_does_not_wait_for_an_open_append(
    fresh: Queue, another: Another, held: Row
) -> None:
    append(fresh, held, 1)
    producer = another(autocommit=False)
    append(producer, held, 2)
    fresh.execute("set lock_timeout = '1 ms'")
    fresh.execute("set statement_timeout = '10 s'")
    assert items(read(fresh, held.task_id, 0)) == [1]
    # What cannot be acknowledged now is with the next call.
    assert read(fresh, held.task_id, 1) == []
    assert state(fresh, held.task_id).consumed_seq == 0
    producer.connection.commit()
    assert items(read(fresh, held.task_id, 1)) == [2]
    assert state(fresh, held.task_id).consumed_seq == 1


def test_a_reader_in_an_open_transaction_holds_up_no_producer_for_long(
    fresh: Queue, another: Another, held: Row
) -> None:
    append(fresh, held, 1)
    reader = another(autocommit=False)
    assert items(read(reader, held.task_id)) == [1]
    assert append(fresh, held, 2).last_seq == 2
    reader.connection.rollback()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_lease_is_not_proven_under_an_old_snapshot_but_reading_works(
    fresh: Queue, another: Another, held: Row, isolation: str
) -> None:
    append(fresh, held, 1, 2)
    caller = another(autocommit=False)
    caller.execute(f"set transaction isolation level {isolation}")
    found = caller.refused("append_stream", **states.of(held).arguments(), items=Jsonb([1]))
    assert found.sqlstate == "25001"
    assert items(read(caller, held.task_id, 1)) == [2]
    caller.connection.commit()
    assert state(fresh, held.task_id).consumed_seq == 1


# The end


@pytest.mark.parametrize("end", ["terminated", "failed"])
def test_the_stream_of_a_finished_task_is_read_to_its_end(
    fresh: Queue, held: Row, end: str
) -> None:
    append(fresh, held, 1, 2)
    if end == "terminated":
        fresh.verb("terminate_task", held)
    else:
        fresh.verb("fail_task", held, error=ERROR)
    assert items(read(fresh, held.task_id, 1)) == [2]
    assert read(fresh, held.task_id, 2) == []
    found = state(fresh, held.task_id)
    assert (found.status, found.last_seq, found.consumed_seq) == (end, 2, 2)
    assert found.error == (None if end == "terminated" else ERROR)
    assert fresh.refused(
        "append_stream", **states.of(held).arguments(), items=Jsonb([3])
    ).sqlstate == "SK002"
    assert fresh.one("open_stream", task_id=held.task_id).status == end


def test_the_error_of_an_earlier_attempt_is_not_that_of_the_stream(
    fresh: Queue,
) -> None:
    held = fresh.leased("t", max_attempts=2)
    append(fresh, held, 1)
    fresh.verb("retry_task", held, error=ERROR, delay="0")
    found = state(fresh, held.task_id)
    assert (found.status, found.error) == ("starting", None)


def test_an_unknown_task_has_no_stream(queue: Queue) -> None:
    unknown = uuid4()
    found = queue.refused("read_stream", task_id=unknown)
    assert (found.sqlstate, found.detail["task_id"]) == ("SK001", str(unknown))
    assert queue.call("get_stream", task_id=unknown) == []


def test_a_stream_goes_with_its_task_and_not_before(fresh: Queue, clock: Clock) -> None:
    gone, kept = fresh.leased("t"), fresh.leased("t", lease="1 year")
    for held in (gone, kept):
        append(fresh, held, 1)
    fresh.verb("terminate_task", gone)
    clock.advance("60 days")
    fresh.one("sweep")
    while fresh.call("apply_retention"):
        pass
    assert fresh.call("get_stream", task_id=gone.task_id) == []
    assert items(read(fresh, kept.task_id)) == [1]
    assert append(fresh, kept, 2).last_seq == 2
    fresh.verb("terminate_task", kept)
    clock.advance("60 days")
    fresh.one("sweep")
    while fresh.call("apply_retention"):
        pass
    assert fresh.value("select count(*) from sokka.streams") == 0
    assert fresh.value("select count(*) from sokka.stream_items") == 0


def test_appends_and_acknowledgements_update_their_row_in_place(fresh: Queue, held: Row) -> None:
    for number in range(300):
        append(fresh, held, number)
        read(fresh, held.task_id, number)
    updates, hot = fresh.updates("sokka.streams")
    assert updates >= 590
    assert hot >= 0.95 * updates

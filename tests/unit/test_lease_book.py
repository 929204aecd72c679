from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from sokka_pg.engine.leases import SHORTEST_LEASE_S, Hold, LeaseBook


def hold(token: int, sent_at: float) -> Hold:
    return Hold(UUID(int=token), token, sent_at)


@given(lease=st.floats(SHORTEST_LEASE_S, 3600), age=st.floats(0, 1))
def test_a_lease_is_extended_before_a_third_of_it_has_passed(lease: float, age: float) -> None:
    book, start = LeaseBook(lease), 100.0
    book.add([hold(1, start)])
    beat = start + age * book.beat_s
    while not book.to_extend(beat):
        beat += book.beat_s
    assert beat - start <= lease / 3


def test_a_task_of_a_few_milliseconds_is_never_extended() -> None:
    book = LeaseBook(30.0)
    book.add([hold(1, 100.0)])
    assert book.to_extend(100.5) == []


def test_a_lease_that_is_not_renewed_is_given_up_before_its_end() -> None:
    book = LeaseBook(2.0)
    book.add([hold(1, 100.0), hold(2, 101.0)])
    assert book.next_end() == 101.8
    assert book.overdue(101.79) == []
    assert [late.token for late in book.overdue(101.8)] == [1]
    assert len(book) == 1


def test_renewal_counts_from_before_the_request_and_never_backwards() -> None:
    book = LeaseBook(2.0)
    book.add([hold(1, 100.0)])
    book.renewed([1, 99], 100.6)
    book.renewed([1], 100.2)
    kept = book.get(1)
    assert kept is not None
    assert kept.sent_at == 100.6
    assert book.overdue(101.9) == []


def test_what_is_dropped_is_neither_extended_nor_given_up() -> None:
    book = LeaseBook(2.0)
    book.add([hold(1, 100.0)])
    assert [gone.token for gone in book.drop([1, 5])] == [1]
    assert book.to_extend(200.0) == []
    assert book.overdue(200.0) == []
    assert book.next_end() is None


def test_the_margin_is_a_tenth_and_at_most_a_second() -> None:
    assert LeaseBook(0.3).margin_s < 0.05
    assert LeaseBook(3600.0).margin_s == 1.0

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sokka_pg.pacing import TRY_AGAIN_S, ProgressPace


def test_the_first_is_written_at_once_and_the_next_an_interval_after_it() -> None:
    pace: ProgressPace[str] = ProgressPace(0.25)
    pace.offer("a")
    assert pace.take(10.0) == "a"
    pace.written(10.1)
    pace.offer("b")
    pace.offer("c")
    assert pace.take(10.2) is None
    assert round(pace.due_in(10.2) or 0.0, 6) == 0.15
    assert pace.take(10.35) == "c"


def test_the_last_is_given_whatever_the_time() -> None:
    pace: ProgressPace[str] = ProgressPace(60)
    pace.offer("a")
    pace.take(0.0)
    pace.written(0.0)
    pace.offer("b")
    assert pace.take(0.0, last=True) == "b"


def test_one_is_under_way_at_a_time() -> None:
    pace: ProgressPace[str] = ProgressPace(0.25)
    pace.offer("a")
    pace.take(0.0)
    pace.offer("b")
    assert pace.take(100.0, last=True) is None
    assert pace.due_in(100.0) is None
    pace.written(100.0)
    assert pace.take(101.0) == "b"


def test_what_was_not_written_is_held_again_unless_there_is_a_newer_one() -> None:
    pace: ProgressPace[str] = ProgressPace(0.25)
    pace.offer("a")
    pace.take(0.0)
    pace.not_written(0.0)
    assert pace.take(TRY_AGAIN_S / 2) is None
    assert pace.take(TRY_AGAIN_S) == "a"
    pace.offer("b")
    pace.not_written(TRY_AGAIN_S)
    assert pace.take(2 * TRY_AGAIN_S) == "b"


def test_what_was_dropped_is_not_written() -> None:
    pace: ProgressPace[str] = ProgressPace()
    pace.offer("a")
    pace.drop()
    assert pace.take(0.0) is None
    assert pace.due_in(0.0) is None


@given(st.lists(st.sampled_from(["offer", "take", "written", "not_written", "later"]), max_size=60))
def test_values_go_out_in_order_and_the_last_one_in_the_end(acts: list[str]) -> None:
    pace: ProgressPace[int] = ProgressPace(0.25)
    now, said, out = 0.0, 0, []
    under_way: int | None = None
    for act in acts:
        if act == "offer":
            said += 1
            pace.offer(said)
        elif act == "take":
            taken = pace.take(now)
            assert taken is None or under_way is None
            under_way = taken or under_way
        elif act == "later":
            now += 0.1
        elif under_way is not None:
            if act == "written":
                out.append(under_way)
                pace.written(now)
            else:
                pace.not_written(now)
            under_way = None
    if under_way is not None:
        out.append(under_way)
        pace.written(now)
    last = pace.take(now, last=True)
    out += [] if last is None else [last]
    assert out == sorted(set(out))
    assert out[-1:] == ([said] if said else [])

"""Cron where clocks are moved: known nights, and brute force around any turn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sokka_pg.schedules import Cron, cron, fires, occurrences
from tests.unit.schedules_brute import (
    EXAMPLES,
    ZONES,
    Expression,
    Part,
    expressions,
    part,
    turns,
    walk,
)

MICROSECOND = timedelta(microseconds=1)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.mark.parametrize(
    ("text", "tz", "after", "expected"),
    [
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00-05:00",
         "2026-03-08T03:00-04:00 2026-03-09T02:30-04:00 2026-03-10T02:30-04:00"),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00-04:00",
         "2026-11-01T01:30-04:00 2026-11-02T01:30-05:00 2026-11-03T01:30-05:00"),
        ("0 */2 * * *", "Europe/London", "2024-10-26T23:30+01:00",
         "2024-10-27T00:00+01:00 2024-10-27T02:00+00:00 2024-10-27T04:00+00:00"
         " 2024-10-27T06:00+00:00 2024-10-27T08:00+00:00"),
        ("30 * * * *", "Europe/Helsinki", "2017-10-29T02:45+03:00",
         "2017-10-29T03:30+03:00 2017-10-29T03:30+02:00 2017-10-29T04:30+02:00"
         " 2017-10-29T05:30+02:00"),
        ("30 * * * *", "Europe/Helsinki", "2017-10-29T03:45+02:00",
         "2017-10-29T04:30+02:00 2017-10-29T05:30+02:00 2017-10-29T06:30+02:00"),
        ("0 12 * * 0", "Europe/Berlin", "2022-03-24T12:00+01:00",
         "2022-03-27T12:00+02:00 2022-04-03T12:00+02:00"),
        # an instant that was stored in UTC, in the repeated hour
        ("30 1 * * *", "America/New_York", "2019-11-03T05:00:00+00:00",
         "2019-11-03T01:30-04:00 2019-11-04T01:30-05:00"),
        ("30 1 * * *", "America/New_York", "2019-11-03T06:00:00+00:00",
         "2019-11-04T01:30-05:00 2019-11-05T01:30-05:00"),
        ("30 1 * * *", "America/New_York", "2019-11-03T06:30:00+00:00",
         "2019-11-04T01:30-05:00"),
        # all that falls into one gap fires once, and not beside what is due at its end
        ("0,30 2,3 * * *", "America/New_York", "2026-03-08T00:00-05:00",
         "2026-03-08T03:00-04:00 2026-03-08T03:30-04:00 2026-03-09T02:00-04:00"),
        ("*/15 2 * * *", "America/New_York", "2026-03-08T00:00-05:00", "2026-03-09T02:00-04:00"),
        ("*/30 1 * * *", "America/New_York", "2026-11-01T00:00-04:00",
         "2026-11-01T01:00-04:00 2026-11-01T01:30-04:00 2026-11-01T01:00-05:00"
         " 2026-11-01T01:30-05:00 2026-11-02T01:00-05:00"),
        # days that begin an hour late
        ("@daily", "America/Sao_Paulo", "2018-11-03T12:00-03:00",
         "2018-11-04T01:00-02:00 2018-11-05T00:00-02:00"),
        # half an hour, and a day that was left out
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00+10:30",
         "2026-10-04T02:30+11:00 2026-10-05T02:15+11:00"),
        ("0 9 * * *", "Pacific/Apia", "2011-12-29T10:00-10:00",
         "2011-12-31T00:00+14:00 2011-12-31T09:00+14:00"),
        ("0 9 30 12 *", "Pacific/Apia", "2011-12-29T10:00-10:00",
         "2011-12-31T00:00+14:00 2012-12-30T09:00+14:00"),
        ("*/20 23 * * *", "Pacific/Apia", "2011-12-29T23:10-10:00",
         "2011-12-29T23:20-10:00 2011-12-29T23:40-10:00 2011-12-31T23:00+14:00"),
        ("*/30 * * * * *", "Pacific/Apia", "2011-12-29T23:59:20-10:00",
         "2011-12-29T23:59:30-10:00 2011-12-31T00:00+14:00 2011-12-31T00:00:30+14:00"),
        # seconds, in a gap and in an hour that comes twice
        ("*/20 30 2 * * *", "America/New_York", "2026-03-08T00:00-05:00",
         "2026-03-08T03:00-04:00 2026-03-09T02:30-04:00 2026-03-09T02:30:20-04:00"),
        ("*/30 59 1 * * *", "America/New_York", "2026-11-01T01:59:00-04:00",
         "2026-11-01T01:59:30-04:00 2026-11-02T01:59-05:00"),
    ],
)  # fmt: skip
def test_known_nights(text: str, tz: str, after: str, expected: str) -> None:
    wanted = [datetime.fromisoformat(at) for at in expected.split()]
    found = fires(cron(text, tz), datetime.fromisoformat(after), most=len(wanted))
    assert found == wanted
    assert {at.tzinfo for at in found} == {UTC}


def test_a_preview_says_where_the_clock_was_moved() -> None:
    gap = occurrences(
        cron("30 2 * * *", "America/New_York"), datetime(2026, 3, 8, tzinfo=UTC), most=2
    )
    assert [(o.local.isoformat(), o.offset, o.mark) for o in gap] == [
        ("2026-03-08T03:00:00-04:00", timedelta(hours=-4), "gap"),
        ("2026-03-09T02:30:00-04:00", timedelta(hours=-4), ""),
    ]
    twice = occurrences(
        cron("0 * * * *", "Europe/Berlin"), datetime(2026, 10, 25, 0, tzinfo=UTC) - SECOND, most=3
    )
    assert [o.mark for o in twice] == ["overlap first", "overlap second", ""]
    assert {o.zone for o in twice} == {"Europe/Berlin"}


def test_what_is_due_at_the_end_of_a_gap_was_not_moved() -> None:
    found = occurrences(
        cron("0 2,3 * * *", "America/New_York"), datetime(2026, 3, 8, tzinfo=UTC), most=1
    )
    assert [(o.local.hour, o.mark) for o in found] == [(3, "")]


ANY_DAY = st.just(Part("*", frozenset(range(1, 32)), True, True))
ANY_MONTH = st.just(Part("*", frozenset(range(1, 13)), True, True))
ANY_WEEKDAY = st.just(Part("*", frozenset(range(7)), True, True))
SECOND_ZERO = st.just(Part("0", frozenset({0})))
MOST_MINUTES = st.one_of(part(1), st.just(Part("0-59", frozenset(range(60)))))
# clocks are moved at night
NIGHT = st.one_of(part(2), st.just(Part("0-4,22-23", frozenset([0, 1, 2, 3, 4, 22, 23]))))
NEAR = st.tuples(st.sampled_from(ZONES), st.integers(0, 10**6))


def check(schedule: Cron, expected: list[datetime], starts: list[datetime]) -> None:
    """From anywhere: the first of the expected instants that is later."""
    last = expected[-1] if expected else None
    for start in starts:
        later = [at for at in expected if at > start]
        found = schedule.next(start)
        if later:
            assert found == later[0], f"from {start}"
        else:
            assert found is None or last is None or found > last, f"from {start}"


def around(expected: list[datetime], begin: datetime, end: datetime) -> list[datetime]:
    """Instants to ask from: at, before and after each tick, and in between."""
    near = [at + by for at in expected for by in (-SECOND, -MICROSECOND, 0 * SECOND, MICROSECOND)]
    steps = int((end - begin) / (13 * MINUTE))
    spread = [begin + number * 13 * MINUTE + 7 * MICROSECOND for number in range(steps)]
    return [at for at in [*near, *spread] if begin <= at < end]


@EXAMPLES
@given(
    expressions(
        (0, SECOND_ZERO), (2, NIGHT), (3, ANY_DAY | part(3)), (4, ANY_MONTH),
        (5, ANY_WEEKDAY | part(5)),
    ), NEAR,
)  # fmt: skip
def test_minutes_around_any_turn_are_those_of_a_walk(
    expression: Expression, near: tuple[str, int]
) -> None:
    zone, number = near
    turn = turns(zone)[number % len(turns(zone))]
    begin, end = turn - 26 * HOUR, turn + 26 * HOUR
    expected = walk(expression, ZoneInfo(zone), begin, end, MINUTE)
    # what lies before the walk may have been moved into it or be shown again in it
    check(cron(expression.text, zone), expected, around(expected[-400:], begin, end))


@EXAMPLES
@given(
    expressions((1, MOST_MINUTES), (2, NIGHT), (3, ANY_DAY), (4, ANY_MONTH), (5, ANY_WEEKDAY)),
    NEAR, st.integers(-90, 90),
)  # fmt: skip
def test_seconds_around_any_turn_are_those_of_a_walk(
    expression: Expression, near: tuple[str, int], minutes: int
) -> None:
    zone, number = near
    turn = turns(zone)[number % len(turns(zone))]
    begin, end = turn - 70 * MINUTE, turn + 70 * MINUTE
    expected = walk(expression, ZoneInfo(zone), begin, end, SECOND)
    middle = turn + minutes * MINUTE
    starts = [middle + number * SECOND for number in range(-3, 62)]
    starts += [turn - SECOND, turn - MICROSECOND, turn]
    check(cron(expression.text, zone), expected, [at for at in starts if begin <= at < end])


@EXAMPLES
@given(expressions(), NEAR, st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_the_answer_does_not_depend_on_where_one_starts(
    expression: Expression, near: tuple[str, int], places: list[float]
) -> None:
    zone, number = near
    schedule = cron(expression.text, zone)
    begin = turns(zone)[number % len(turns(zone))] - 2 * HOUR
    found = schedule.next(begin)
    assert found is not None and found > begin
    for place in places:
        start = min(begin + (found - begin) * place, found - MICROSECOND)
        assert schedule.next(start) == found

"""Intervals, instants, functions, text; ticks that are late."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sokka_pg.errors import BadArgument
from sokka_pg.schedules import (
    At,
    DurableSchedule,
    Every,
    Missed,
    Schedule,
    at,
    cron,
    every,
    fires,
    missed,
    next_of,
    occurrences,
    parse,
    schedule_func,
)
from tests.unit.schedules_brute import EXAMPLES

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def minute(number: float) -> datetime:
    return MIDNIGHT + number * MINUTE


# intervals


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), (".5s", 0.5), ("250ms", 0.25),
        ("1us", 1e-6), ("1µs", 1e-6), ("1μs", 1e-6), ("1000ns", 1e-6), ("1d", 86400),
        ("1h0m0s", 3600), ("2.s", 2), ("87600h", 315_360_000),
    ],
)  # fmt: skip
def test_an_interval_is_read_as_go_reads_it(text: str, seconds: float) -> None:
    assert every(text).interval == timedelta(seconds=seconds)
    assert parse(f"@every {text}") == every(text)


@pytest.mark.parametrize(
    "text",
    [
        "0s", "0", "-5m", "+5m", "0.0000000001s", "400ns", "", "1e3s", "999999999h", "5", "m",
        "5 m", "5mm", "1w", "1y", "1h 5m", "1h,5m", "1.2.3s", ".s", "5M", "\u0665m", "infs", "nans",
        "9" * 99 + "h", "1s" * 60, "87661h", "5m\n",
    ],
)  # fmt: skip
def test_an_interval_that_could_not_be_meant_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="interval"):
        every(text)
    with pytest.raises(BadArgument):
        parse(f"@every {text}")


@pytest.mark.parametrize(
    "value",
    [0, -1, True, float("nan"), float("inf"), 1e18, None, b"5m", timedelta.max, timedelta(0)],
)
def test_a_number_that_is_no_interval_is_refused(value: Any) -> None:
    with pytest.raises(BadArgument, match="interval"):
        every(value)


def test_an_interval_with_an_anchor_keeps_to_its_grid() -> None:
    grid = every("5m", MIDNIGHT)
    assert grid.next(minute(0)) == minute(5)
    assert grid.next(minute(17.3)) == minute(20)
    assert grid.next(minute(20) - timedelta(microseconds=1)) == minute(20)
    assert grid.next(minute(-60)) == minute(0), "the anchor is the first"


def test_an_interval_without_an_anchor_counts_from_what_is_asked() -> None:
    assert every("5m").next(minute(0)) == minute(5)
    assert every("5m").next(minute(17)) == minute(22)
    assert every("5m").anchored(minute(1)).next(minute(17)) == minute(21)
    assert every("5m", minute(2)).anchored(minute(1)).anchor == minute(2)


def test_a_grid_does_not_drift() -> None:
    grid = every("0.333333s", MIDNIGHT)
    assert grid.next(MIDNIGHT + timedelta(days=3000)) == MIDNIGHT + (
        timedelta(days=3000) // grid.interval + 1
    ) * grid.interval


def test_an_interval_ends_with_the_calendar() -> None:
    for schedule in (every("24h"), every("24h", MIDNIGHT)):
        assert schedule.next(datetime(9999, 12, 31, 12, tzinfo=UTC)) is None
        assert schedule.next(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))) is None


# one instant, a function


def test_an_instant_comes_once() -> None:
    once = at(minute(5).astimezone(timezone(timedelta(hours=5))))
    assert once.next(minute(4)) == minute(5)
    assert once.next(minute(5)) is None
    assert once == At(minute(5))


@pytest.mark.parametrize(
    "value", [datetime(2026, 1, 1), "2026-01-01T00:00:00Z", None, datetime(9999, 6, 1, tzinfo=UTC)]
)
def test_an_instant_that_is_no_moment_is_refused(value: Any) -> None:
    with pytest.raises(BadArgument, match="at:"):
        at(value)
    if value is not None:
        with pytest.raises(BadArgument, match="anchor:"):
            every("1s", value)


@pytest.mark.parametrize("schedule", [every("5m"), every("5m", MIDNIGHT), at(MIDNIGHT)])
def test_a_naive_datetime_is_refused(schedule: Schedule) -> None:
    with pytest.raises(BadArgument, match="after"):
        schedule.next(datetime(2026, 1, 1))


def test_a_function_is_asked_and_answers_in_utc() -> None:
    zone = timezone(timedelta(hours=2))
    hourly = schedule_func(lambda after: after.astimezone(zone) + timedelta(hours=1))
    found = hourly.next(MIDNIGHT.astimezone(zone))
    assert found == minute(60) and found.tzinfo is UTC
    assert schedule_func(lambda after: None).next(MIDNIGHT) is None


def test_a_function_that_does_not_advance_or_names_no_moment_is_refused() -> None:
    wrongs = [lambda at: at, lambda at: at - MINUTE, lambda at: at.replace(2027, tzinfo=None)]
    for wrong in wrongs:
        with pytest.raises(BadArgument, match="schedule"):
            next_of(schedule_func(wrong), MIDNIGHT)
    with pytest.raises(BadArgument, match="function"):
        schedule_func(5)  # type: ignore[arg-type]


# text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("@every 5m", "@every 5m"),
        ("  @every\t90m ", "@every 1h30m"),
        ("@every 0.25s", "@every 0.25s"),
        ("@every 5m from 2026-01-01T02:00:00+02:00", "@every 5m from 2026-01-01T00:00:00Z"),
        ("@at 2026-01-01T00:00:00.5Z", "@at 2026-01-01T00:00:00.500000Z"),
        ("@weekly", "0 0 0 * * 0"),
        ("*/5 * * * *", "0 */5 * * * *"),
        ("CRON_TZ=Asia/Tokyo 0 9 * * MON", "TZ=Asia/Tokyo 0 0 9 * * mon"),
        ("TZ=UTC @daily", "0 0 0 * * *"),
    ],
)
def test_a_schedule_has_one_text_which_reads_as_the_same(text: str, canonical: str) -> None:
    schedule = parse(text)
    assert schedule.text == canonical
    assert parse(canonical) == schedule
    assert isinstance(schedule, DurableSchedule)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_a_function_has_no_text() -> None:
    assert not isinstance(schedule_func(lambda after: None), DurableSchedule)


@pytest.mark.parametrize(
    "text",
    [
        "@every", "@every 5m from", "@every 5m from noon", "@every 5m to 2026-01-01T00:00:00Z",
        "@at", "@at 2026-01-01", "@at 2026-01-01T00:00:00", "@at 2026-13-01T00:00:00Z",
        "@at 20260101T000000Z", "@at 2026-01-01 00:00:00Z", "@At 2026-01-01T00:00:00Z", "@every5m",
    ],
)  # fmt: skip
def test_text_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        parse(text)


@EXAMPLES
@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=3652)), st.none() | st.datetimes(
    datetime(1970, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC)))  # fmt: skip
def test_any_interval_survives_its_text(interval: timedelta, anchor: datetime | None) -> None:
    assert parse(every(interval, anchor).text) == every(interval, anchor)


# looking ahead


def test_fires_are_bounded_by_an_instant_or_a_number() -> None:
    grid = every("5m", MIDNIGHT)
    assert fires(grid, minute(0), minute(15)) == [minute(5), minute(10), minute(15)]
    assert fires(grid, minute(0), most=2) == [minute(5), minute(10)]
    assert fires(at(minute(5)), minute(0)) == [minute(5)]
    assert fires(at(minute(5)), minute(5)) == []


@pytest.mark.parametrize("most", [0, -1, True, 1.0, 10_001, None])
def test_a_number_of_ticks_is_bounded(most: Any) -> None:
    with pytest.raises(BadArgument, match="most"):
        fires(every("5m"), MIDNIGHT, most=most)


def test_a_preview_of_an_interval_is_in_utc() -> None:
    (found,) = occurrences(every("5m"), MIDNIGHT, most=1)
    assert (found.at, found.local, found.zone, found.offset, found.mark) == (
        minute(5), minute(5), "UTC", timedelta(0), "",
    )  # fmt: skip


# late ticks


def test_all_late_ticks_fire_at_their_own_times() -> None:
    for schedule in (every("5m", MIDNIGHT), every("5m"), cron("*/5 * * * *")):
        assert missed(schedule, minute(5), minute(17), "all", most=10) == Missed(
            (minute(5), minute(10), minute(15)), minute(20)
        )


def test_what_is_too_much_at_once_stays_due() -> None:
    grid = every("5m", MIDNIGHT)
    assert missed(grid, minute(5), minute(17), "all", most=2) == Missed(
        (minute(5), minute(10)), minute(15)
    )
    assert missed(grid, minute(5), minute(17)) == Missed((minute(5),), minute(10))


def test_one_is_the_newest_and_the_grid_is_kept() -> None:
    for schedule in (every("5m", MIDNIGHT), every("5m"), cron("*/5 * * * *")):
        assert missed(schedule, minute(5), minute(17), "one") == Missed(
            (minute(15),), minute(20), skipped=True
        )
    assert missed(every("5m"), minute(5), minute(6), "one") == Missed((minute(5),), minute(10))


def test_skip_fires_only_what_is_hardly_late() -> None:
    grid = every("5m", MIDNIGHT)
    assert missed(grid, minute(5), minute(17), "skip") == Missed((), minute(20), skipped=True)
    assert missed(grid, minute(5), minute(16), "skip") == Missed(
        (minute(15),), minute(20), skipped=True
    )
    assert missed(grid, minute(5), minute(5), "skip") == Missed((minute(5),), minute(10))
    assert missed(grid, minute(5), minute(17), "skip", grace=2 * MINUTE).fires == (minute(15),)


def test_what_is_not_due_waits() -> None:
    for policy in ("skip", "one", "all"):
        assert missed(every("5m"), minute(5), minute(4), policy) == Missed((), minute(5))


def test_the_last_tick_of_all_leaves_nothing_due() -> None:
    for policy in ("one", "all"):
        found = missed(at(minute(5)), minute(5), minute(60), policy)
        assert found == Missed((minute(5),), None)
    assert missed(at(minute(5)), minute(5), minute(60), "skip") == Missed((), None, skipped=True)


def test_years_of_missed_seconds_are_not_counted_one_by_one() -> None:
    now = MIDNIGHT + timedelta(days=3000, microseconds=5)
    for schedule in (cron("* * * * * *", "Europe/Dublin"), every("1s", MIDNIGHT), every("1us")):
        found = missed(schedule, MIDNIGHT, now, "one")
        assert found.next_at is not None and found.fires[0] <= now < found.next_at


def test_the_newest_tick_is_found_among_rare_ones() -> None:
    # each second of one minute a year
    found = missed(cron("* 0 0 1 1 *"), MIDNIGHT, minute(60 * 24 * 300), "one")
    newest = MIDNIGHT + timedelta(seconds=59)
    assert found == Missed((newest,), MIDNIGHT.replace(2027), skipped=True)


def test_ticks_of_a_function_are_walked() -> None:
    def doubling(after: datetime) -> datetime:
        return MIDNIGHT + 2 * (after - MIDNIGHT)

    found = missed(schedule_func(doubling), minute(1), minute(17), "one")
    assert found == Missed((minute(16),), minute(32), skipped=True)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(BadArgument, match="missed: must be one of skip, one, all"):
        missed(every("5m"), minute(5), minute(17), "none")  # type: ignore[arg-type]


@EXAMPLES
@given(st.integers(1, 400), st.integers(0, 5000), st.sampled_from(["one", "all"]))
def test_the_newest_of_all_is_the_one(step_s: int, late_s: int, policy: Any) -> None:
    schedule = Every(timedelta(seconds=step_s), MIDNIGHT)
    now = MIDNIGHT + timedelta(seconds=late_s)
    ticks = [MIDNIGHT, *fires(schedule, MIDNIGHT, now, 10_000)]
    found = missed(schedule, MIDNIGHT, now, policy, most=10_000)
    assert list(found.fires) == (ticks if policy == "all" else ticks[-1:])
    assert found.next_at == schedule.next(ticks[-1])

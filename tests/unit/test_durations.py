"""What may be asked of the clock, and what is refused before any SQL."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sokka_pg import durations
from sokka_pg.errors import BadArgument

NONSENSE = [math.nan, math.inf, -math.inf, True, False, "5", b"5", [], object(), 1 + 0j]


@pytest.mark.parametrize("value", [*NONSENSE, -1, -0.001, 1e18, timedelta(-1), timedelta.max])
def test_a_bad_delay_is_refused_and_named(value: Any) -> None:
    with pytest.raises(BadArgument) as refused:
        durations.delay(value, "snooze")
    assert refused.value.detail["argument"] == "snooze"
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("value", [0, -0.0, 0.0004, 1, 1.5, timedelta(0), timedelta(days=3652)])
def test_a_delay_from_nothing_to_ten_years_is_taken(value: Any) -> None:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    assert durations.delay(value).total_seconds() == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("value", [*NONSENSE, 0, -1, 0.0009, 10**12, timedelta(days=366)])
def test_a_lease_that_could_not_be_live_is_refused(value: Any) -> None:
    with pytest.raises(BadArgument):
        durations.lease_duration(value)


def test_no_lease_means_the_default_and_no_delay_is_an_error() -> None:
    assert durations.lease_duration(None) is None
    assert durations.optional_delay(None) is None
    with pytest.raises(BadArgument, match="delay: is required"):
        durations.delay(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 3, 8, 2, 30),
        "2026-03-08T02:30:00Z",
        1_700_000_000,
        None,
        datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
        datetime(9999, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    ],
)
def test_an_instant_that_is_no_moment_or_out_of_reach_is_refused(value: Any) -> None:
    with pytest.raises(BadArgument, match="run_at"):
        durations.instant(value, "run_at")


def test_an_instant_is_the_same_moment_whatever_zone_it_was_said_in() -> None:
    kathmandu = datetime(2026, 3, 8, 2, 30, tzinfo=ZoneInfo("Asia/Kathmandu"))
    found = durations.instant(kathmandu, "run_at")
    assert found == kathmandu
    assert found.tzinfo is UTC


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3652)))
def test_the_text_of_an_interval_loses_nothing(value: timedelta) -> None:
    seconds, _, micros = durations.interval_text(value)[2:-1].partition(".")
    assert timedelta(seconds=int(seconds), microseconds=int(micros or 0)) == value

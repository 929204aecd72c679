"""Cron expressions: what is refused, which days they mean, where the calendar ends."""

from __future__ import annotations

import copy
import pickle
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from sokka_pg.errors import BadArgument
from sokka_pg.schedules import Cron, cron, fires, parse
from tests.unit.schedules_brute import EXAMPLES, Expression, expressions


def instants(text: str, after: str, most: int, tz: str | None = None) -> list[str]:
    found = fires(cron(text, tz), datetime.fromisoformat(after), most=most)
    return [at.isoformat().removesuffix("+00:00") for at in found]


@pytest.mark.parametrize(
    "text",
    [
        "*/0 * * * *", "*/00 * * * *", "*/-2 * * * *", "*/61 * * * *", "*/90 * * * *",
        "60 * * * *", "77 * * * *", "0 24 * * *", "0 0 0 * *", "0 0 32 * *", "0 0 * 13 *",
        "0 0 * 0 *", "0 0 * * 8", "0 0 * * -1", "", " ", "* * * *", "* * * * * * *",
        "* * * * * * * *", "\u0661 * * * *", "\uff11 * * * *", "1,,2 * * * *", ",1 * * * *",
        "1, * * * *", "0 22-2 * * *", "0 0 * * fri-mon", "0 0 * * 5-0", "0 0 * nov-feb *",
        "5L * * * *", "0 0 L * *", "0 0 15W * *", "0 0 * * 5#2", "H * * * *", "0 0 * * monday",
        "0 0 jan * *", "mon * * * *", "1-2-3 * * * *", "1/2/3 * * * *", "*-5 * * * *",
        "5-* * * * *", "1/ * * * *", "/5 * * * *", "- * * * *", "1.5 * * * *", "+1 * * * *",
        "* * * *\n*", "*\u00a0* * * * *", "* * * * *\n", "@reboot", "@", "@hourly x", "TZ=UTC",
        "TZ= 0 0 * * *", "TZ=Nowhere/City 0 0 * * *", "TZ=../etc/passwd 0 0 * * *",
        "TZ=Europe 0 0 * * *", "TZ=localtime 0 0 * * *", "TZ=/etc/localtime 0 0 * * *",
        "TZ=UTC TZ=UTC 0 0 * * *", "TZ=UTC @every 5m", "tz=UTC 0 0 * * *",
        "1" * 900 + " * * * *", ",".join(["1"] * 600) + " * * * *", "9" * 100_000,
    ],
)  # fmt: skip
def test_a_wrong_expression_is_refused_at_once(text: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(BadArgument) as refused:
        parse(text)
    assert time.perf_counter() - begun < 1.0, "it was searched for, not read"
    assert refused.value.detail["argument"] in ("schedule", "tz")


@pytest.mark.parametrize("value", [None, 5, b"* * * * *", ["* * * * *"], True])
def test_what_is_no_text_is_refused(value: Any) -> None:
    for make in (parse, cron, Cron):
        with pytest.raises(BadArgument):
            make(value)
    with pytest.raises(BadArgument, match="tz"):
        Cron("* * * * *", value)


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *", "0 0 30-31 2 ?"])
def test_an_expression_that_never_fires_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match="never fires"):
        cron(text)


def test_the_refusal_names_the_field_and_its_rule() -> None:
    with pytest.raises(BadArgument, match="day of week: from 0 to 7 or sun-sat"):
        cron("0 0 * * 8")
    with pytest.raises(BadArgument, match="month: from 1 to 12 or jan-dec"):
        cron("0 0 * 13 *")
    with pytest.raises(BadArgument, match="hour: a range goes upwards"):
        cron("0 22-2 * * *")
    with pytest.raises(BadArgument, match="minute: a step from 1 to 60"):
        cron("*/90 * * * *")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("*/60 * * * *", "0 * * * *"),
        ("0 */24 * * *", "0 0 * * *"),
        ("0 0 * * 7", "0 0 * * 0"),
        ("0 0 * * sun-mon", "0 0 * * 0,1"),
        ("0 0 * * sat-sun", "0 0 * * 0,6"),
        ("0 0 * * 5-7", "0 0 * * 0,5,6"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 7/2", "0 0 * * 0"),
        ("0 0 * JAN-mar Mon", "0 0 * 1,2,3 1"),
        ("5-5 * * * *", "5 * * * *"),
        ("50/4 * * * *", "50,54,58 * * * *"),
        ("00-08/04 * * * *", "0,4,8 * * * *"),
        ("0 0 ? * ?", "0 0 * * *"),
        ("\t0  0\t* * * ", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_two_ways_to_write_the_same_times(text: str, same: str) -> None:
    assert instants(text, "2026-01-01T00:00Z", 40) == instants(same, "2026-01-01T00:00Z", 40)


def test_five_fields_are_six_at_second_zero() -> None:
    assert cron("30 2 * * MON") == cron("0 30 2 * * mon") == Cron("0  30 2 * * mon")


def test_the_seconds_come_first() -> None:
    assert instants("0 0 * * * *", "2026-01-01T00:00:00Z", 2) == [
        "2026-01-01T01:00:00", "2026-01-01T02:00:00",
    ]  # fmt: skip
    assert instants("*/20 30 9 * * 1-5", "2026-01-02T09:30:40Z", 4) == [
        "2026-01-05T09:30:00", "2026-01-05T09:30:20", "2026-01-05T09:30:40", "2026-01-06T09:30:00",
    ]  # fmt: skip
    assert instants("30 59 23 28-31 * *", "2026-02-27T00:00Z", 3) == [
        "2026-02-28T23:59:30", "2026-03-28T23:59:30", "2026-03-29T23:59:30",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "after", "days"),
    [
        ("0 0 13 * 5", "2026-01-01T00:00Z", "01-02 01-09 01-13 01-16 01-23 01-30"),
        ("0 0 31 2 1", "2026-01-15T00:00Z", "02-02 02-09 02-16"),
        # a star with a step picks days, as a list does, so either field suffices
        ("0 0 */2 * 1", "2026-01-01T00:00Z", "01-03 01-05 01-07 01-09"),
        ("0 0 1 * */2", "2026-01-01T00:00Z", "01-03 01-04 01-06 01-08"),
        ("0 0 */1 * 1", "2026-01-01T00:00Z", "01-05 01-12"),
        ("0 0 *,3 * 1", "2026-01-01T00:00Z", "01-05 01-12"),
        ("0 0 ? * 1", "2026-01-01T00:00Z", "01-05 01-12"),
        ("0 0 1-31 * 1", "2026-01-01T00:00Z", "01-02 01-03"),
        ("0 0 * * 7", "2026-01-01T00:00Z", "01-04 01-11"),
        ("0 0 29-31 * *", "2026-01-31T00:00Z", "03-29 03-30 03-31 04-29"),
    ],
)
def test_day_of_month_and_day_of_week(text: str, after: str, days: str) -> None:
    found = instants(text, after, len(days.split()))
    assert [at[5:10] for at in found] == days.split()


def test_leap_days_are_found_across_a_century_without_one() -> None:
    assert instants("0 0 29 2 *", "2096-03-01T00:00Z", 2) == [
        "2104-02-29T00:00:00", "2108-02-29T00:00:00",
    ]  # fmt: skip


@pytest.mark.parametrize("tz", ["UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati"])
def test_the_calendar_ends_without_an_error(tz: str) -> None:
    yearly, each_second = cron("0 0 1 1 *", tz), cron("* * * * * *", tz)
    assert yearly.next(datetime(9999, 6, 1, tzinfo=UTC)) is None
    last = yearly.next(datetime(9998, 6, 1, tzinfo=UTC))
    assert last is not None and last.astimezone(yearly._plan.zone).year == 9999
    assert each_second.next(datetime.max.replace(tzinfo=UTC)) is None
    assert cron("0 0 29 2 1", tz).next(datetime(9998, 3, 2, tzinfo=UTC)) is not None
    assert each_second.next(datetime.min.replace(tzinfo=UTC)) is not None


def test_the_last_second_of_the_calendar_fires() -> None:
    last = cron("59 59 23 31 12 *")
    at = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert last.next(at - timedelta(microseconds=1)) == at
    assert last.next(at) is None


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(BadArgument, match="after: must be a datetime with a time zone"):
        cron("* * * * *").next(datetime(2026, 1, 1))


def test_the_zone_of_a_prefix_goes_before_the_one_beside_it() -> None:
    assert cron("TZ=Asia/Tokyo 0 9 * * *", "Europe/Paris") == Cron("0 9 * * *", "Asia/Tokyo")
    assert cron("CRON_TZ=Asia/Tokyo @daily") == Cron("0 0 * * *", "Asia/Tokyo")
    assert cron("0 9 * * *", "Europe/Paris") == Cron("0 9 * * *", "Europe/Paris")
    assert cron("0 9 * * *").zone == "UTC"


def test_cron_takes_no_other_kind_of_text() -> None:
    with pytest.raises(BadArgument, match="must be a cron expression"):
        cron("@every 5m")


def test_the_zone_of_the_host_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = instants("30 2 * * *", "2026-03-07T12:00-05:00", 3)
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        assert instants("30 2 * * *", "2026-03-07T12:00-05:00", 3) == before
    time.tzset()


def test_an_expression_is_a_value() -> None:
    one = cron("30 2 * * *", "Europe/Berlin")
    for other in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), parse(one.text)):
        assert other == one and hash(other) == hash(one)
        assert other.next(datetime(2026, 1, 1, tzinfo=UTC)) is not None
    assert repr(one) == "Cron(expression='0 30 2 * * *', zone='Europe/Berlin')"
    assert one != cron("30 2 * * *")


@EXAMPLES
@given(expressions(), st.datetimes(datetime(1990, 1, 1), datetime(2110, 1, 1)))
def test_croniter_agrees_where_there_is_no_zone(expression: Expression, start: datetime) -> None:
    fields = expression.as_lists()
    theirs = croniter(
        " ".join([*fields[1:], fields[0]]), start.replace(microsecond=0), datetime
    )
    expected = [theirs.get_next(datetime).replace(tzinfo=UTC) for _ in range(4)]
    assert fires(cron(expression.text), start.replace(tzinfo=UTC), most=4) == expected

"""Text of the command line becomes values, or one clear refusal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sokka_pg.cli import reading
from sokka_pg.cli.showing import age, span
from sokka_pg.errors import BadArgument


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("0", 0), ("5m", 300), ("1h30m", 5400), ("500ms", 0.5), ("1.5s", 1.5),
        ("2d", 172800), ("1w", 604800), ("PT5M", 300), (" 1h 5m ", 3900), ("1H", 3600),
    ],
)  # fmt: skip
def test_a_duration_is_read_in_its_unit(text: str, seconds: float) -> None:
    assert reading.duration(text, "--delay") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", " ", "-5m", "5x", "m", "nan", "inf", "1e5", "5m3", "5 5", "٣", "1h30", "\x00"]
)
def test_what_is_no_duration_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(BadArgument, match=r"^--delay: must be a duration"):
        reading.duration(text, "--delay")


def test_a_duration_beyond_all_bounds_is_as_long_as_can_be() -> None:
    assert reading.duration("999999999999999w", "--delay") == timedelta.max


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2030-01-31T08:00+01:00", datetime(2030, 1, 31, 7, tzinfo=UTC)),
        ("2030-01-31 08:00:00Z", datetime(2030, 1, 31, 8, tzinfo=UTC)),
    ],
)
def test_an_instant_has_its_offset(text: str, moment: datetime) -> None:
    assert reading.instant(text, "--run-at") == moment


@pytest.mark.parametrize("text", ["2030-01-31T08:00", "tomorrow", "", "9999-12-31T00:00Z", "1969"])
def test_an_instant_without_offset_or_out_of_bounds_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match=r"^--run-at: "):
        reading.instant(text, "--run-at")


def test_a_moment_may_be_given_as_time_ago() -> None:
    before = datetime.now(UTC)
    found = reading.moment("1h", "--since") + timedelta(hours=1)
    assert before <= found <= datetime.now(UTC)


def test_part_of_a_uuid_is_told_from_what_is_none() -> None:
    with pytest.raises(BadArgument, match="only a part of a UUID"):
        reading.task_id("0197f6c4-8d2a")
    for text in ("", "x", "0197f6c4-8d2a-7c3e-9b1f-2a6d5e4c3b2g", "{0197f6c4}", "a" * 32):
        with pytest.raises(BadArgument, match=r"^TASK_ID: "):
            reading.task_id(text)


@pytest.mark.parametrize("text", ["{", "NaN", "[Infinity]", "", "'a'", "[" * 100_000, "9" * 5_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(BadArgument, match=r"^--data: is no JSON"):
        reading.json_value(text, "--data")


def test_data_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "letter.json"
    file.write_text('{"to": "ann"}')
    assert reading.data(f"@{file}") == {"to": "ann"}
    file.write_bytes(b'"\xff"')
    with pytest.raises(BadArgument, match="not UTF-8"):
        reading.data(f"@{file}")
    with pytest.raises(BadArgument, match="cannot be read: No such file"):
        reading.data(f"@{tmp_path}/nowhere")
    with pytest.raises(BadArgument, match="cannot be read"):
        reading.data("@a\x00b")


def test_headers_are_pairs_and_each_key_stands_once() -> None:
    assert reading.headers(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for pairs in (["a"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(BadArgument, match=r"^--header: "):
            reading.headers(pairs)


def test_a_retry_policy_may_say_its_waits_in_units() -> None:
    found = reading.retry('{"max_attempts": 3, "initial": "5s", "max": 60}')
    assert found == {"max_attempts": 3, "initial": timedelta(seconds=5), "max": 60}
    assert reading.retry("4") == 4
    for text in ("true", '"x"', "[1]", "null", '{"initial": "soon"}'):
        with pytest.raises(BadArgument, match=r"^--retry"):
            reading.retry(text)


def test_people_read_ages_in_two_units_at_most() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert age(now - timedelta(minutes=90), now) == "1h30m"
    assert age(now + timedelta(seconds=300), now) == "in 5m"
    assert age(None) == ""
    assert [span(timedelta(seconds=s)) for s in (0, 0.25, 59, 3600, 90_000, 864_000)] == [
        "0s", "250ms", "59s", "1h", "1d1h", "10d",
    ]  # fmt: skip

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sokka_pg.errors import BadArgument
from sokka_pg.model import RetryPolicy
from sokka_pg.retry import checked, policy_from, to_json, tries_again, wait_after


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def test_waits_double_up_to_the_cap_and_stay_there_at_attempt_1100() -> None:
    policy = RetryPolicy(2000, seconds(1), seconds(60), 2.0)
    waits = [wait_after(policy, n).total_seconds() for n in range(1, 1101)]
    assert waits[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert waits[-1] == 60.0


@pytest.mark.parametrize("multiplier", [0, 0.5, -1, float("nan"), float("inf"), True, "2", None])
def test_a_multiplier_that_cannot_grow_is_refused_by_name(multiplier: Any) -> None:
    with pytest.raises(BadArgument) as refused:
        checked(RetryPolicy(3, multiplier=multiplier))
    assert refused.value.detail["argument"] == "retry.multiplier"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("initial", timedelta(-1)), ("initial", timedelta.max), ("max", "5"), ("jitter", 1.5),
        ("jitter", float("nan")), ("max_attempts", -1), ("max_attempts", True),
        ("max_attempts", 2.0), ("max_attempts", 2**31),
    ],
)
def test_a_bad_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadArgument) as refused:
        checked(RetryPolicy(**{field: value}))
    assert refused.value.detail["argument"] == f"retry.{field}"


@pytest.mark.parametrize("value", [-1, -1e9, float("nan"), float("inf"), 1e18, True, "5"])
def test_a_bad_wait_in_a_mapping_is_refused(value: Any) -> None:
    with pytest.raises(BadArgument):
        policy_from({"initial": value})


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadArgument, match=r"retry\.tries.*max_attempts"):
        policy_from({"tries": 3})


def test_no_more_attempts_than_max_attempts_counting_the_first() -> None:
    assert not tries_again(RetryPolicy(0), 1)
    assert not tries_again(RetryPolicy(1), 1)
    assert tries_again(RetryPolicy(3), 2)
    assert not tries_again(RetryPolicy(3), 3)


def test_a_number_alone_is_max_attempts_and_a_mapping_takes_seconds() -> None:
    assert policy_from(4) == RetryPolicy(4)
    assert policy_from({"max_attempts": 2, "initial": 0.5}) == RetryPolicy(2, seconds(0.5))
    assert policy_from(None) is None


def test_the_json_of_a_policy_reads_back_as_the_same_policy() -> None:
    policy = RetryPolicy(7, seconds(0.25), seconds(90), 1.5, 0.1)
    assert policy_from(to_json(policy)) == policy


@given(
    failures=st.integers(1, 10**9),
    multiplier=st.floats(1, 1e300),
    initial=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
    roll=st.floats(0, 1),
)
def test_a_wait_is_never_negative_nor_beyond_the_cap(
    failures: int, multiplier: float, initial: float, jitter: float, roll: float
) -> None:
    policy = RetryPolicy(2, seconds(initial), seconds(1e6), multiplier, jitter)
    assert timedelta(0) <= wait_after(policy, failures, roll) <= seconds(1e6)

"""When a failed attempt is tried again: arithmetic, no clock and no dice.

The database applies the policy that a task carries; this module checks
policies, writes them as the JSON that ``create_task`` takes, and says what a
policy will do, so that it can be looked at before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sokka_pg.errors import BadArgument
from sokka_pg.model import Json, RetryPolicy

MOST_ATTEMPTS = 2_147_483_647
LONGEST_WAIT = timedelta(days=3650)
FIELDS = ("max_attempts", "initial", "max", "multiplier", "jitter")


def checked(policy: RetryPolicy) -> RetryPolicy:
    """The policy itself, or ``BadArgument`` naming the field and its rule."""
    _check_attempts(policy.max_attempts)
    _check_wait("initial", policy.initial)
    _check_wait("max", policy.max)
    if policy.max < policy.initial:
        raise _bad("max", "at least initial")
    _check_number("multiplier", policy.multiplier, 1.0, math.inf, "a finite number, 1 or more")
    _check_number("jitter", policy.jitter, 0.0, 1.0, "a number from 0 to 1")
    return policy


def policy_from(value: RetryPolicy | Mapping[str, Any] | int | None) -> RetryPolicy | None:
    """A policy as users write it: a RetryPolicy, its fields, or max_attempts alone.

    In a mapping, waits are ``timedelta`` or seconds.
    """
    if value is None:
        return None
    if isinstance(value, RetryPolicy):
        return checked(value)
    if isinstance(value, Mapping):
        return checked(_from_fields(value))
    if type(value) is int:
        return checked(RetryPolicy(max_attempts=value))
    raise _bad("", f"a RetryPolicy, a mapping or a number of attempts, not {_kind(value)}")


def to_json(policy: RetryPolicy) -> dict[str, Json]:
    """The ``retry`` argument of ``create_task``; waits in seconds."""
    checked(policy)
    return {
        "max_attempts": policy.max_attempts,
        "initial": policy.initial.total_seconds(),
        "max": policy.max.total_seconds(),
        "multiplier": policy.multiplier,
        "jitter": policy.jitter,
    }


def tries_again(policy: RetryPolicy, failures: int) -> bool:
    """Whether there is a next attempt after ``failures`` failed ones."""
    return failures < max(1, policy.max_attempts)


def wait_after(policy: RetryPolicy, failures: int, roll: float = 0.5) -> timedelta:
    """The wait after the ``failures``-th failed attempt, counted from 1.

    ``roll`` in [0, 1] places the wait within the jitter: 0 shortest, 0.5 the
    middle, 1 longest. Never longer than ``max``, whatever the count.
    """
    if failures < 1:
        raise BadArgument(
            "failures: 1 or more", {"argument": "failures", "rule": "1 or more"}
        )
    middle = _exponential_s(policy, failures)
    spread = 1.0 + policy.jitter * (2.0 * min(1.0, max(0.0, roll)) - 1.0)
    return timedelta(seconds=min(middle * spread, policy.max.total_seconds()))


def _exponential_s(policy: RetryPolicy, failures: int) -> float:
    initial, most = policy.initial.total_seconds(), policy.max.total_seconds()
    if initial <= 0.0:
        return 0.0
    # compared as logarithms: 2.0 ** 1024 overflows before min() could clamp it
    if (failures - 1) * math.log(policy.multiplier) >= math.log(most / initial):
        return most
    return min(most, initial * math.pow(policy.multiplier, failures - 1))


def _from_fields(fields: Mapping[str, Any]) -> RetryPolicy:
    unknown = [str(name) for name in fields if name not in FIELDS]
    if unknown:
        raise _bad(unknown[0], f"unknown field; known ones are {', '.join(FIELDS)}")
    given = dict(fields)
    for name in ("initial", "max"):
        if name in given:
            given[name] = _wait(name, given[name])
    if "initial" in given and "max" not in given:
        given["max"] = max(given["initial"], RetryPolicy().max)
    return RetryPolicy(**given)


def _wait(name: str, value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _bad(name, f"a timedelta or seconds, not {_kind(value)}")
    if not 0.0 <= value <= LONGEST_WAIT.total_seconds():
        raise _bad(name, "from 0 to 10 years")
    return timedelta(seconds=value)


def _check_attempts(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad("max_attempts", f"a whole number, not {_kind(value)}")
    if not 0 <= value <= MOST_ATTEMPTS:
        raise _bad("max_attempts", f"from 0 to {MOST_ATTEMPTS}")


def _check_wait(name: str, value: Any) -> None:
    if not isinstance(value, timedelta):
        raise _bad(name, f"a timedelta, not {_kind(value)}")
    if not timedelta(0) <= value <= LONGEST_WAIT:
        raise _bad(name, "from 0 to 10 years")


def _check_number(name: str, value: Any, least: float, most: float, rule: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _bad(name, f"{rule}, not {_kind(value)}")
    if not math.isfinite(value) or not least <= value <= most:
        raise _bad(name, rule)


def _kind(value: object) -> str:
    return type(value).__name__


def _bad(name: str, rule: str) -> BadArgument:
    argument = f"retry.{name}" if name else "retry"
    return BadArgument(f"{argument}: {rule}", {"argument": argument, "rule": rule})

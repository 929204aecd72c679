"""What a job may say, what follows an attempt, when a lease is over: rules without a clock."""

from __future__ import annotations

import logging
import math
import pickle
import threading
from datetime import timedelta
from typing import Any

import pytest

from sokka_pg import errors
from sokka_pg import scheduler as words
from sokka_pg.errors import BadArgument, LeaseLost, SokkaError
from sokka_pg.retry import wait_after
from sokka_pg.scheduler import InvalidJob, Job, JobContext, LeaseOptions, RetryPolicy, Scheduler
from sokka_pg.scheduler.job import LeasePlan, Plan, planned
from sokka_pg.scheduler.keeping import Keeper
from sokka_pg.scheduler.running import decide
from sokka_pg.schedules import every
from tests.scheduler.conftest import DEADLINE_S, NOON


def plan(**more: Any) -> Plan:
    return planned(Job("job", every("5m"), print, **more))


def test_a_plain_job_has_one_attempt_no_timeout_and_no_lease() -> None:
    found = plan()
    assert (found.max_attempts, found.timeout, found.lease) == (1, None, None)


@pytest.mark.parametrize(("attempts", "runs"), [(0, 1), (1, 1), (2, 2)])
def test_the_attempts_include_the_first(attempts: int, runs: int) -> None:
    assert plan(retry=RetryPolicy(max_attempts=attempts)).max_attempts == runs


def test_the_wait_doubles_from_a_second_to_half_a_minute() -> None:
    found = plan(retry=RetryPolicy(max_attempts=1101)).retry
    waits = [wait_after(found, failures).total_seconds() for failures in range(1, 1101)]
    assert waits[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert set(waits[5:]) == {30}


def test_a_thousand_attempts_overflow_nothing() -> None:
    policy = RetryPolicy(max_attempts=1101, initial_backoff=1, max_backoff=60, multiplier=2.0)
    found = plan(retry=policy).retry
    waits = [wait_after(found, failures).total_seconds() for failures in range(1, 1101)]
    assert waits[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert waits[1099] == 60.0


def test_a_longer_first_wait_lifts_the_default_bound() -> None:
    assert plan(retry=RetryPolicy(initial_backoff=60)).retry.max == timedelta(seconds=60)


@pytest.mark.parametrize(
    "policy",
    [
        *(RetryPolicy(multiplier=value) for value in (0, 0.5, -1, math.nan, math.inf)),
        *(RetryPolicy(max_attempts=value) for value in (-1, 2**31)),
        *(RetryPolicy(jitter=value) for value in (-0.1, 1.1, math.nan)),
        *(RetryPolicy(initial_backoff=value) for value in (-1, math.nan, math.inf, 1e18)),
        RetryPolicy(initial_backoff=timedelta(-1)),
        RetryPolicy(initial_backoff=timedelta.max),
        RetryPolicy(initial_backoff=10, max_backoff=5),
        RetryPolicy(max_attempts=True),
        RetryPolicy(initial_backoff=True),
        RetryPolicy(initial_backoff="5"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_policy_is_refused_when_the_job_is_registered(policy: RetryPolicy) -> None:
    with pytest.raises(InvalidJob, match=r"^job 'job': retry\."):
        Scheduler().register(Job("job", "@every 5m", print, retry=policy))


@pytest.mark.parametrize("wait", [-0.0, 0, 0.0004])
def test_a_wait_may_be_none_at_all(wait: float) -> None:
    assert plan(retry=RetryPolicy(initial_backoff=wait)).retry.initial < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", value) for value in ("", "  ", "a\nb", None, 7, "x" * 201)),
        *(("schedule", value) for value in ("", "@every 0s", "every day", None, 300, "0 0 30 2 *")),
        *(("handler", value) for value in (None, "print", lambda a, b: None)),
        *(("timeout", value) for value in (0, -1, math.nan, math.inf, True, "5")),
        ("run_on_start", 1), ("allow_overlap", None), ("retry", 3), ("lease", True),
    ],
)  # fmt: skip
def test_a_job_that_breaks_a_rule_is_refused_by_the_name_of_the_field(
    field: str, value: object
) -> None:
    fields: dict[str, Any] = {"name": "job", "schedule": "@every 5m", "handler": print}
    with pytest.raises(InvalidJob) as refused:
        Job(**(fields | {field: value})).validate()
    said = refused.value.detail["argument"]
    assert said == field or (field == "schedule" and said == "interval")
    assert isinstance(refused.value, BadArgument)


def test_only_jobs_are_registered() -> None:
    with pytest.raises(InvalidJob):
        Scheduler().register("job")  # type: ignore[arg-type]


def leased(timeout: float | None = None, **options: Any) -> LeasePlan:
    found = plan(lease=LeaseOptions(enabled=True, **options), timeout=timeout).lease
    assert found is not None
    return found


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def test_a_lease_has_defaults() -> None:
    assert leased() == LeasePlan("job", seconds(300), seconds(100))
    assert leased(timeout=60) == LeasePlan("job", seconds(90), seconds(30))
    assert leased(ttl=2, key="prices") == LeasePlan("prices", seconds(2), seconds(1))
    assert leased(ttl=2, renew_interval=0.5) == LeasePlan("job", seconds(2), seconds(0.5))


@pytest.mark.parametrize(
    "options",
    [{"ttl": 0}, {"ttl": -1}, {"ttl": 1}, {"ttl": 5, "renew_interval": 5}, {"key": " "},
     {"renew_interval": 0}, {"ttl": math.nan}],
)  # fmt: skip
def test_a_lease_that_cannot_be_kept_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=r"lease\."):
        leased(**options)


def test_a_lease_needs_a_locker() -> None:
    with pytest.raises(InvalidJob, match="locker"):
        Scheduler().register(Job("job", "@every 5m", print, lease=LeaseOptions(enabled=True)))


# --- what follows an attempt --------------------------------------------------

BOOM, LOSS = RuntimeError("boom"), LeaseLost("lost")
THREE = plan(retry=RetryPolicy(max_attempts=3))


@pytest.mark.parametrize(
    ("attempt", "error", "stopped", "loss", "kind", "reason"),
    [
        (1, None, None, None, "succeeded", ""),
        (3, None, "stop", None, "succeeded", ""),
        (1, BOOM, None, None, "retrying", "0:00:01"),
        (2, BOOM, None, None, "retrying", "0:00:02"),
        (3, BOOM, None, None, "failed", "attempts_exhausted"),
        (1, BOOM, "stop", None, "failed", "cancelled"),
        (1, None, "lost", LOSS, "failed", "cancelled"),
        (1, BOOM, None, LOSS, "failed", "cancelled"),
    ],
)
def test_what_follows_an_attempt(
    attempt: int, error: Any, stopped: Any, loss: Any, kind: str, reason: str
) -> None:
    verdict = decide(THREE, attempt, error, stopped, loss)
    assert (verdict.kind, verdict.reason) == (kind, reason)
    assert verdict.error is (loss or error)


# --- the keeper ---------------------------------------------------------------


class Renewals:
    """A lease that is renewed by hand: each renewal waits for its answer."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.answered = threading.Semaphore(0)
        self.error: BaseException | None = None

    def __call__(self) -> None:
        self.asked.release()
        assert self.answered.acquire(timeout=DEADLINE_S)
        if self.error is not None:
            raise self.error

    def answer(self, error: BaseException | None = None) -> None:
        """Answer the renewal that comes next, and wait for the one after it."""
        assert self.asked.acquire(timeout=DEADLINE_S)
        self.error = error
        self.answered.release()


def keeper(renewals: Renewals, now: list[float]) -> Keeper:
    return Keeper("key", renewals, seconds(10), 0.0, seconds(0.01), lambda: now[0])


def test_a_lease_is_over_before_the_database_says_so() -> None:
    now = [0.0]
    kept = Keeper("key", lambda: None, seconds(10), 0.0, clock=lambda: now[0])
    now[0] = 8.9
    assert not kept.lost
    kept.check()
    now[0] = 9.0
    assert kept.lost
    with pytest.raises(LeaseLost, match="not renewed in time"):
        kept.check()


def test_a_renewal_counts_from_the_moment_before_it_was_sent() -> None:
    now, renewals = [0.0], Renewals()
    kept = keeper(renewals, now)
    kept.start()
    now[0] = 5.0
    renewals.answer()
    # another one is asked for when the first has been noted
    assert renewals.asked.acquire(timeout=DEADLINE_S)
    assert kept.left_s() == pytest.approx(9.0)
    kept.stop()
    renewals.answered.release()


def test_a_refused_renewal_is_the_end() -> None:
    renewals = Renewals()
    kept = keeper(renewals, [0.0])
    kept.start()
    refusal = errors.StaleToken("not yours", {"key": "key"})
    renewals.answer(refusal)
    kept._thread.join(DEADLINE_S)
    assert kept.lost
    assert kept.loss() is refusal


def test_a_failed_renewal_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    renewals = Renewals()
    kept = keeper(renewals, [0.0])
    kept.start()
    with caplog.at_level(logging.WARNING, "sokka_pg.scheduler"):
        renewals.answer(OSError("no route"))
        renewals.answer(SystemExit())
        renewals.answer()
        assert renewals.asked.acquire(timeout=DEADLINE_S)
    assert not kept.lost
    kept.stop()
    renewals.answered.release()


def test_a_lease_that_was_over_is_not_taken_up_again() -> None:
    now, renewals = [0.0], Renewals()
    kept = keeper(renewals, now)
    kept.start()
    assert renewals.asked.acquire(timeout=DEADLINE_S)
    now[0] = 9.5
    renewals.answered.release()
    kept._thread.join(DEADLINE_S)
    assert kept.lost


# --- words --------------------------------------------------------------------


def test_a_context_keeps_its_first_reason_and_tells_late_listeners() -> None:
    told: list[str] = []
    context = JobContext(job_name="job", run_id="1", scheduled_at=NOON)
    context.on_stop(lambda: told.append("early"))
    assert not context.cancelled and not context.wait_cancelled(0)
    context.check()
    context.tell_to_stop("timeout")
    context.tell_to_stop("stop")
    context.on_stop(lambda: told.append("late"))
    assert (context.cancel_reason, told) == ("timeout", ["early", "late"])
    assert context.wait_cancelled()
    with pytest.raises(errors.StopRequested):
        context.check()


def test_every_error_can_be_pickled() -> None:
    found = {
        value for value in vars(words).values()
        if isinstance(value, type) and issubclass(value, SokkaError)
    }  # fmt: skip
    assert {cls.__name__ for cls in found} == {
        "AlreadyStarted", "HandlerExists", "InvalidJob", "JobAlreadyExists", "JobNotFound",
        "LockHeld", "NotStarted", "RunSkipped",
    }  # fmt: skip
    for cls in found:
        copy = pickle.loads(pickle.dumps(cls("message", {"key": "value"})))
        assert type(copy) is cls
        assert (copy.message, copy.detail) == ("message", {"key": "value"})


def test_every_exported_name_is_there() -> None:
    assert all(hasattr(words, name) for name in words.__all__)


def test_options_that_are_none_of_the_kind_are_refused() -> None:
    for wrong in ({"now": 5}, {"locker": 5}, {"observers": [5]}):
        with pytest.raises(BadArgument):
            Scheduler(**wrong)

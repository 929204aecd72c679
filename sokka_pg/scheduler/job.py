"""Jobs as they are declared, and what a scheduler makes of them. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from sokka_pg import durations, model, schedules
from sokka_pg import retry as retries
from sokka_pg.calls import arguments
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument
from sokka_pg.scheduler.errors import InvalidJob
from sokka_pg.schedules import Schedule

if TYPE_CHECKING:
    from sokka_pg.scheduler.context import JobContext

Handler: TypeAlias = (
    "Callable[[JobContext], object | Awaitable[object]]"
    " | Callable[[], object | Awaitable[object]]"
)
"""A unit of work: a plain or async function of the run's context, or of nothing. It may
be run again by retries, and by another replica after a loss: make it idempotent."""

FIRST_BACKOFF = timedelta(seconds=1)
LONGEST_BACKOFF = timedelta(seconds=30)
SPARE_TTL = timedelta(seconds=30)
TTL_WITHOUT_TIMEOUT = timedelta(minutes=5)
SHORTEST_RENEWAL = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How one run is tried again.

    ``max_attempts`` includes the first; 0 and 1 are no retry. The waits begin with
    ``initial_backoff`` and grow by ``multiplier`` (1 or more) up to ``max_backoff``
    (default 30 s, or the initial one if that is longer); ``jitter`` from 0 to 1
    spreads each by that share. Checked when the job is registered.
    """

    max_attempts: int = 1
    initial_backoff: Duration = FIRST_BACKOFF
    max_backoff: Duration | None = None
    multiplier: float = 2.0
    jitter: float = 0.0

    def checked(self) -> model.RetryPolicy:
        """The policy whose arithmetic this is. Raises BadArgument."""
        initial = durations.delay(self.initial_backoff, "retry.initial_backoff")
        most = durations.optional_delay(self.max_backoff, "retry.max_backoff")
        return retries.checked(model.RetryPolicy(
            max_attempts=self.max_attempts, initial=initial,
            max=max(initial, LONGEST_BACKOFF) if most is None else most,
            multiplier=self.multiplier, jitter=self.jitter,
        ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """One replica at a time: a run needs the lease of ``key`` from the locker.

    ``key``: default the job's name. ``ttl``: default the job's timeout and 30 s, or
    5 minutes without a timeout. ``renew_interval``: default a third of the ttl, at
    least 1 s; always shorter than the ttl. One lease spans all attempts of a run and
    the waits between them.
    """

    enabled: bool = False
    key: str | None = None
    ttl: Duration | None = None
    renew_interval: Duration | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A task that runs by the clock, in this process.

    ``schedule``: a Schedule, or text such as ``@every 5m`` or ``0 30 9 * * 1-5``.
    ``run_on_start``: one more run when the scheduler starts; the next tick stays as it
    is. ``allow_overlap``: whether a run may begin while another one goes on (up to
    100). ``timeout``: of one attempt; the handler is told to stop, and ends the attempt
    by doing so.
    """

    name: str
    schedule: Schedule | str
    handler: Handler
    run_on_start: bool = False
    allow_overlap: bool = False
    timeout: Duration | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    lease: LeaseOptions = field(default_factory=LeaseOptions)

    def validate(self) -> None:
        """Raise InvalidJob if the job breaks a rule."""
        planned(self)


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """A lease with every default filled in."""

    key: str
    ttl: timedelta
    renew_interval: timedelta


@dataclass(frozen=True, slots=True)
class Plan:
    """A job that was checked, with every default filled in."""

    name: str
    schedule: Schedule
    handler: Callable[[JobContext], Any]
    is_async: bool
    run_on_start: bool
    allow_overlap: bool
    timeout: timedelta | None
    retry: model.RetryPolicy
    lease: LeasePlan | None

    @property
    def max_attempts(self) -> int:
        return max(1, self.retry.max_attempts)


def planned(job: Job) -> Plan:
    """What a scheduler goes by. Raises InvalidJob."""
    if not isinstance(job, Job):
        raise InvalidJob.of("job", "must be a Job", job)
    try:
        return _planned(job)
    except BadArgument as error:
        raise InvalidJob(f"job {job.name!r}: {error.message}", error.detail) from None


def _planned(job: Job) -> Plan:
    name = arguments.name(job.name, "name")
    timeout = None if job.timeout is None else durations.timeout(job.timeout)
    handler, is_async = _callable(job.handler)
    for flag in ("run_on_start", "allow_overlap"):
        if not isinstance(getattr(job, flag), bool):
            raise BadArgument.of(flag, "must be a bool", getattr(job, flag))
    if not isinstance(job.retry, RetryPolicy):
        raise BadArgument.of("retry", "must be a RetryPolicy of sokka_pg.scheduler", job.retry)
    if not isinstance(job.lease, LeaseOptions):
        raise BadArgument.of("lease", "must be LeaseOptions", job.lease)
    return Plan(
        name, _schedule(job.schedule), handler, is_async, job.run_on_start, job.allow_overlap,
        timeout, job.retry.checked(), _lease(job.lease, name, timeout),
    )


def _schedule(given: Schedule | str) -> Schedule:
    if isinstance(given, str):
        return schedules.parse(given)
    if isinstance(given, type) or not callable(getattr(given, "next", None)):
        raise BadArgument.of("schedule", "must be a Schedule, or the text of one", given)
    return given


def _callable(handler: Any) -> tuple[Callable[[JobContext], Any], bool]:
    if not callable(handler):
        raise BadArgument.of("handler", "must be callable", handler)
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 (an object with an async __call__)
    )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some builtins have none; they get the context
        return handler, is_async
    if _takes(signature, 1):
        return handler, is_async
    if _takes(signature, 0):
        return (lambda context: handler()), is_async
    raise BadArgument.of("handler", "must take the run's context, or nothing")


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _lease(options: LeaseOptions, name: str, timeout: timedelta | None) -> LeasePlan | None:
    if not options.enabled:
        return None
    key = arguments.name(options.key if options.key is not None else name, "lease.key")
    ttl = durations.lease_duration(options.ttl, "lease.ttl")
    if ttl is None:
        ttl = TTL_WITHOUT_TIMEOUT if timeout is None else timeout + SPARE_TTL
    every = durations.lease_duration(options.renew_interval, "lease.renew_interval")
    if every is None:
        every = max(SHORTEST_RENEWAL, ttl / 3)
    if every >= ttl:
        raise BadArgument.of("lease.renew_interval", "must be shorter than the ttl")
    return LeasePlan(key, ttl, every)

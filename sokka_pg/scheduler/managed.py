"""Managed jobs: kept in the database, delivered to one replica for each tick."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

from sokka_pg import model, retry
from sokka_pg.calls import arguments
from sokka_pg.context import SyncTaskContext, TaskContext
from sokka_pg.context.plans import Ask, Plan, asking, carry_out, carry_out_async
from sokka_pg.durations import Duration, delay
from sokka_pg.errors import BadArgument, NoScheduleFound, ScheduleExists
from sokka_pg.model import Json, ScheduleRow
from sokka_pg.registry import Mode, PayloadReader, Registry, TaskSpec
from sokka_pg.scheduler.errors import HandlerExists, InvalidJob
from sokka_pg.schedules import At, Durable, next_of, parse
from sokka_pg.schedules.intervals import interval_of, written
from sokka_pg.schedules.texts import instant
from sokka_pg.store import TaskStore
from sokka_pg.store_async import AsyncTaskStore

TOPIC = "managed"
SOURCE = "managed"
_MOST_COUNT = 2**32 - 1
_WHEN = "must be an instant such as 2026-03-08T02:30:00Z, or a duration such as 1h30m"


class DeliveryFailureMode(StrEnum):
    """What happens when a handler fails."""

    CONSTANT = "constant"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class DeliveryFailurePolicy:
    """How a delivery is tried again when the handler fails.

    ``constant``: after ``interval`` (default at once), ``max_retries`` times, or for
    ever where that is None. ``drop``: not at all. A job without a policy is tried
    again three times, a second apart.
    """

    mode: DeliveryFailureMode | str
    max_retries: int | None = None
    interval: Duration | str = 0

    def validate(self) -> None:
        """Raise InvalidJob if the policy breaks a rule."""
        _invalid_if_bad("failure_policy", lambda: _retries(self))


@dataclass(frozen=True, slots=True)
class ManagedJob:
    """A job that the database keeps.

    ``schedule``: ``@every 5m``, ``@daily`` and its like, or cron with the seconds
    first. ``due_time``: the first tick, or the only one without a schedule. ``ttl``:
    no tick after it, counted from ``due_time`` where there is one. Both are RFC 3339
    instants, or durations such as ``1h30m`` from now. ``repeats``: over after so many
    ticks. ``overwrite``: replace the job of this name. ``data`` goes to the handler.
    """

    name: str
    schedule: str = ""
    due_time: str = ""
    repeats: int | None = None
    ttl: str = ""
    data: bytes = b""
    data_type_url: str = ""
    overwrite: bool = False
    failure_policy: DeliveryFailurePolicy | None = None

    def validate(self) -> None:
        """Raise InvalidJob if the job breaks a rule."""
        _invalid_if_bad(f"job {self.name!r}", lambda: _check(self))


@dataclass(frozen=True, slots=True)
class TriggerEvent:
    """One tick of a managed job: ``fire_at`` is the instant for which it is."""

    name: str
    data: bytes
    type_url: str
    fire_at: datetime


EventHandler: TypeAlias = Callable[..., Any]
"""Takes the event, or the task's context and the event; plain or async. What it raises
is a failed delivery."""


class Runtime:
    """Managed jobs: schedule, get, delete; handlers for their ticks.

    A worker of the app delivers. Each tick goes to one replica that has the handler,
    the next one when that has answered; ticks that were missed are made up for. At
    least once: handlers must bear a repetition. Thread-safe.
    """

    def __init__(self, store: TaskStore, registry: Registry, *, topic: str = TOPIC) -> None:
        self._do = asking(store)
        self._handlers = _Handlers(registry, topic)

    def schedule(self, job: ManagedJob) -> None:
        """Keep a job. One that stands there already, word for word, stays as it is.

        Raises InvalidJob, and ScheduleExists without ``overwrite``.
        """
        carry_out(_scheduled(job, self._handlers.topic), self._do)

    def get(self, name: str) -> ManagedJob:
        """The job of this name. Raises NoScheduleFound, for one that is over, too."""
        return carry_out(_got(name), self._do)

    def delete(self, name: str) -> None:
        """No more ticks; what was delivered goes on. Nothing happens where there is none."""
        carry_out(_deleted(name), self._do)

    def register_handler(self, name: str, handler: EventHandler) -> None:
        """Take the ticks of a job in the workers of this app that are started from now
        on. Raises InvalidJob, HandlerExists."""
        self._handlers.register(name, handler)


class AsyncRuntime:
    """``Runtime`` for event loops."""

    def __init__(self, store: AsyncTaskStore, registry: Registry, *, topic: str = TOPIC) -> None:
        self._do = asking(store)
        self._handlers = _Handlers(registry, topic)

    async def schedule(self, job: ManagedJob) -> None:
        """Like ``Runtime.schedule``."""
        await carry_out_async(_scheduled(job, self._handlers.topic), self._do)

    async def get(self, name: str) -> ManagedJob:
        """Like ``Runtime.get``."""
        return await carry_out_async(_got(name), self._do)

    async def delete(self, name: str) -> None:
        """Like ``Runtime.delete``."""
        await carry_out_async(_deleted(name), self._do)

    def register_handler(self, name: str, handler: EventHandler) -> None:
        """Like ``Runtime.register_handler``."""
        self._handlers.register(name, handler)


# --- jobs in the database -------------------------------------------------


def _scheduled(job: ManagedJob, topic: str) -> Plan[None]:
    job.validate()
    row = yield Ask("schedule", job.name)
    if row is not None and row.state != "finished":
        if row.source != SOURCE or not job.overwrite:
            raise ScheduleExists(f"there is a job {job.name!r} already", {"name": job.name})
        if row.topic == topic and row.task.get("data") == _envelope(job):
            return
    clock = yield Ask("clock")
    spec = _invalid_if_bad(f"job {job.name!r}", lambda: _spec(job, topic, clock))
    yield Ask("put_schedule", job.name, spec, job.overwrite)


def _got(name: str) -> Plan[ManagedJob]:
    row: ScheduleRow | None = yield Ask("schedule", name)
    if row is None or row.source != SOURCE or row.state == "finished":
        raise NoScheduleFound(f"there is no job {name!r}", {"name": name})
    return _job_of(row)


def _deleted(name: str) -> Plan[None]:
    row: ScheduleRow | None = yield Ask("schedule", name)
    if row is not None and row.source == SOURCE:
        yield Ask("delete_schedule", name)


def _spec(job: ManagedJob, topic: str, clock: datetime) -> dict[str, Any]:
    schedule = parse(job.schedule) if job.schedule.strip() else None
    due = _moment(job.due_time, clock, "due_time") if job.due_time else None
    schedule, first = _first_tick(schedule, due, clock)
    if first is None:
        raise BadArgument.of("schedule", "never fires")
    ends = _moment(job.ttl, due or clock, "ttl") if job.ttl else None
    if ends is not None and ends < first:
        raise BadArgument.of("ttl", "must not end before the first tick")
    task = {"topic": topic, "kind": job.name, "data": _envelope(job),
            "retry": _retries(job.failure_policy)}  # fmt: skip
    return {
        "schedule": schedule.text, "next_at": first, "anchor_at": first, "task": task,
        # One after another, however many were missed: each waits for the answer to the last.
        "missed": "all", "serial": True,
        "repeats": job.repeats, "expires_at": ends, "source": SOURCE,
    }  # fmt: skip


def _first_tick(
    schedule: Durable | None, due: datetime | None, clock: datetime
) -> tuple[Durable, datetime | None]:
    if schedule is None:
        once = At(due or clock)
        return once, once.instant
    # A due time that is over means at once, and not all ticks since then.
    return schedule, next_of(schedule, clock) if due is None else max(due, clock)


def _moment(text: str, start: datetime, argument: str) -> datetime:
    try:
        found = _instant_or_interval(text, argument)
        return found if isinstance(found, datetime) else start + found
    except OverflowError:
        raise BadArgument.of(argument, "is out of reach") from None


def _instant_or_interval(text: str, argument: str) -> datetime | timedelta:
    for read in (instant, interval_of):
        try:
            return read(text, argument)
        except BadArgument:
            pass
    raise BadArgument.of(argument, _WHEN)


def _envelope(job: ManagedJob) -> dict[str, Json]:
    """What a tick carries: the data, and the job as it was given, to be got again."""
    policy = job.failure_policy
    return {
        "data": base64.b64encode(job.data).decode(), "type_url": job.data_type_url,
        "job": {
            "schedule": job.schedule, "due_time": job.due_time, "repeats": job.repeats,
            "ttl": job.ttl, "failure_policy": None if policy is None else {
                "mode": str(policy.mode), "max_retries": policy.max_retries,
                "interval": _interval_text(policy.interval),
            },
        },
    }  # fmt: skip


def _job_of(row: ScheduleRow) -> ManagedJob:
    envelope = row.task["data"]
    said = dict(envelope["job"])
    policy = said.pop("failure_policy")
    if policy is not None:
        mode = DeliveryFailureMode(policy["mode"])
        interval = _interval(policy["interval"])
        policy = DeliveryFailurePolicy(mode, policy["max_retries"], interval)
    return ManagedJob(
        row.name, **said, data=base64.b64decode(envelope["data"]),
        data_type_url=envelope["type_url"], failure_policy=policy,
    )  # fmt: skip


# --- rules ----------------------------------------------------------------


def _check(job: ManagedJob) -> None:
    if not isinstance(job, ManagedJob):
        raise BadArgument.of("job", "must be a ManagedJob", job)
    arguments.name(job.name, "name")
    for text in ("schedule", "due_time", "ttl", "data_type_url"):
        arguments.free_text(getattr(job, text), text, 2_000)
    if not isinstance(job.data, bytes):
        raise BadArgument.of("data", "must be bytes", job.data)
    if not isinstance(job.overwrite, bool):
        raise BadArgument.of("overwrite", "must be True or False", job.overwrite)
    _check_times(job)
    _retries(job.failure_policy)


def _check_times(job: ManagedJob) -> None:
    recurs = bool(job.schedule.strip())
    if not recurs and not job.due_time:
        raise BadArgument.of("schedule", "or due_time is needed")
    if recurs:
        parse(job.schedule)
    if job.due_time:
        _instant_or_interval(job.due_time, "due_time")
    if job.ttl:
        _instant_or_interval(job.ttl, "ttl")
        if not recurs:
            raise BadArgument.of("ttl", "needs a schedule")
    if job.repeats is not None:
        arguments.integer(job.repeats, "repeats", 1, _MOST_COUNT)
        if job.repeats > 1 and not recurs:
            raise BadArgument.of("repeats", "above 1 needs a schedule")


def _retries(policy: DeliveryFailurePolicy | None) -> model.RetryPolicy:
    """The retry policy of the tick's task."""
    if policy is None:
        policy = DeliveryFailurePolicy(DeliveryFailureMode.CONSTANT, 3, 1)
    if not isinstance(policy, DeliveryFailurePolicy):
        raise BadArgument.of("failure_policy", "must be a DeliveryFailurePolicy", policy)
    if policy.mode not in [*DeliveryFailureMode]:
        raise BadArgument.of("failure_policy.mode", "must be constant or drop")
    interval = delay(_interval(policy.interval), "failure_policy.interval")
    if policy.mode == DeliveryFailureMode.DROP:
        if policy.max_retries is not None or interval:
            raise BadArgument.of("failure_policy", "drop has no retries and no interval")
        return model.RetryPolicy()
    if policy.max_retries is None:
        attempts = retry.MOST_ATTEMPTS
    else:
        arguments.integer(policy.max_retries, "failure_policy.max_retries", 0, _MOST_COUNT)
        attempts = min(policy.max_retries + 1, retry.MOST_ATTEMPTS)
    return model.RetryPolicy(attempts, interval, interval, multiplier=1.0)


def _interval(value: Duration | str) -> timedelta:
    return interval_of(value, "failure_policy.interval")


def _interval_text(value: Duration | str) -> str:
    return written(_interval(value)) or "0s"


def _invalid_if_bad(what: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except InvalidJob:
        raise
    except BadArgument as error:
        raise InvalidJob(f"{what}: {error.message}", error.detail) from None


# --- delivery -------------------------------------------------------------


class _Handlers:
    """Handlers of jobs, as handlers of tasks: the job's name is the kind."""

    def __init__(self, registry: Registry, topic: str) -> None:
        self._registry, self.topic = registry, arguments.name(topic, "topic")

    def register(self, name: str, handler: EventHandler) -> None:
        kind: str = _invalid_if_bad("handler", lambda: arguments.name(name, "name"))
        if not callable(handler):
            raise InvalidJob.of("handler", "must be callable", handler)
        if kind in self._registry:
            raise HandlerExists(f"{kind!r} has a handler", {"name": kind})
        call = _called_with_event(kind, handler)
        asynchronous = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 (an object with an async __call__)
        )
        mode = Mode.ASYNC if asynchronous else Mode.THREAD
        deliver = _awaiting(call) if asynchronous else _blocking(call)
        self._registry.add(TaskSpec(kind, self.topic, deliver, mode, PayloadReader(deliver, mode)))


_Call: TypeAlias = Callable[[Any, dict[str, Any]], Any]


def _called_with_event(name: str, handler: EventHandler) -> _Call:
    with_context = _takes_two(handler)

    def call(context: SyncTaskContext | TaskContext, envelope: dict[str, Any]) -> Any:
        event = TriggerEvent(
            name, base64.b64decode(envelope["data"]), envelope["type_url"],
            context.fire_at or context.task.created_at,
        )
        return handler(context, event) if with_context else handler(event)

    return call


def _takes_two(handler: EventHandler) -> bool:
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some builtins have none; they get the event
        return False
    for count in (1, 2):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count == 2
    raise InvalidJob.of("handler", "must take the event, or a context and the event")


def _blocking(call: _Call) -> Callable[..., Any]:
    def deliver(context: SyncTaskContext, envelope: dict[str, Any]) -> Any:
        return call(context, envelope)

    return deliver


def _awaiting(call: Callable[[Any, dict[str, Any]], Awaitable[Any]]) -> Callable[..., Any]:
    async def deliver(context: TaskContext, envelope: dict[str, Any]) -> Any:
        return await call(context, envelope)

    return deliver



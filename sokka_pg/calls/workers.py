"""Calls of those who do the work, each under the lease that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

from sokka_pg import durations
from sokka_pg.calls import arguments
from sokka_pg.calls.operators import get_task
from sokka_pg.calls.statement import (
    Call,
    Statement,
    array_text,
    column,
    columns_of,
    plain,
    plain_array_text,
)
from sokka_pg.durations import Duration, interval_text
from sokka_pg.errors import AlreadyDone, BadArgument, Refused
from sokka_pg.model import (
    CheckpointSaved,
    ExtendVerdict,
    Json,
    Lease,
    LeasedTask,
    LeaseState,
    SettledBatch,
    Settlement,
    SettleVerdict,
    Status,
    Task,
    TaskOutcome,
)
from sokka_pg.payload import SMALL_LIMIT, decode, encode, encode_error

T = TypeVar("T")

_PROOF = (("task_id", "uuid"), ("pid", "text"), ("token", "bigint"))
_BATCH = (("pid", "text"), ("task_ids", "uuid[]"), ("tokens", "bigint[]"))
SETTLE = (*_BATCH, ("verbs", "text[]"), ("args", "jsonb[]"))
_VERDICT = (column("task_id"), column("verdict"), column("detail"))
_LEASED = columns_of(LeasedTask)
_STATE = columns_of(LeaseState)
_OUTCOME = columns_of(TaskOutcome)


def _leased(rows: list[list[Any]]) -> list[LeasedTask]:
    return [LeasedTask(*row) for row in rows]


def _leased_or_none(rows: list[list[Any]]) -> LeasedTask | None:
    return LeasedTask(*rows[0]) if rows else None


def _one(kind: Callable[..., T]) -> Callable[[list[list[Any]]], T]:
    def decode(rows: list[list[Any]]) -> T:
        (row,) = rows
        return kind(*row)

    return decode


# Reserving


def reserve_task(topic: str, pid: str, lease: Duration | None = None) -> Call[LeasedTask | None]:
    params = {"topic": arguments.name(topic, "topic"), "pid": arguments.name(pid, "pid")}
    return Call(_RESERVE_TASK, {**params, "lease": arguments.lease_time(lease)}, _leased_or_none)


_RESERVE_TASK = Statement(
    "reserve_task", _LEASED, (("topic", "text"), ("pid", "text"), ("lease", "interval"))
)


def reserve_tasks(
    topics: Sequence[str],
    pid: str,
    max_tasks: int = 1,
    lease: Duration | None = None,
    limits: Sequence[int] | None = None,
) -> Call[list[LeasedTask]]:
    arguments.integer(max_tasks, "max_tasks", 1, arguments.MOST_MEMBERS)
    more = wanted(arguments.topics(topics), max_tasks, lease, limits)
    params = {"pid": arguments.name(pid, "pid"), **more}
    return Call(_RESERVE_TASKS, params, _leased)


WANTED = (
    ("topics", "text[]"),
    ("max_tasks", "integer"),
    ("lease", "interval"),
    ("limits", "integer[]"),
)
_RESERVE_TASKS = Statement("reserve_tasks", _LEASED, (("pid", "text"), *WANTED))


def wanted(
    names: list[str], max_tasks: int, lease: Duration | None, limits: Sequence[int] | None
) -> dict[str, str | None]:
    """What to reserve, as it is sent; ``names`` are those of ``arguments.topics``."""
    counts = None if limits is None else arguments.members(limits, "limits")
    if counts is not None:
        arguments.same_length(len(names), counts, "limits")
        counts = [arguments.integer(n, "limits", 0, arguments.MOST_MEMBERS) for n in counts]
    return {
        "topics": array_text(names),
        "max_tasks": arguments.integer(max_tasks, "max_tasks", 0, arguments.MOST_MEMBERS),
        "lease": arguments.lease_time(lease),
        "limits": None if counts is None else plain_array_text(counts),
    }


def acquire_lease(task_id: UUID | str, pid: str, lease: Duration | None = None) -> Call[LeasedTask]:
    params = {"task_id": str(arguments.uuid(task_id)), "pid": arguments.name(pid, "pid")}
    return Call(_ACQUIRE, {**params, "lease": arguments.lease_time(lease)}, _one(LeasedTask))


_ACQUIRE = Statement(
    "acquire_lease", _LEASED, (("task_id", "uuid"), ("pid", "text"), ("lease", "interval"))
)


# Keeping


def extend_lease(lease: Lease, duration: Duration | None = None) -> Call[LeaseState]:
    return _keep(_EXTEND, lease, duration)


def renew_lease(lease: Lease, duration: Duration | None = None) -> Call[LeaseState]:
    return _keep(_RENEW, lease, duration)


_EXTEND = Statement("extend_lease", _STATE, (*_PROOF, ("lease", "interval")))
_RENEW = Statement("renew_lease", _STATE, (*_PROOF, ("lease", "interval")))


def _keep(statement: Statement, lease: Lease, duration: Duration | None) -> Call[LeaseState]:
    params = arguments.proof_params(lease)
    params["lease"] = arguments.lease_time(duration)
    return Call(statement, params, _one(LeaseState), repeatable=True)


def extend_leases(
    pid: str, leases: Iterable[tuple[UUID, int]], duration: Duration | None = None
) -> Call[list[ExtendVerdict]]:
    params = _batch(pid, arguments.members(leases, "leases"))
    params["lease"] = arguments.lease_time(duration)
    return Call(
        _EXTEND_LEASES,
        params,
        lambda rows: [ExtendVerdict(*row) for row in rows],
        repeatable=True,
    )


_EXTEND_LEASES = Statement(
    "extend_leases",
    columns_of(ExtendVerdict),
    (*_BATCH, ("lease", "interval")),
    suffix="order by r.ord",
)


def _batch(pid: str, leases: Sequence[tuple[UUID, int]]) -> dict[str, str | None]:
    return {
        "pid": arguments.name(pid, "pid"),
        "task_ids": plain_array_text(
            arguments.uuid(task_id, "task_ids").hex for task_id, _ in leases
        ),
        "tokens": plain_array_text(arguments.token(token, "tokens") for _, token in leases),
    }


# Recording


def report_progress(lease: Lease, progress: Json) -> Call[int]:
    params = arguments.proof_params(lease)
    params["progress"] = encode(progress, "progress", SMALL_LIMIT)
    return Call(_PROGRESS, params, _one(int))


_PROGRESS = Statement("report_progress", (plain("record_ver"),), (*_PROOF, ("progress", "jsonb")))


def save_checkpoint(lease: Lease, checkpoint: Json) -> Call[CheckpointSaved]:
    params = arguments.proof_params(lease)
    params["checkpoint"] = encode(checkpoint, "checkpoint")
    return Call(_CHECKPOINT, params, _one(CheckpointSaved))


_CHECKPOINT = Statement(
    "save_checkpoint", columns_of(CheckpointSaved), (*_PROOF, ("checkpoint", "jsonb"))
)


# Ending


def terminate(lease: Lease, result: Json = None) -> Call[TaskOutcome]:
    params = arguments.proof_params(lease)
    params["result"] = None if result is None else encode(result, "result")
    return _ending(_TERMINATE, params, lease, Status.TERMINATED)


def fail(lease: Lease, error: str | Mapping[str, Json] | BaseException) -> Call[TaskOutcome]:
    params = arguments.proof_params(lease)
    params["error"] = text = encode_error(error)
    return _ending(_FAIL, params, lease, Status.FAILED, decode(text)["code"])


def snooze(lease: Lease, delay: Duration) -> Call[TaskOutcome]:
    params = arguments.proof_params(lease)
    params["snooze"] = interval_text(durations.delay(delay, "delay"))
    return Call(_SNOOZE, params, _one(TaskOutcome))


def retry(
    lease: Lease,
    error: str | Mapping[str, Json] | BaseException,
    delay: Duration | None = None,
) -> Call[TaskOutcome]:
    wait = durations.optional_delay(delay, "delay")
    params = arguments.proof_params(lease)
    params["error"] = encode_error(error)
    params["delay"] = None if wait is None else interval_text(wait)
    return Call(_RETRY, params, _one(TaskOutcome))


def wait_for_task(lease: Lease, waits_for: UUID | str) -> Call[TaskOutcome]:
    params = arguments.proof_params(lease)
    params["waits_for"] = str(arguments.uuid(waits_for, "waits_for"))
    return Call(_WAIT, params, _one(TaskOutcome))


def release_lease(lease: Lease) -> Call[TaskOutcome]:
    return Call(_RELEASE, arguments.proof_params(lease), _one(TaskOutcome))


_TERMINATE = Statement("terminate_task", _OUTCOME, (*_PROOF, ("result", "jsonb")))
_FAIL = Statement("fail_task", _OUTCOME, (*_PROOF, ("error", "jsonb")))
_SNOOZE = Statement("snooze_task", _OUTCOME, (*_PROOF, ("snooze", "interval")))
_RETRY = Statement("retry_task", _OUTCOME, (*_PROOF, ("error", "jsonb"), ("delay", "interval")))
_WAIT = Statement("wait_for_task", _OUTCOME, (*_PROOF, ("waits_for", "uuid")))
_RELEASE = Statement("release_lease", _OUTCOME, _PROOF)


def _ending(
    statement: Statement,
    params: dict[str, str | None],
    lease: Lease,
    end: Status,
    code: str | None = None,
) -> Call[TaskOutcome]:
    def read_back(refused: Refused) -> Call[TaskOutcome] | None:
        if not isinstance(refused, AlreadyDone) or not ended_by(refused.detail, lease, end):
            return None
        if refused.detail.get("error_code") != code:
            # Failed under our lease, but by a sweep or a cancellation.
            return None
        found = get_task(lease.task_id)
        return Call(found.statement, found.params, _outcome_of_task)

    return Call(statement, params, _one(TaskOutcome), repeatable=True, after_loss=read_back)


def ended_by(detail: Mapping[str, Any] | None, lease: Lease, end: Status) -> bool:
    """Whether a refusal's detail shows that this very lease brought the task to ``end``."""
    return detail is not None and (
        detail.get("pid") == lease.pid
        and detail.get("token") == lease.token
        and detail.get("status") == end
    )


def _outcome_of_task(rows: list[list[Any]]) -> TaskOutcome:
    task = Task(*rows[0])
    return TaskOutcome(task.status, task.record_ver, task.run_at)


# Many at once


def terminate_many(
    pid: str,
    leases: Iterable[tuple[UUID, int]],
    results: Sequence[Json] | None = None,
) -> Call[list[SettleVerdict]]:
    found = arguments.members(leases, "leases")
    params = _batch(pid, found)
    params["results"] = None
    if results is not None:
        ends = arguments.members(results, "results")
        arguments.same_length(len(found), ends, "results")
        params["results"] = array_text(
            None if end is None else encode(end, f"results[{i}]") for i, end in enumerate(ends)
        )
    return Call(_TERMINATE_TASKS, params, _verdicts)


_TERMINATE_TASKS = Statement(
    "terminate_tasks", _VERDICT, (*_BATCH, ("results", "jsonb[]")), suffix="order by r.ord"
)


def settle_tasks(pid: str, settlements: Iterable[Settlement]) -> Call[list[SettleVerdict]]:
    return Call(_SETTLE_TASKS, _settled(pid, settlements), _verdicts)


_SETTLE_TASKS = Statement("settle_tasks", _VERDICT, SETTLE, suffix="order by r.ord")


def settle_and_reserve(
    pid: str,
    settlements: Iterable[Settlement],
    topics: Sequence[str],
    max_tasks: int = 1,
    lease: Duration | None = None,
    limits: Sequence[int] | None = None,
) -> Call[SettledBatch]:
    # No topics: the call only settles.
    names = arguments.topics(topics) if topics else []
    params = {**_settled(pid, settlements), **wanted(names, max_tasks, lease, limits)}
    return Call(_SETTLE_AND_RESERVE, params, _settled_batch)


_SETTLE_AND_RESERVE = Statement(
    "settle_and_reserve",
    (*_VERDICT, *columns_of(LeasedTask, inside="lease")),
    (*SETTLE, *WANTED),
    suffix="order by r.ord",
)


def _verdicts(rows: list[list[Any]]) -> list[SettleVerdict]:
    return [SettleVerdict(*row) for row in rows]


def _settled_batch(rows: list[list[Any]]) -> SettledBatch:
    batch = SettledBatch([], [])
    for row in rows:
        if row[1] == "reserved":
            batch.leases.append(LeasedTask(*row[3:]))
        else:
            batch.verdicts.append(SettleVerdict(*row[:3]))
    return batch


def _settled(pid: str, settlements: Iterable[Settlement]) -> dict[str, str | None]:
    found: list[Settlement] = arguments.members(settlements, "settlements")
    params = _batch(pid, [(each.task_id, each.token) for each in found])
    params["verbs"] = plain_array_text(_verb(each) for each in found)
    params["args"] = array_text(settlement_text(each) for each in found)
    return params


def _verb(settlement: AnySettlement) -> str:
    if settlement.verb not in _ARGS:
        raise BadArgument.of("verb", f"must be one of {', '.join(_ARGS)}")
    return settlement.verb


class AnySettlement(Protocol):
    """A verb and its argument."""

    @property
    def verb(self) -> str: ...
    @property
    def arg(self) -> Any: ...


def settlement_text(settlement: AnySettlement) -> str | None:
    """The JSON text of a settlement's argument. Raises BadArgument."""
    return _ARGS[_verb(settlement)](settlement.arg)


def _retry_text(arg: Any) -> str:
    if not isinstance(arg, Mapping) or "error" not in arg:
        raise BadArgument.of("retry", "needs an object with error and delay", arg)
    wait = durations.optional_delay(arg.get("delay"), "delay")
    seconds = "null" if wait is None else repr(wait.total_seconds())
    return f'{{"error": {encode_error(arg["error"])}, "delay": {seconds}}}'


def _snooze_text(arg: Any) -> str:
    return repr(durations.delay(arg, "delay").total_seconds())


def _release_text(arg: Any) -> None:
    if arg is not None:
        raise BadArgument.of("release", "takes no argument", arg)


def _wait_text(arg: Any) -> str:
    return f'"{arguments.uuid(arg, "wait")}"'


_ARGS: Mapping[str, Callable[[Any], str | None]] = {
    "terminate": lambda arg: None if arg is None else encode(arg, "result"),
    "fail": encode_error,
    "retry": _retry_text,
    "snooze": _snooze_text,
    "release": _release_text,
    "wait": _wait_text,
}

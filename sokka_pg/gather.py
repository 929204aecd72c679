"""Fan-outs as values: what is asked of many candidates, and what they answered.

Pure: requests are checked when they are made, turned into the arguments of the
store's verbs, and what the store then says of a join is turned into results.

A candidate that had not answered when the join was decided has no answer, even
if it gives one later: whoever reads the results again reads the same ones. Its
failure then has the code ``cancelled``, or ``deadline``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import UUID

from sokka_pg import durations, errors
from sokka_pg import retry as retries
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument
from sokka_pg.model import Join, JoinResult, Json, RetryPolicy, Status, Task

MOST_CANDIDATES = 10_000
POLICIES = ("settled", "all", "any", "first_success", "quorum")


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """Why a task has no result. ``retryable`` is what the one who failed it says."""

    code: str
    message: str
    retryable: bool = False
    details: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _text(self.code, "code")
        if not isinstance(self.message, str):
            raise BadArgument.of("message", "must be a str", self.message)
        if not isinstance(self.retryable, bool):
            raise BadArgument.of("retryable", "must be a bool", self.retryable)
        if not isinstance(self.details, Mapping):
            raise BadArgument.of("details", "must be a mapping", self.details)

    @classmethod
    def of_error(cls, error: Mapping[str, Json] | None) -> TaskFailure:
        """The failure that a stored error object tells of."""
        found, details = error or {}, (error or {}).get("details")
        return cls(
            str(found.get("code") or "error"), str(found.get("message") or ""),
            found.get("retryable") is True, details if isinstance(details, Mapping) else {},
        )

    def to_error(self) -> dict[str, Json]:
        """The error object that stores it."""
        found: dict[str, Json] = {"code": self.code, "message": self.message}
        if self.retryable:
            found["retryable"] = True
        if self.details:
            found["details"] = dict(self.details)
        return found

    def as_exception(self, task_id: UUID) -> errors.TaskFailed:
        """``TaskCancelled`` or ``TaskFailed``, for a caller who wants a result."""
        return errors.TaskFailed.of(task_id, self.to_error())


@dataclass(frozen=True, slots=True)
class Policy:
    """When a join is decided. ``needed`` successes, for a quorum only."""

    name: str
    needed: int | None = None

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise BadArgument.of("policy", f"must be one of {', '.join(POLICIES)}")
        if self.name == "quorum":
            _whole(self.needed, "needed", 0, MOST_CANDIDATES)
        elif self.needed is not None:
            raise BadArgument.of("needed", "goes with a quorum only", self.needed)

    @classmethod
    def settled(cls) -> Policy:
        """All have an end, whatever it is."""
        return cls("settled")

    @classmethod
    def all(cls) -> Policy:
        """All succeed; the first failure decides against it."""
        return cls("all")

    @classmethod
    def any(cls) -> Policy:
        """The first answer decides, good or bad."""
        return cls("any")

    @classmethod
    def first_success(cls) -> Policy:
        """One success; it fails when all have failed."""
        return cls("first_success")

    @classmethod
    def quorum(cls, needed: int) -> Policy:
        """``needed`` successes; it fails as soon as they are out of reach."""
        return cls("quorum", needed)


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """What became of one candidate. ``index`` is its place in the request, from 0.
    It has a ``result`` (which may be None) or a ``failure``."""

    index: int
    task_id: UUID
    status: Status
    result: Json = None
    failure: TaskFailure | None = None

    @property
    def succeeded(self) -> bool:
        return self.failure is None


Reducer: TypeAlias = Callable[[Sequence[CandidateResult]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a fan-out may say beside its candidates."""

    kind: str | None = None
    topic: str | None = None
    task_id: UUID | str | None = None
    max_running: int | None = None
    deadline: Duration | None = None
    timeout: Duration | None = None
    retry: RetryPolicy | Mapping[str, Any] | int | None = None
    priority: int | None = None
    metadata: Mapping[str, str] | None = None
    max_losses: int | None = None
    sub_topic: str | None = None


@dataclass(frozen=True, slots=True)
class FanOutRequest(_Asked):
    """One task for each candidate, and all of their answers, in order.

    ``candidates``: 0 to 10,000 payloads. ``kind`` and ``topic``: who works on
    them. ``task_id``: of the whole, for a caller who may repeat the request.
    ``max_running``: how many at a time. ``deadline``: how long all of it may
    take; ``timeout``: one attempt of a candidate. ``retry``, ``priority``,
    ``metadata`` (headers), ``max_losses`` and ``sub_topic`` are those of the
    candidates. Durations are ``timedelta`` or seconds. Raises BadArgument.
    """

    candidates: Sequence[Json] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", _members(self.candidates))
        _check(self)

    @property
    def policy(self) -> Policy:
        """A fan-out waits for all and takes every end."""
        return Policy.settled()

    @property
    def then(self) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class ScatterGatherRequest(_Asked):
    """One task for each candidate, until ``policy`` is decided; the rest is cancelled.

    The answers become one value: by ``reducer``, called by the one who waits
    with the results of all candidates, in order; or by ``then``, the kind of a
    task that a worker runs once the policy is satisfied. Not both. All else is
    as in ``FanOutRequest``. Raises BadArgument.
    """

    candidates: Sequence[Json] = ()
    policy: Policy = Policy("all")
    reducer: Reducer | None = None
    then: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", _members(self.candidates))
        _check(self)
        if not isinstance(self.policy, Policy):
            raise BadArgument.of("policy", "must be a Policy", self.policy)
        if (self.policy.needed or 0) > len(self.candidates):
            raise BadArgument.of("needed", "must be at most the number of candidates")
        if self.reducer is not None and not callable(self.reducer):
            raise BadArgument.of("reducer", "must be callable", self.reducer)
        if self.then is not None:
            _text(self.then, "then")
            if self.reducer is not None:
                raise BadArgument.of("then", "goes without a reducer")


Request: TypeAlias = FanOutRequest | ScatterGatherRequest


@dataclass(frozen=True, slots=True)
class FanOutResult:
    """The answers of all candidates, in the order of the request."""

    task_id: UUID
    results: tuple[CandidateResult, ...]
    deadline_passed: bool = False

    @property
    def succeeded(self) -> int:
        """How many have a result."""
        return sum(each.succeeded for each in self.results)

    @property
    def failed(self) -> int:
        """How many have none."""
        return len(self.results) - self.succeeded

    def values(self) -> list[Json]:
        """The results, in order. Raises TaskFailed for the first candidate without one."""
        for each in self.results:
            if each.failure is not None:
                raise each.failure.as_exception(each.task_id)
        return [each.result for each in self.results]


@dataclass(frozen=True, slots=True)
class ScatterGatherResult:
    """What was gathered.

    ``satisfied``: whether the policy was. ``value``: what the reducer made of it;
    without one, the list of the results that there are. ``failure``: why there
    is no value. ``late``: answers that came after the decision, and count for
    nothing.
    """

    task_id: UUID
    satisfied: bool
    results: tuple[CandidateResult, ...]
    value: Any = None
    failure: TaskFailure | None = None
    late: int = 0


# --- on the way to the store ------------------------------------------------


def specs(
    request: Request, kind: str | None = None, topic: str | None = None
) -> list[dict[str, Any]]:
    """The candidates as ``create_tasks`` and ``fan_out`` take them; ``kind`` and
    ``topic`` fill in what the request leaves open. Raises BadArgument without a kind
    or a topic."""
    common = {
        "topic": request.topic or topic, "kind": request.kind or kind,
        "sub_topic": request.sub_topic, "timeout": request.timeout, "retry": request.retry,
        "priority": request.priority, "headers": request.metadata,
        "max_losses": request.max_losses,
    }
    for name in ("kind", "topic"):
        if common[name] is None:
            raise BadArgument.of(name, "is required")
    given = {name: value for name, value in common.items() if value is not None}
    return [{**given, "data": candidate} for candidate in request.candidates]


def join_options(request: Request, topic: str | None = None) -> dict[str, Any]:
    """What ``fan_out`` takes beside the specs. The join has the candidates' topic,
    priority and headers; one that has a reducer, their retry and timeout too."""
    found: dict[str, Any] = {
        "policy": request.policy.name, "needed": request.policy.needed,
        "max_running": request.max_running, "deadline": request.deadline,
        "topic": request.topic or topic, "sub_topic": request.sub_topic,
        "priority": request.priority, "headers": request.metadata,
    }
    if request.then is not None:
        found |= {"kind": request.then, "retry": request.retry, "timeout": request.timeout}
    return {name: value for name, value in found.items() if value is not None}


# --- on the way back --------------------------------------------------------


def candidate_results(join: Join, rows: Iterable[JoinResult]) -> tuple[CandidateResult, ...]:
    """The candidates' answers, as far as the join has taken note of them."""
    return tuple(_candidate_result(join, row) for row in rows)


def fan_out_result(join: Join, rows: Iterable[JoinResult]) -> FanOutResult:
    """The answers of a join that is decided. Raises TaskCancelled when it was cancelled."""
    if join.outcome == "cancelled":
        raise TaskFailure("cancelled", "the fan-out was cancelled").as_exception(join.task_id)
    return FanOutResult(
        join.task_id, candidate_results(join, rows), join.outcome == "deadline"
    )


def scatter_gather_result(
    task: Task, join: Join, rows: Iterable[JoinResult],
    reducer: Reducer | None = None, then: str | None = None,
) -> ScatterGatherResult:
    """The outcome of a join that is at its end; ``task`` is the join as a task.
    ``reducer`` is called if the policy was satisfied, and may raise; ``then`` says
    that the join's own result is the value."""
    results = candidate_results(join, rows)
    satisfied = join.outcome == "satisfied" or (
        join.outcome == "deadline" and join.policy == "settled"
    )
    value, failure = None, None
    if task.status is not Status.TERMINATED:
        failure = TaskFailure.of_error(task.error)
    elif reducer is not None:
        value = reducer(results)
    elif then is not None:
        value = task.result
    else:
        value = [each.result for each in results if each.succeeded]
    return ScatterGatherResult(join.task_id, satisfied, results, value, failure, join.late)


def _candidate_result(join: Join, row: JoinResult) -> CandidateResult:
    index = row.candidate - 1
    if not _answered_in_time(join, row):
        return CandidateResult(index, row.task_id, row.status, None, _unanswered(join))
    if row.status is Status.TERMINATED:
        return CandidateResult(index, row.task_id, row.status, row.result)
    return CandidateResult(index, row.task_id, row.status, None, TaskFailure.of_error(row.error))


def _answered_in_time(join: Join, row: JoinResult) -> bool:
    if row.finished_at is None:
        return False
    return join.decided_at is None or row.finished_at <= join.decided_at


def _unanswered(join: Join) -> TaskFailure:
    if join.decided_at is None:
        return TaskFailure("pending", "it has not answered yet")
    if join.outcome == "deadline":
        return TaskFailure("deadline", "it had not answered at the deadline")
    return TaskFailure("cancelled", "the join was decided without its answer")


# --- checks -----------------------------------------------------------------


def _members(candidates: Any) -> tuple[Json, ...]:
    if isinstance(candidates, str | bytes | Mapping):
        raise BadArgument.of("candidates", "must be a sequence", candidates)
    try:
        found = tuple(candidates)
    except TypeError:
        raise BadArgument.of("candidates", "must be a sequence", candidates) from None
    if len(found) > MOST_CANDIDATES:
        raise BadArgument.of("candidates", f"must be at most {MOST_CANDIDATES}")
    return found


_BOUNDS = (
    ("max_running", 1, MOST_CANDIDATES), ("priority", 0, 9), ("max_losses", 0, 2**31 - 1)
)


def _check(asked: Request) -> None:
    for name in ("kind", "topic", "sub_topic"):
        value = getattr(asked, name)
        if value is not None:
            _text(value, name)
    for name, least, most in _BOUNDS:
        value = getattr(asked, name)
        if value is not None:
            _whole(value, name, least, most)
    if asked.deadline is not None and durations.delay(asked.deadline, "deadline") <= timedelta(0):
        raise BadArgument.of("deadline", "must be longer than 0")
    if asked.timeout is not None:
        durations.timeout(asked.timeout)
    retries.policy_from(asked.retry)
    if asked.task_id is not None:
        object.__setattr__(asked, "task_id", _uuid(asked.task_id))
    _check_metadata(asked.metadata)


def _check_metadata(metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, Mapping) or not all(
        isinstance(text, str) for pair in metadata.items() for text in pair
    ):
        raise BadArgument.of("metadata", "must be a mapping of str to str", metadata)


def _uuid(value: object) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError):
        raise BadArgument.of("task_id", "must be a UUID", value) from None


def _text(value: object, name: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise BadArgument.of(name, "must be a str that is not blank", value)


def _whole(value: object, name: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadArgument.of(name, "must be an int", value)
    if not least <= value <= most:
        raise BadArgument.of(name, f"must be from {least} to {most}")

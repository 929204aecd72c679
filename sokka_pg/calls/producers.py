"""Calls of those who bring work: create_task and create_tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii as json_string
from typing import Any, TypedDict
from uuid import UUID

from typing_extensions import Unpack

from sokka_pg import durations, retry
from sokka_pg.calls import arguments
from sokka_pg.calls.operators import get_task
from sokka_pg.calls.statement import Call, Column, Statement, column, columns_of
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument, Refused, TaskAlreadyExists
from sokka_pg.model import CreatedId, CreatedTask, RetryPolicy, Task
from sokka_pg.payload import DATA_LIMIT, decode, encode, encode_members


class TaskOptions(TypedDict, total=False):
    """What may be said of a new task beside its topic and data; all optional."""

    kind: str
    """The name of its handler."""
    sub_topic: str
    """A label for listings."""
    task_id: UUID | str | None
    """Given by a caller who wants to repeat the call safely."""
    task_group_id: UUID | str | None
    """Tasks that belong together; default: the task itself."""
    priority: int
    """0 (first) to 9; default 5."""
    run_at: datetime | None
    """Not before this instant (aware)."""
    max_attempts: int | None
    """How many attempts may fail, the first included; default 1."""
    retry: RetryPolicy | Mapping[str, Any] | int | None
    """The waits between attempts; an int is max_attempts alone."""
    timeout: Duration | None
    """The longest one attempt may take."""
    expires_at: datetime | None
    """A task that still waits then fails with code ``expired``."""
    unique_key: str | None
    """At most one unfinished task of the topic holds it."""
    headers: Mapping[str, str] | None
    """Strings that travel with the task, for tracing and the like."""
    max_losses: int
    """How many leases may be lost before the task fails; default 5."""
    on_conflict: str
    """What a taken unique_key does: ``existing`` (default) or ``error``."""
    parent_task_id: UUID | str | None
    """The live task that it stands below: cancelled with it."""


_TYPES = {
    "topic": "text", "data": "jsonb", "kind": "text", "sub_topic": "text", "task_id": "uuid",
    "task_group_id": "uuid", "priority": "integer", "run_at": "timestamptz",
    "max_attempts": "integer", "retry": "jsonb", "timeout": "interval",
    "expires_at": "timestamptz", "unique_key": "text", "headers": "jsonb",
    "max_losses": "integer", "on_conflict": "text", "parent_task_id": "uuid",
}  # fmt: skip
_JSON = frozenset({"data", "retry", "headers"})
_place = {name: place for place, name in enumerate(_TYPES)}.__getitem__


def create_task(
    topic: str,
    data: object = None,
    *,
    max_data_bytes: int = DATA_LIMIT,
    **options: Unpack[TaskOptions],
) -> Call[CreatedTask]:
    params = _params({"topic": topic, "data": data, **options}, max_data_bytes)
    task_id = params.get("task_id")
    return Call(
        _create_statement(tuple(params)),
        params,
        _created,
        repeatable=task_id is not None,
        after_loss=None if task_id is None else _exists_now(UUID(task_id)),
    )


def create_tasks(
    specs: Iterable[Mapping[str, Any]], *, max_data_bytes: int = DATA_LIMIT
) -> Call[list[CreatedId]]:
    found = arguments.members(specs, "specs")
    return Call(_CREATE_TASKS, {"specs": specs_text(found, max_data_bytes)}, _created_ids)


def _created_ids(rows: list[Any]) -> list[CreatedId]:
    return [CreatedId(*row) for row in rows]


_IDS = (column("task_id"), column("created"))
_CREATE_TASKS = Statement("create_tasks", _IDS, (("specs", "jsonb"),), suffix="order by r.ord")


@lru_cache(maxsize=512)
def _create_statement(names: tuple[str, ...]) -> Statement:
    columns: tuple[Column, ...] = (*columns_of(Task), column("created"))
    return Statement("create_task", columns, tuple((name, _TYPES[name]) for name in names))


def _created(rows: list[list[Any]]) -> CreatedTask:
    (row,) = rows
    return CreatedTask(Task(*row[:-1]), row[-1])


def _exists_now(task_id: UUID) -> Callable[[Refused], Call[CreatedTask] | None]:
    def read_back(refused: Refused) -> Call[CreatedTask] | None:
        if not isinstance(refused, TaskAlreadyExists):
            return None
        found = get_task(task_id)
        return Call(found.statement, found.params, lambda rows: CreatedTask(Task(*rows[0]), True))

    return read_back


# Specs that are looked at together: one of them that is unlike the others, or whose
# payload has to be looked at more closely, takes only these along on the long way.
TOGETHER = 100


def specs_text(
    specs: Sequence[object], max_data_bytes: int, without: frozenset[str] = frozenset()
) -> str:
    """The JSON array of these specs, which may not name the words of ``without``.
    Raises BadArgument with the ``position`` of the spec, from 1."""
    parts = (
        members_text(specs[i : i + TOGETHER], i + 1, max_data_bytes, without)
        for i in range(0, len(specs), TOGETHER)
    )
    return f"[{','.join(parts)}]"


def members_text(
    specs: Sequence[object], first: int, max_data_bytes: int, without: frozenset[str] = frozenset()
) -> str:
    """The members of such an array; ``first``: the position of the first one."""
    shared = Alike.found(specs)
    around = None if shared is None else shared.options_sent(max_data_bytes, without)
    if shared is not None and around is not None:
        quick = encode_members(shared.data, max_data_bytes, around)
        if quick is not None:
            return quick
    texts = (
        _spec_text(i, spec, max_data_bytes, without) for i, spec in enumerate(specs, start=first)
    )
    return ",".join(texts)


_MISSING = object()


@dataclass(frozen=True, slots=True)
class Alike:
    """Specs that differ in their data alone: nearly all that are brought in bulk."""

    options: dict[str, Any]
    data: list[object]

    @classmethod
    def found(cls, specs: Sequence[object], like: Alike | None = None) -> Alike | None:
        """These specs, if they are alike (and as those of ``like``); None if in doubt."""
        first = specs[0]
        if type(first) is not dict or "data" not in first:
            return None
        options = {name: value for name, value in first.items() if name != "data"}
        if like is not None:
            if not _all_same(like.options.items(), options) or len(options) != len(like.options):
                return None
            options = like.options
        size, same, data = len(first), options.items(), []
        for spec in specs:
            if type(spec) is not dict or len(spec) != size or not _all_same(same, spec):
                return None
            payload = spec.get("data", _MISSING)
            if payload is _MISSING:
                return None
            data.append(payload)
        return cls(options, data)

    def options_sent(
        self, max_data_bytes: int, without: frozenset[str] = frozenset()
    ) -> dict[str, Any] | None:
        """The options as members of a JSON object; None if something is wrong with them,
        which is for the long way to tell."""
        try:
            params = _params(self.options, max_data_bytes, without)
        except BadArgument:
            return None
        return {name: decode(text) if name in _JSON else text for name, text in params.items()}


def _all_same(options: Iterable[tuple[str, object]], spec: Mapping[str, object]) -> bool:
    """Not by ``==`` alone: 1 is True there, and one of them is refused."""
    for name, value in options:
        other = spec.get(name, _MISSING)
        if other is not value and not (type(other) is str is type(value) and other == value):
            return False
    return True


def option_text(name: str, value: object) -> str | None:
    """One option of a task as it is sent; None stands for the default. Raises BadArgument."""
    text: str | None = None if value is None else _CHECKS[name](value)
    return text


def _spec_text(
    position: int, spec: object, max_data_bytes: int, without: frozenset[str]
) -> str:
    if not isinstance(spec, Mapping):
        raise BadArgument.of(f"specs[{position}]", "must be a mapping", spec)
    if "topic" not in spec:
        raise BadArgument.of(f"specs[{position}].topic", "is required")
    try:
        params = _params(spec, max_data_bytes, without)
    except BadArgument as refused:
        raise BadArgument(
            f"specs[{position}].{refused.message}", {**refused.detail, "position": position}
        ) from None
    members = [
        f'"{name}":{text if name in _JSON else json_string(text or "")}'
        for name, text in params.items()
    ]
    return "{" + ",".join(members) + "}"


def _params(
    given: Mapping[str, Any], max_data_bytes: int, without: frozenset[str] = frozenset()
) -> dict[str, str | None]:
    """The arguments that were given, as text; None counts as not given."""
    if not _TYPES.keys() >= given.keys():
        argument = min(map(str, given.keys() - _TYPES.keys()))
        raise BadArgument.of(argument, "is no argument of create_task")
    if without:
        for argument in sorted(given.keys() & without):
            raise BadArgument.of(argument, "is not for the candidates of a fan-out")
    if given.get("topic") is None:
        raise BadArgument.of("topic", "is required")
    params: dict[str, str | None] = {}
    # in one order, whatever the caller's: the statement is made by their names
    for name in sorted(given, key=_place) if len(given) > 1 else given:
        value = given[name]
        if name == "data":
            if value is not None:
                params[name] = encode(value, "data", max_data_bytes)
        elif value is not None:
            params[name] = _CHECKS[name](value)
    return params


def _retry(value: Any) -> str:
    policy = retry.policy_from(value)
    return encode(policy and retry.to_json(policy), "retry")


def _on_conflict(value: Any) -> str:
    if value not in ("existing", "error"):
        raise BadArgument.of("on_conflict", "must be 'existing' or 'error'")
    return str(value)


_CHECKS: Mapping[str, Any] = {
    "topic": lambda value: arguments.name(value, "topic"),
    "kind": lambda value: arguments.name(value, "kind"),
    "sub_topic": lambda value: arguments.name(value, "sub_topic"),
    "task_id": lambda value: str(arguments.uuid(value)),
    "task_group_id": lambda value: str(arguments.uuid(value, "task_group_id")),
    "priority": lambda value: arguments.integer(value, "priority", 0, 9),
    "run_at": lambda value: durations.instant(value, "run_at").isoformat(),
    "max_attempts": lambda value: arguments.integer(value, "max_attempts", 0, arguments.MOST_INT),
    "retry": _retry,
    "timeout": lambda value: durations.interval_text(durations.timeout(value)),
    "expires_at": lambda value: durations.instant(value, "expires_at").isoformat(),
    "unique_key": arguments.unique_key,
    "headers": arguments.headers,
    "max_losses": lambda value: arguments.integer(value, "max_losses", 0, arguments.MOST_INT),
    "on_conflict": _on_conflict,
    "parent_task_id": lambda value: str(arguments.uuid(value, "parent_task_id")),
}

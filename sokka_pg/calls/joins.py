"""Calls about fan-outs: tasks that stand for many others, and end by their ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, TypedDict
from uuid import UUID

from typing_extensions import Unpack

from sokka_pg import durations
from sokka_pg.calls import arguments
from sokka_pg.calls.arguments import Proof
from sokka_pg.calls.producers import option_text, specs_text
from sokka_pg.calls.statement import Call, Statement, columns_of
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument
from sokka_pg.model import FanOutCreated, Join, JoinResult, RetryPolicy, TreeNode
from sokka_pg.payload import DATA_LIMIT, encode

POLICIES = ("settled", "all", "any", "first_success", "quorum")
# What the fan-out itself says for its candidates, or what would keep one from ending.
_NOT_FOR_CANDIDATES = frozenset(
    {"run_at", "unique_key", "on_conflict", "parent_task_id", "task_group_id"}
)


class FanOutOptions(TypedDict, total=False):
    """What may be said of a fan-out beside its candidates; all optional."""

    policy: str
    """What decides it: ``settled`` (default; all have ended, well or not), ``all``,
    ``any``, ``first_success`` or ``quorum``."""
    needed: int | None
    """How many successes make a quorum."""
    max_running: int | None
    """How many candidates may wait or run at once; the others sleep."""
    deadline: Duration | None
    """After so long it is decided by what is there."""
    task_id: UUID | str | None
    """Given by a caller who wants to repeat the call safely."""
    topic: str | None
    """Where it is worked off; default: the topic of the first candidate."""
    kind: str | None
    """The name of its handler, which is run once it is decided; default: none."""
    data: object
    """For that handler."""
    sub_topic: str | None
    """A label for listings."""
    parent: Proof | None
    """The live lease of the task that all of it stands below."""
    priority: int
    """That of its handler's run: 0 (first) to 9; default 5."""
    retry: RetryPolicy | Mapping[str, Any] | int | None
    """That of its handler's run, as for a task."""
    timeout: Duration | None
    """The longest one attempt of its handler may take."""
    headers: Mapping[str, str] | None
    """Strings that travel with it."""
    max_attempts: int | None
    """How many attempts of its handler may fail, the first included."""


_TYPES = {
    "specs": "jsonb", "policy": "text", "needed": "integer", "max_running": "integer",
    "deadline": "interval", "task_id": "uuid", "topic": "text", "kind": "text", "data": "jsonb",
    "sub_topic": "text", "parent_task_id": "uuid", "pid": "text", "token": "bigint",
    "priority": "integer", "retry": "jsonb", "timeout": "interval", "headers": "jsonb",
    "max_attempts": "integer",
}  # fmt: skip
_LIKE_A_TASKS = (
    "task_id", "topic", "kind", "sub_topic", "priority", "retry", "timeout", "headers",
    "max_attempts",
)  # fmt: skip


def fan_out(
    specs: Iterable[Mapping[str, Any]],
    *,
    max_data_bytes: int = DATA_LIMIT,
    **options: Unpack[FanOutOptions],
) -> Call[FanOutCreated]:
    found = arguments.members(specs, "specs")
    params = {
        "specs": specs_text(found, max_data_bytes, _NOT_FOR_CANDIDATES),
        **_own_params(options, len(found), max_data_bytes),
    }
    # A repeat with the same id meets the fan-out that the first try made.
    return Call(
        _fan_out_statement(tuple(params)),
        params,
        lambda rows: FanOutCreated(*rows[0]),
        repeatable="task_id" in params,
    )


@lru_cache(maxsize=512)
def _fan_out_statement(names: tuple[str, ...]) -> Statement:
    sent = tuple((name, _TYPES[name]) for name in names)
    return Statement("fan_out", columns_of(FanOutCreated), sent)


def _own_params(given: Mapping[str, Any], total: int, max_bytes: int) -> dict[str, str | None]:
    """The options that were given, as text; None counts as not given."""
    unknown = given.keys() - FanOutOptions.__annotations__.keys()
    if unknown:
        raise BadArgument.of(min(unknown), "is no argument of fan_out")
    said = {name: value for name, value in given.items() if value is not None}
    params = {name: option_text(name, said[name]) for name in _LIKE_A_TASKS if name in said}
    params |= _policy(said.get("policy", "settled"), said.get("needed"), total)
    if "max_running" in said:
        most = arguments.MOST_MEMBERS
        params["max_running"] = arguments.integer(said["max_running"], "max_running", 1, most)
    if "deadline" in said:
        deadline = durations.delay(said["deadline"], "deadline")
        params["deadline"] = durations.interval_text(deadline)
    if "data" in said:
        params["data"] = encode(said["data"], "data", max_bytes)
    if "parent" in said:
        proof = arguments.proof_params(arguments.proof(said["parent"]))
        params |= {"parent_task_id": proof.pop("task_id"), **proof}
    return params


def _policy(policy: object, needed: object, total: int) -> dict[str, str]:
    if policy not in POLICIES:
        raise BadArgument.of("policy", f"must be one of {', '.join(POLICIES)}", policy)
    if policy == "quorum":
        return {"policy": "quorum", "needed": arguments.integer(needed, "needed", 0, total)}
    if needed is not None:
        raise BadArgument.of("needed", "is for the policy quorum alone", needed)
    return {"policy": str(policy)}


def get_join(task_id: UUID | str) -> Call[Join | None]:
    return Call(
        _GET_JOIN,
        {"task_id": str(arguments.uuid(task_id))},
        lambda rows: Join(*rows[0]) if rows else None,
        repeatable=True,
    )


def join_results(
    task_id: UUID | str, after: int = 0, limit: int = 1_000
) -> Call[list[JoinResult]]:
    params: dict[str, str | None] = {
        "task_id": str(arguments.uuid(task_id)),
        "after": arguments.integer(after, "after", 0, arguments.MOST_INT),
        "limit": arguments.integer(limit, "limit", 1, arguments.MOST_MEMBERS),
    }
    return Call(
        _RESULTS, params, lambda rows: [JoinResult(*row) for row in rows], repeatable=True
    )


_GET_JOIN = Statement("get_join", columns_of(Join), (("task_id", "uuid"),))
_RESULTS = Statement(
    "join_results",
    columns_of(JoinResult),
    (("task_id", "uuid"), ("after", "integer"), ("limit", "integer")),
    suffix="order by r.candidate",
)


def task_tree(
    task_id: UUID | str, max_rows: int = 1_000, max_children: int = 100
) -> Call[list[TreeNode]]:
    params: dict[str, str | None] = {
        "task_id": str(arguments.uuid(task_id)),
        "max_rows": arguments.integer(max_rows, "max_rows", 1, arguments.MOST_MEMBERS),
        "max_children": arguments.integer(max_children, "max_children", 1, arguments.MOST_MEMBERS),
    }
    return Call(_TREE, params, lambda rows: [TreeNode(*row) for row in rows], repeatable=True)


_TREE = Statement(
    "task_tree",
    columns_of(TreeNode),
    (("task_id", "uuid"), ("max_rows", "integer"), ("max_children", "integer")),
)

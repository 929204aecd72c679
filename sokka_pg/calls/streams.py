"""Calls about streams: items that a task hands out one by one while it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from sokka_pg.calls import arguments
from sokka_pg.calls.statement import Call, Statement, columns_of
from sokka_pg.errors import BadArgument, Refused, TaskConcurrentlyUpdated
from sokka_pg.model import Json, Lease, StreamAppended, StreamItem, StreamState
from sokka_pg.payload import DATA_LIMIT, encode

MAX_ITEMS = 1_000
MAX_BYTES = 8 * 1024 * 1024
MOST_APPENDED = 1_000
_MOST_ITEMS = 1_000_000
_LEAST_BYTES, _MOST_BYTES = 1_024, 1024 * 1024 * 1024


def open_stream(
    task_id: UUID | str, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES
) -> Call[StreamState]:
    params: dict[str, str | None] = {
        "task_id": str(arguments.uuid(task_id)),
        "max_items": arguments.integer(max_items, "max_items", 1, _MOST_ITEMS),
        "max_bytes": arguments.integer(max_bytes, "max_bytes", _LEAST_BYTES, _MOST_BYTES),
    }
    return Call(_OPEN, params, lambda rows: StreamState(*rows[0]), repeatable=True)


def append_stream(
    lease: Lease,
    items: Iterable[Json],
    after: int | None = None,
    max_data_bytes: int = DATA_LIMIT,
) -> Call[StreamAppended]:
    found = arguments.members(items, "items", MOST_APPENDED)
    if not found:
        raise BadArgument.of("items", "must not be empty")
    texts = [encode(item, f"items[{i}]", max_data_bytes) for i, item in enumerate(found, start=1)]
    params = arguments.proof_params(lease)
    params["items"] = f"[{','.join(texts)}]"
    params["after"] = None if after is None else _number(after)
    return Call(
        _APPEND,
        params,
        lambda rows: StreamAppended(*rows[0]),
        repeatable=after is not None,
        after_loss=None if after is None else _appended(lease, after, len(found)),
    )


def _appended(
    lease: Lease, after: int, count: int
) -> Callable[[Refused], Call[StreamAppended] | None]:
    def read_back(refused: Refused) -> Call[StreamAppended] | None:
        last_seq = refused.detail.get("last_seq")
        if not isinstance(refused, TaskConcurrentlyUpdated) or not isinstance(last_seq, int):
            return None
        if not after < last_seq <= after + count:
            return None
        # The lease was found live, so nobody but its holder has appended meanwhile.
        found = get_stream(lease.task_id)
        return Call(found.statement, found.params, lambda rows: _taken(rows, after))

    return read_back


def _taken(rows: list[list[Any]], after: int) -> StreamAppended:
    state = StreamState(*rows[0])
    return StreamAppended(
        state.last_seq - after,
        state.last_seq,
        max(0, state.max_items - state.pending_items),
        max(0, state.max_bytes - state.pending_bytes),
    )


def read_stream(
    task_id: UUID | str, after: int = 0, max_items: int = 100, max_bytes: int = MAX_BYTES
) -> Call[list[StreamItem]]:
    params: dict[str, str | None] = {
        "task_id": str(arguments.uuid(task_id)),
        "after": _number(after),
        "max_items": arguments.integer(max_items, "max_items", 1, arguments.MOST_MEMBERS),
        "max_bytes": arguments.integer(max_bytes, "max_bytes", 1, arguments.MOST_BIGINT),
    }
    return Call(_READ, params, lambda rows: [StreamItem(*row) for row in rows], repeatable=True)


def get_stream(task_id: UUID | str) -> Call[StreamState | None]:
    return Call(
        _GET,
        {"task_id": str(arguments.uuid(task_id))},
        lambda rows: StreamState(*rows[0]) if rows else None,
        repeatable=True,
    )


_STATE = columns_of(StreamState)
_BOUNDS = (("max_items", "integer"), ("max_bytes", "bigint"))
_OPEN = Statement("open_stream", _STATE, (("task_id", "uuid"), *_BOUNDS))
_APPEND = Statement(
    "append_stream",
    columns_of(StreamAppended),
    (
        ("task_id", "uuid"), ("pid", "text"), ("token", "bigint"),
        ("items", "jsonb"), ("after", "bigint"),
    ),
)  # fmt: skip
_READ = Statement(
    "read_stream",
    columns_of(StreamItem),
    (("task_id", "uuid"), ("after", "bigint"), *_BOUNDS),
    suffix="order by r.seq",
)
_GET = Statement("get_stream", _STATE, (("task_id", "uuid"),))


def _number(after: int) -> str:
    return arguments.integer(after, "after", 0, arguments.MOST_BIGINT)

"""Calls that guard user writes: lease checks, guarded tables, fences of other stores."""

from __future__ import annotations

from typing import Any

from sokka_pg.calls import arguments
from sokka_pg.calls.statement import Call, Column, Statement, columns_of, plain
from sokka_pg.errors import BadArgument
from sokka_pg.model import Lease, LeaseState

_PROOF = (("task_id", "uuid"), ("pid", "text"), ("token", "bigint"))
RESOURCE_LIMIT = 1_000


def assert_lease(lease: Lease) -> Call[LeaseState]:
    return Call(_ASSERT, arguments.proof_params(lease), lambda rows: LeaseState(*rows[0]))


_ASSERT = Statement("assert_lease", columns_of(LeaseState), _PROOF)


def advance_fence(resource: str, token: int) -> Call[int]:
    name = arguments.free_text(resource, "resource", RESOURCE_LIMIT)
    if not 1 <= len(name.encode()) <= RESOURCE_LIMIT:
        raise BadArgument.of("resource", f"must be 1 to {RESOURCE_LIMIT} bytes")
    params = {
        "resource": name,
        "token": arguments.integer(token, "token", 0, arguments.MOST_BIGINT),
    }
    return Call(_ADVANCE, params, _number)


_ADVANCE = Statement(
    "advance_fence", (plain("token"),), (("resource", "text"), ("token", "bigint"))
)


def guard_table(table: str) -> Call[None]:
    """``table`` as SQL names it: ``orders``, ``shop.orders``, ``"Odd Name"``."""
    return Call(_GUARD, {"table": arguments.free_text(table, "table", 200)}, _nothing)


def unguard_table(table: str) -> Call[None]:
    return Call(_UNGUARD, {"table": arguments.free_text(table, "table", 200)}, _nothing)


_GUARD = Statement("guard_table", (Column("1"),), (("table", "regclass"),))
_UNGUARD = Statement("unguard_table", (Column("1"),), (("table", "regclass"),))


def _number(rows: list[list[Any]]) -> int:
    return int(rows[0][0])


def _nothing(rows: list[list[Any]]) -> None:
    return None

"""Calls about locks: who may act for a key, for as long as it is renewed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sokka_pg.calls import arguments
from sokka_pg.calls.operators import clock
from sokka_pg.calls.statement import Call, Statement, column, plain
from sokka_pg.durations import Duration
from sokka_pg.errors import BadArgument, LeaseExpired, Refused
from sokka_pg.model import Lock

_PROOF = (("key", "text"), ("owner", "text"), ("token", "bigint"))
_TTL = ("ttl", "interval")
_END = (column("lock_expires_at"),)


def try_lock(key: str, owner: str, ttl: Duration) -> Call[Lock | None]:
    params = {**_holder(key, owner), "ttl": _ttl(ttl)}
    # Not repeated after a lost answer: the first try's own lock would be in its way.
    return Call(_TRY, params, lambda rows: Lock(key, owner, *rows[0]) if rows else None)


def renew_lock(key: str, owner: str, token: int, ttl: Duration) -> Call[datetime]:
    params = {**_proof(key, owner, token), "ttl": _ttl(ttl)}
    return Call(_RENEW, params, _instant, repeatable=True)


def release_lock(key: str, owner: str, token: int) -> Call[None]:
    params = _proof(key, owner, token)
    return Call(_RELEASE, params, lambda rows: None, repeatable=True, after_loss=_released)


def assert_lock(key: str, owner: str, token: int) -> Call[datetime]:
    return Call(_ASSERT, _proof(key, owner, token), _instant)


_TRY = Statement("try_lock", (plain("token"), *_END), (("key", "text"), ("owner", "text"), _TTL))
_RENEW = Statement("renew_lock", _END, (*_PROOF, _TTL))
_RELEASE = Statement("release_lock", (column("released_at"),), _PROOF)
_ASSERT = Statement("assert_lock", _END, _PROOF)


def _released(refused: Refused) -> Call[None] | None:
    # Still this owner's, under this token, but over: that is what a release leaves.
    if not isinstance(refused, LeaseExpired):
        return None
    return Call(clock().statement, {}, lambda rows: None)


def _holder(key: str, owner: str) -> dict[str, str | None]:
    found = arguments.free_text(key, "key", arguments.KEY_LIMIT)
    if not 1 <= len(found.encode()) <= arguments.KEY_LIMIT:
        raise BadArgument.of("key", f"must be 1 to {arguments.KEY_LIMIT} bytes")
    return {"key": found, "owner": arguments.name(owner, "owner")}


def _proof(key: str, owner: str, token: int) -> dict[str, str | None]:
    return {**_holder(key, owner), "token": arguments.token(token)}


def _ttl(value: Duration) -> str:
    found = arguments.lease_time(value, "ttl")
    if found is None:
        raise BadArgument.of("ttl", "is required")
    return found


def _instant(rows: list[list[Any]]) -> datetime:
    found: datetime = rows[0][0]
    return found

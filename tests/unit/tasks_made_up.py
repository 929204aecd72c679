"""Leased tasks that no database handed out, for tests of pure rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from sokka_pg.model import LeasedTask

_tokens = count(1)
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def leased(topic: str = "mail", kind: str = "send", **changes: Any) -> LeasedTask:
    token = changes.pop("token", None) or next(_tokens)
    fields: dict[str, Any] = {
        "task_id": UUID(int=token), "task_group_id": UUID(int=token), "topic": topic,
        "sub_topic": "default", "kind": kind, "data": None, "headers": None, "pid": "w1",
        "token": token, "lease_expires_at": _EPOCH + timedelta(seconds=30), "attempt": 1,
        "failures": 0, "max_attempts": 1, "timeout": None, "checkpoint": None,
        "record_ver": 2, "created_at": _EPOCH, "cancel_requested_at": None, "priority": 5,
        "losses": 0, "leased_at": _EPOCH, "expires_at": None,
    }
    return LeasedTask(**{**fields, **changes})

"""Events of the job scheduler, which stands beside this package: known by their shape."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple


class JobEvent(NamedTuple):
    """What both kinds of observers need of one."""

    kind: str
    """scheduled, started, retrying, succeeded, failed or skipped."""
    job: str
    attempt: int
    duration_s: float
    reason: str
    at_unix: float
    error: str


def job_event(event: object) -> JobEvent | None:
    """The event read, or None for one of a worker."""
    found: Any = event
    if not hasattr(event, "job_name"):
        return None
    return JobEvent(
        str(getattr(found.kind, "value", found.kind)), str(found.job_name),
        int(getattr(found, "attempt", 0) or 0), _seconds(getattr(found, "duration", None)),
        str(getattr(found, "reason", "") or ""), _unix(getattr(found, "timestamp", None)),
        type(found.error).__name__ if getattr(found, "error", None) is not None else "",
    )


def _seconds(value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, int | float) else 0.0


def _unix(value: object) -> float:
    return value.timestamp() if isinstance(value, datetime) else time.time()

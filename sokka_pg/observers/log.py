"""Events as log lines that programs can read."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

from sokka_pg import events
from sokka_pg.observers.jobs import job_event
from sokka_pg.settings import redact

LONGEST_VALUE = 500
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+.:/@")

_OFTEN = (events.Reserved, events.Started, events.Called, events.Extended)
_BAD = (
    events.Failed, events.Lost, events.FenceRefused, events.Abandoned, events.Disconnected,
)  # fmt: skip
_BAD_OF_JOBS = frozenset({"failed"})
_OFTEN_OF_JOBS = frozenset({"scheduled", "started"})


class LogObserver:
    """Writes each event as one line: its name, then ``field=value`` pairs.

    A record also carries ``event`` and ``fields`` (a dict) for formatters that write
    JSON. Levels: debug for what every task brings along (Reserved, Started, Called,
    Extended), warning for what somebody should see, info for the rest. Passwords in
    errors are replaced, and no value can forge a line.
    """

    def __init__(self, logger: logging.Logger | str = "sokka_pg.events") -> None:
        self._log = logging.getLogger(logger) if isinstance(logger, str) else logger

    def notice(self, event: object, /) -> None:
        """Take note of an event of a worker, or of a job."""
        level = _level(event)
        if not self._log.isEnabledFor(level):
            return
        name, said = _read(event)
        text = " ".join((name, *(f"{field}={_shown(value)}" for field, value in said.items())))
        self._log.log(level, "%s", text, extra={"event": name, "fields": said})

    observe = notice


def _level(event: object) -> int:
    job = job_event(event)
    bad = isinstance(event, _BAD) if job is None else job.kind in _BAD_OF_JOBS
    often = isinstance(event, _OFTEN) if job is None else job.kind in _OFTEN_OF_JOBS
    return logging.WARNING if bad else logging.DEBUG if often else logging.INFO


def _read(event: object) -> tuple[str, Mapping[str, Any]]:
    """The event's name, and its fields as plain values."""
    job = job_event(event)
    if job is not None:
        said = job._asdict()
        del said["at_unix"]
        return f"job_{said.pop('kind')}", {key: value for key, value in said.items() if value}
    found: Any = event
    names = [field.name for field in fields(found)] if is_dataclass(event) else []
    return type(event).__name__, {name: _plain(getattr(found, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID | datetime):
        return str(value)
    if isinstance(value, str):
        return redact(value)[:LONGEST_VALUE]
    if isinstance(value, float):
        return round(value, 6)
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text and _PLAIN.issuperset(text) else json.dumps(value, default=str)

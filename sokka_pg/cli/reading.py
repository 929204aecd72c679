"""Text from the command line as values: durations, instants, ids, JSON.

Each raises BadArgument, which names the option and the rule, never the text.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sokka_pg import durations
from sokka_pg.errors import BadArgument

MOST_BYTES = 64 * 1024 * 1024
"""What is read from a file or a pipe: the largest limit an installation may set.
Whether that one accepts it, the database says."""

_UNITS = {
    "ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800,
}  # fmt: skip
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)\s*")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PART_OF_UUID = re.compile(r"[0-9a-fA-F-]{1,35}")
_DURATION_RULE = "must be a duration such as 90, 500ms, 5m or 1h30m (units: ms s m h d w)"


def duration(text: str, argument: str) -> timedelta:
    """``5m``, ``1h30m``, ``500ms``; a bare number is seconds."""
    words = text.strip().lower().removeprefix("pt")
    seconds, at = 0.0, 0
    while at < len(words):
        part = _PART.match(words, at)
        bare = part is not None and not part[2] and (at > 0 or part.end() < len(words))
        if part is None or bare or (part[2] or "s") not in _UNITS:
            raise BadArgument.of(argument, _DURATION_RULE)
        seconds += float(part[1]) * _UNITS[part[2] or "s"]
        at = part.end()
    if not words:
        raise BadArgument.of(argument, _DURATION_RULE)
    return durations.to_timedelta(seconds, argument)


def instant(text: str, argument: str) -> datetime:
    """An ISO 8601 moment with its offset, ``2030-01-31T08:00+01:00`` or ``...Z``."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadArgument.of(
            argument, "must be an ISO 8601 time with its offset, such as 2030-01-31T08:00+01:00"
        ) from None
    return durations.instant(found, argument)


def moment(text: str, argument: str) -> datetime:
    """An instant, or a duration: that long ago, by this machine's clock."""
    try:
        return datetime.now(UTC) - durations.delay(duration(text, argument), argument)
    except BadArgument:
        return instant(text, argument)


def task_id(text: str, argument: str = "TASK_ID") -> UUID:
    """A whole UUID. A part of one is named as such: it must never pick a task."""
    if _UUID.fullmatch(text.strip()):
        return UUID(text.strip())
    rule = "must be a UUID, such as 0197f6c4-8d2a-7c3e-9b1f-2a6d5e4c3b21"
    if _PART_OF_UUID.fullmatch(text.strip()):
        rule = "is only a part of a UUID: give all 36 characters (sokka task list shows them)"
    raise BadArgument.of(argument, rule)


def json_value(text: str, argument: str) -> Any:
    """The value of JSON text; NaN and Infinity are no JSON."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadArgument.of(argument, f"is no JSON: {error.msg.lower()} at {where}") from None
    except (ValueError, RecursionError) as error:
        raise BadArgument.of(argument, f"is no JSON that can be stored: {error}") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")


def data(text: str, argument: str = "--data") -> Any:
    """``@file`` and ``-`` (standard input) read JSON from there; else ``text`` is JSON."""
    if text == "-":
        return json_value(_decoded(sys.stdin.buffer.read(MOST_BYTES + 1), argument), argument)
    if not text.startswith("@"):
        return json_value(text, argument)
    try:
        with Path(text[1:]).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name"
        raise BadArgument.of(argument, f"the file cannot be read: {reason}") from None
    return json_value(_decoded(content, argument), argument)


def _decoded(content: bytes, argument: str) -> str:
    if len(content) > MOST_BYTES:
        raise BadArgument.of(argument, f"is larger than {MOST_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BadArgument.of(argument, f"is not UTF-8 (byte {error.start})") from None


def headers(pairs: Iterable[str], argument: str = "--header") -> dict[str, str] | None:
    """``key=value`` pairs; a key stands once."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadArgument.of(argument, "must be key=value")
        if key in found:
            raise BadArgument.of(argument, "names one key twice")
        found[key] = value
    return found or None


def retry(text: str, argument: str = "--retry") -> Any:
    """A retry policy: its JSON, or a number of attempts."""
    return retry_policy(json_value(text, argument), argument)


def retry_policy(value: Any, argument: str) -> Any:
    """A retry policy as JSON has it; its waits are seconds or texts such as ``5m``."""
    if not isinstance(value, Mapping | int) or isinstance(value, bool):
        raise BadArgument.of(argument, "must be a JSON object or a number of attempts", value)
    if isinstance(value, int):
        return value
    waits = {
        name: duration(value[name], f"{argument}.{name}")
        for name in ("initial", "max")
        if isinstance(value.get(name), str)
    }
    return {**value, **waits}

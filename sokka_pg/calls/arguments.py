"""Arguments on their way into a call: checked, then text. Errors name the argument."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sokka_pg.durations import Duration, interval_text, lease_duration
from sokka_pg.errors import BadArgument
from sokka_pg.model import Lease, LeasedTask
from sokka_pg.payload import SMALL_LIMIT, Encoded, encode

MOST_MEMBERS = 10_000
MOST_TOPICS = 1_000
MOST_INT = 2**31 - 1
MOST_BIGINT = 2**63 - 1
NAME_LIMIT = 200
KEY_LIMIT = 500

Proof = Lease | LeasedTask | tuple[UUID | str, str, int]
"""What shows the right to act on a task: a lease, or (task_id, pid, token)."""


def uuid(value: object, argument: str = "task_id") -> UUID:
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        try:
            return UUID(value)
        except ValueError:
            raise BadArgument.of(argument, "must be a UUID") from None
    raise BadArgument.of(argument, "must be a UUID", value)


def name(value: object, argument: str) -> str:
    """A topic, kind, sub_topic or pid: 1 to 200 characters, none of them a control."""
    text = free_text(value, argument, NAME_LIMIT)
    if not text.strip():
        raise BadArgument.of(argument, "must not be blank")
    if not text.isprintable() and any(unicodedata.category(c) == "Cc" for c in text):
        raise BadArgument.of(argument, "must not contain control characters")
    return text


def free_text(value: object, argument: str, limit: int) -> str:
    if not isinstance(value, str):
        raise BadArgument.of(argument, "must be a str", value)
    text = str.__str__(value)
    if len(text) > limit:
        raise BadArgument.of(argument, f"must be at most {limit} characters")
    if "\x00" in text:
        raise BadArgument.of(argument, "must not contain a NUL character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadArgument.of(argument, "must not contain half a surrogate pair") from None
    return text


def reason(value: str | None, argument: str = "reason") -> str | None:
    return None if value is None else free_text(value, argument, 2_000)


def unique_key(value: object) -> str:
    key = free_text(value, "unique_key", KEY_LIMIT)
    if not 1 <= len(key.encode()) <= KEY_LIMIT:
        raise BadArgument.of("unique_key", f"must be 1 to {KEY_LIMIT} bytes")
    return key


def integer(value: object, argument: str, least: int, most: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadArgument.of(argument, "must be an int", value)
    if not least <= value <= most:
        raise BadArgument.of(argument, f"must be from {least} to {most}")
    return str(int(value))


def token(value: object, argument: str = "token") -> str:
    return integer(value, argument, -MOST_BIGINT - 1, MOST_BIGINT)


def lease_time(value: Duration | None, argument: str = "lease") -> str | None:
    found = lease_duration(value, argument)
    return None if found is None else interval_text(found)


def headers(value: object) -> Encoded:
    if not isinstance(value, Mapping):
        raise BadArgument.of("headers", "must be a mapping of str to str", value)
    for key, member in value.items():
        if not isinstance(key, str) or not isinstance(member, str):
            raise BadArgument.of("headers", "must be a mapping of str to str", member)
    return encode(value, "headers", SMALL_LIMIT)


def members(values: Iterable[Any], argument: str, most: int = MOST_MEMBERS) -> list[Any]:
    """The members of a batch, at most 10,000; a lone str or mapping is no batch."""
    if isinstance(values, str | bytes | Mapping):
        raise BadArgument.of(argument, "must be a sequence", values)
    try:
        found = list(values)
    except TypeError:
        raise BadArgument.of(argument, "must be a sequence", values) from None
    if len(found) > most:
        raise BadArgument.of(argument, f"must have at most {most} members")
    return found


def topics(values: Iterable[str]) -> list[str]:
    """1 to 1,000 names of topics."""
    found = members(values, "topics", MOST_TOPICS)
    if not found:
        raise BadArgument.of("topics", "must not be empty")
    return [name(topic, "topics") for topic in found]


def same_length(count: int, values: Sequence[object], argument: str) -> None:
    if len(values) != count:
        raise BadArgument.of(argument, f"must have {count} members, like the others")


def proof(lease: object, pid: str | None = None, number: int | None = None) -> Lease:
    """The lease that a verb is to act under, from any of its three spellings:
    ``(lease)``, ``((task_id, pid, token))`` and ``(task_id, pid, token)``."""
    if isinstance(lease, LeasedTask):
        lease = lease.lease
    if isinstance(lease, tuple) and len(lease) == 3:
        return proof(lease[0], lease[1], lease[2])
    if isinstance(lease, Lease):
        if pid is not None or number is not None:
            raise BadArgument.of(
                "pid", "stands in the lease already; name the other arguments", pid
            )
        return lease
    if pid is None or number is None:
        raise BadArgument.of("lease", "must be a Lease, or task_id, pid and token", lease)
    token(number)
    return Lease(uuid(lease), name(pid, "pid"), number)


def proof_params(lease: Lease) -> dict[str, str | None]:
    return {
        "task_id": str(uuid(lease.task_id)),
        "pid": name(lease.pid, "pid"),
        "token": token(lease.token),
    }

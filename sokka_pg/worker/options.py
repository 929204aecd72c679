"""What a worker can be told, checked before anything runs."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sokka_pg.calls import arguments
from sokka_pg.durations import Duration, to_timedelta
from sokka_pg.engine.leases import SHORTEST_LEASE_S
from sokka_pg.errors import BadArgument

DEFAULT_CONCURRENCY = 10
MOST_SLOTS = 10_000
LONGEST = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works. Durations are ``timedelta`` or seconds.

    ``lease``: how long a dead worker's tasks stay taken; renewed all the while
    (300 ms or more). ``grace``: how long running handlers may go on after a stop.
    ``concurrency``: handlers at a time, in all; without it the sum of the
    topics' limits. ``prefetch``: tasks reserved ahead of free slots, at most; only for
    handlers that take milliseconds, and no more than about 8 MiB of payloads.
    ``calls``: 1 or 2, how many to settle and reserve may be under way; the second, on a
    connection of its own, only while there is much to do.
    ``poll``: how often an idle worker looks although nothing was notified; the more idle
    workers tell each other, the less often, down to twice a minute. ``startup``: how long it
    waits for a database that is not there yet. ``listen``: whether to be notified at all.
    ``schedules``: whether to put the app's schedules and to fire whatever is due.
    """

    lease: Duration = timedelta(seconds=30)
    grace: Duration = timedelta(seconds=30)
    concurrency: int | None = None
    prefetch: int = 1000
    calls: int = 2
    poll: Duration = timedelta(seconds=1)
    startup: Duration = timedelta(seconds=60)
    listen: bool = True
    schedules: bool = True

    def seconds(self, name: str) -> float:
        """A duration of these options in seconds."""
        return to_timedelta(getattr(self, name), name).total_seconds()

    def checked(self) -> WorkerOptions:
        """Itself; ``BadArgument`` names the option and its rule."""
        _between("lease", self.seconds("lease"), SHORTEST_LEASE_S)
        _between("grace", self.seconds("grace"), 0.0)
        _between("poll", self.seconds("poll"), 0.01)
        _between("startup", self.seconds("startup"), 0.0)
        if self.concurrency is not None:
            _count("concurrency", self.concurrency, 1)
        _count("prefetch", self.prefetch, 0)
        if type(self.calls) is not int or self.calls not in (1, 2):
            raise BadArgument.of("calls", "1 or 2")
        return self


def parse_topics(
    topics: str | Sequence[str] | Mapping[str, int], concurrency: int | None = None
) -> tuple[dict[str, int], int]:
    """Slots by topic, and in all.

    ``"a:10,b:2"``, ``["a:10", "b"]`` or ``{"a": 10, "b": 2}``; a topic without a
    limit may use every slot. Names that hold a comma or end in ``:digits`` need
    the mapping.
    """
    limits: dict[str, int | None] = {}
    if isinstance(topics, Mapping):
        limits.update(topics)
    else:
        for item in topics.split(",") if isinstance(topics, str) else topics:
            name, limit = _split(item)
            if name in limits:
                raise BadArgument.of("topics", f"name each topic once, not {name!r} again")
            limits[name] = limit
    if not limits:
        raise BadArgument.of("topics", "at least one topic")
    for name, limit in limits.items():
        arguments.name(name, "topics")
        if limit is not None:
            _count("topics", limit, 1)
    return _with_total(limits, concurrency)


def new_pid() -> str:
    """An identity that no other process start has: host, process and chance."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "_", socket.gethostname())[:100] or "host"
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


def _split(item: str) -> tuple[str, int | None]:
    name, colon, limit = item.strip().rpartition(":")
    if colon and limit.isascii() and limit.isdigit():
        return name.strip(), int(limit[:9])
    return item.strip(), None


def _with_total(
    limits: Mapping[str, int | None], concurrency: int | None
) -> tuple[dict[str, int], int]:
    given = [limit for limit in limits.values() if limit is not None]
    if concurrency is None:
        free = DEFAULT_CONCURRENCY if len(given) < len(limits) else 0
        concurrency = min(MOST_SLOTS, sum(given) + free)
    return {
        name: min(concurrency, concurrency if limit is None else limit)
        for name, limit in limits.items()
    }, concurrency


def _between(name: str, seconds: float, least: float) -> None:
    if not least <= seconds <= LONGEST.total_seconds():
        raise BadArgument.of(name, f"from {least:g} s to {LONGEST.days} days")


def _count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_SLOTS:
        raise BadArgument.of(name, f"a whole number from {least} to {MOST_SLOTS}", value)

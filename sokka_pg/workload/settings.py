"""What a scheduler was told, checked before anything runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from sokka_pg.calls import arguments
from sokka_pg.calls.statement import checked_schema
from sokka_pg.connections import ConnectionOptions
from sokka_pg.durations import Duration, to_timedelta
from sokka_pg.engine.leases import SHORTEST_LEASE_S
from sokka_pg.errors import BadArgument
from sokka_pg.events import Observer
from sokka_pg.translate import checked_conninfo
from sokka_pg.worker.options import MOST_SLOTS, new_pid
from sokka_pg.workload.limits import Limits, Redact, Redaction

LOCAL_TOPIC = "workload."
LONGEST = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one scheduler. ``named``: its id was given, so that it outlives the process."""

    database_url: str
    schema: str
    scheduler_id: str
    named: bool
    connections: ConnectionOptions
    limits: Limits
    redact: Redaction
    local_slots: int
    lease: timedelta
    progress_every_s: float
    poll_s: float
    observers: tuple[Observer, ...]

    @property
    def local_topic(self) -> str:
        """The topic of local runs, which only this scheduler serves."""
        return f"{LOCAL_TOPIC}{self.scheduler_id}"


def checked_settings(
    database_url: str,
    schema: str,
    scheduler_id: str | None,
    connections: ConnectionOptions | None,
    limits: Limits | None,
    redact: Redact | None,
    local_slots: int,
    lease: Duration,
    progress_every: Duration,
    poll: Duration,
    observers: Iterable[Observer],
) -> Settings:
    """The settings; ``BadArgument`` names what breaks a rule."""
    checked_conninfo(database_url)
    arguments.integer(local_slots, "local_slots", 1, MOST_SLOTS)
    if limits is not None and not isinstance(limits, Limits):
        raise BadArgument.of("limits", "must be Limits", limits)
    return Settings(
        database_url, checked_schema(schema),
        new_id() if scheduler_id is None else _id(scheduler_id), scheduler_id is not None,
        connections or ConnectionOptions(), limits or Limits(), Redaction(redact),
        local_slots,
        timedelta(seconds=_seconds(lease, "lease", SHORTEST_LEASE_S)),
        _seconds(progress_every, "progress_every", 0.0),
        _seconds(poll, "poll", 0.01),
        tuple(observers),
    )


def new_id() -> str:
    """An id that no other scheduler has."""
    return f"{new_pid()}:{secrets.token_hex(2)}"


def _id(value: str) -> str:
    arguments.name(value, "scheduler_id")
    # it is part of a topic and of pids, which are bounded
    return arguments.free_text(value, "scheduler_id", 150)


def _seconds(value: Duration, argument: str, least: float) -> float:
    found = to_timedelta(value, argument).total_seconds()
    if not least <= found <= LONGEST.total_seconds():
        raise BadArgument.of(argument, f"must be from {least:g} s to {LONGEST.days} days")
    return found

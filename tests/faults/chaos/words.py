"""The words of a run: what was called and answered, what was seen, what was broken.

Every time of a process is the host's CLOCK_MONOTONIC in nanoseconds; every time of a
server is its ``clock_timestamp()`` in microseconds since 1970. Nothing here does I/O.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union, get_args, get_origin, get_type_hints

Image = Mapping[str, Any]

OK, FAIL, INFO = "ok", "fail", "info"
"""Answered; certainly did not happen; may have happened, at any later moment, or never."""


@dataclass
class Call:
    """One call of a function of the database by a client.

    ``transaction`` is the number, within its process, of the open transaction of the caller
    or the handler that it ran in; None: it had one of its own. ``began`` of a process whose
    clock is faked is up to ``slack_ns`` late or early, and so is ``ended``.
    """

    process: str
    number: int
    function: str
    arguments: dict[str, Any]
    began: int
    ended: int | None = None
    outcome: str = INFO
    rows: list[dict[str, Any]] = field(default_factory=list)
    sqlstate: str = ""
    message: str = ""
    detail: dict[str, Any] | None = None
    pid: str = ""
    transaction: int | None = None
    slack_ns: int = 0


@dataclass
class Transaction:
    """A transaction that a client held open; ``ended`` None: nobody was told how it ended."""

    process: str
    number: int
    began: int
    ended: int | None = None
    outcome: str = INFO
    slack_ns: int = 0


@dataclass(frozen=True)
class Change:
    """A row change, written by a trigger in the transaction that made it."""

    pos: int
    at: int
    xid: str
    backend: int
    lsn: str
    function: str
    source: str
    old: Image | None
    new: Image | None
    began: int = 0
    """When its statement began: what that decided by the clock lies between this and ``at``."""

    @property
    def clock(self) -> int:
        return self.at

    @property
    def id(self) -> str:
        return str(self.row["id"])

    @property
    def row(self) -> Image:
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


@dataclass(frozen=True)
class Effect:
    """What a handler did outside of the queue. ``kind``: "start" and "end" are unfenced,
    "fenced" was let through by the second database, "refused" was not."""

    kind: str
    task: str
    token: int
    attempt: int
    pid: str
    at: int
    process: str


@dataclass
class Injection:
    """A fault that was fired, until it was healed (None: not before the act was over)."""

    fault: str
    began: int
    ended: int | None = None
    about: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass
class Bite:
    """How often a fault is seen to have had an effect; ``evidence`` says by what."""

    fault: str
    count: int
    evidence: str


@dataclass
class Left:
    """Something that is still there after the drain and should not be."""

    what: str
    about: str


@dataclass
class Life:
    """A worker process as the run saw it: which os pids it had, and how each ended.

    ``asked`` says whether the harness ended it; a pid that ended unasked is a worker that
    did not survive by itself. ``reserved_after_ns`` is when it was first seen to reserve
    after the faults had ended, None: never.
    """

    worker: str
    variant: str
    os_pid: int
    began: int
    ended: int | None = None
    asked: bool = False
    code: int | None = None
    reserved_after_ns: int | None = None


@dataclass
class After:
    """What the drain found. ``quiet_at`` is when the last fault had been healed."""

    quiet_at: int = 0
    drained_at: int | None = None
    drain_limit_s: float = 0.0
    unfinished: list[dict[str, Any]] = field(default_factory=list)
    stuck: list[dict[str, Any]] = field(default_factory=list)
    slots: list[dict[str, Any]] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    connections_max: dict[str, int] = field(default_factory=dict)
    connections_bound: dict[str, int] = field(default_factory=dict)
    reconnects: dict[str, int] = field(default_factory=dict)
    log_lines_per_s: dict[str, float] = field(default_factory=dict)
    present: list[str] = field(default_factory=list)
    """The ids of all tasks that the database has, finished or not."""
    purged: list[str] = field(default_factory=list)
    """The ids of finished tasks that the run's own purges removed, as far as told."""


@dataclass
class Loss:
    """A failover: what the lost primary had committed and the promoted server has not.

    ``commits`` maps each xid that committed on the old primary to its commit record's LSN.
    ``lost_changes`` were read from the old primary, started alone. ``at`` is when it was
    killed, by CLOCK_MONOTONIC; ``received_lsn`` and ``replayed_lsn`` are where the standby
    stood then. ``promoted_s`` and ``returned_s`` (the old primary is a standby that has
    caught up) count from the kill; ``resumed_s`` counts from the moment at which promotion
    was asked for, until tasks were reserved and ended again; ``resumed`` tells of each
    worker process by its name when it first reserved.
    """

    mode: str
    switch_lsn: str
    at: int
    commits: dict[str, str] = field(default_factory=dict)
    lost_changes: list[Change] = field(default_factory=list)
    resumed_s: float | None = None
    received_lsn: str = ""
    replayed_lsn: str = ""
    promoted_s: float | None = None
    returned_s: float | None = None
    resumed: dict[str, float] = field(default_factory=dict)


@dataclass
class Act:
    """One ground, with everything that was seen on it."""

    name: str
    major: int
    lease_s: float
    began: int
    ended: int
    offset_us: int
    calls: list[Call] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    injections: list[Injection] = field(default_factory=list)
    bites: list[Bite] = field(default_factory=list)
    after: After = field(default_factory=After)
    losses: list[Loss] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)


@dataclass
class Run:
    """A whole run; ``plan`` is what ``plan.py`` made of the seed, as JSON."""

    seed: int
    duration_s: float
    plan: dict[str, Any]
    versions: dict[str, str]
    acts: list[Act] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    command: str = ""


def to_json(word: Any) -> Any:
    """A word as what ``json.dumps`` takes."""
    return dataclasses.asdict(word)


def from_json(kind: type[Any], told: Mapping[str, Any]) -> Any:
    """The word that ``to_json`` made this of; unknown keys are an error."""
    hints = get_type_hints(kind)
    return kind(**{name: _read(hints[name], value) for name, value in told.items()})


def _read(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        hint = next(arm for arm in get_args(hint) if arm is not type(None))
        origin = get_origin(hint)
    if origin is list and dataclasses.is_dataclass(get_args(hint)[0]):
        return [_read(get_args(hint)[0], each) for each in value]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_json(hint, value)
    return value

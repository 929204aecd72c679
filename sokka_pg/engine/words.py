"""What the engine is told, and what it asks for.

Inputs are facts that the worker observed; commands are acts that it must do.
Times are monotonic seconds of this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias
from uuid import UUID

from sokka_pg.model import Json


class Reason(StrEnum):
    """Why a handler is told to stop."""

    LOST = "lost"
    TIMEOUT = "timeout"
    CANCEL = "cancel"
    STOP = "stop"


class Verb(StrEnum):
    """How an attempt ends; the words of ``settle_tasks``."""

    TERMINATE = "terminate"
    FAIL = "fail"
    RETRY = "retry"
    SNOOZE = "snooze"
    WAIT = "wait"
    RELEASE = "release"


class Leased(Protocol):
    """What is to be known of a task to decide about it; its payload is not."""

    @property
    def task_id(self) -> UUID: ...
    @property
    def topic(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def pid(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def candidate(self) -> int | None: ...


# Words of which there is one for each task are not frozen: setting the fields of a
# frozen class takes several times as long, and each of these is made once per task.


@dataclass(slots=True)
class Settlement:
    """The end of one attempt, to be written.

    ``uncertain``: an earlier try may have been written, its answer was lost.
    ``tries``: how often the database asked to try again.
    """

    task: Leased
    verb: Verb
    arg: Json = None
    duration_s: float = 0.0
    reason: str = ""
    uncertain: bool = False
    tries: int = 0

    @property
    def size(self) -> int:
        """The bytes of its result, about; errors are short."""
        return len(self.arg) if isinstance(self.arg, str) else 0


@dataclass(slots=True)
class Answer:
    """The database's word on one settlement: ``ok`` or a SQLSTATE."""

    verdict: str
    detail: Mapping[str, Json] | None = None


# --- inputs ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Woken:
    """A notification: there may be work."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Whether notifications arrive at the moment."""

    ok: bool


@dataclass(slots=True)
class Ended:
    """A run ended or was abandoned.

    ``settlement``: what to write, None if nothing is to be written.
    ``freed``: its slot is free; false for a handler that did not stop.
    """

    token: int
    settlement: Settlement | None
    freed: bool = True


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Answer to ``Exchange``: one per settlement, in order, and the new leases.

    ``size``: the bytes of their payloads, about. ``second``: as the call said.
    ``due_in_s``: when the first of those that were put to sleep is due.
    """

    sent_at: float
    answers: Sequence[Answer]
    leases: Sequence[Leased]
    size: int = 0
    second: bool = False
    due_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class SweepDone:
    """Answer to ``Sweep``. ``due_in_s``: when the next is worth doing, if known."""

    readied: int
    due_in_s: float | None


@dataclass(frozen=True, slots=True)
class Looked:
    """Answer to ``Look``. ``ready``: there is work for us. ``swept``: it was a sweep too,
    which readied so many tasks; ``due_in_s`` is then as a sweep says it, else when a
    snoozed task is due, if soon. ``sleepers``: so many wait for the same work, and are told
    of it by whoever sweeps."""

    ready: bool
    swept: bool
    readied: int
    due_in_s: float | None
    sleepers: int = 0


@dataclass(frozen=True, slots=True)
class Marked:
    """Answer to ``MarkIdle``; false: producers are busy, poll again soon."""

    ok: bool


@dataclass(frozen=True, slots=True)
class Cleared:
    """Answer to ``ClearIdle``."""


@dataclass(frozen=True, slots=True)
class CallFailed:
    """The call under way failed.

    ``refused``: the database refused it as a whole for a bad argument; else it
    is worth trying again. ``sent``: whether it may have taken effect. ``second``: as
    the call said.
    """

    refused: bool = False
    sent: bool = True
    message: str = ""
    second: bool = False


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """The lease of a run is over."""

    token: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Stop after the grace period, or ``now``."""

    now: bool = False


Input: TypeAlias = (
    Tick | Woken | Listening | Ended | Exchanged | SweepDone | Looked | Marked | Cleared
    | CallFailed | LeaseGone | StopAsked
)

# --- commands -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exchange:
    """Settle these and reserve up to ``max_tasks``, ``limits`` per topic. ``second``:
    while another one is under way, on a connection of its own."""

    settlements: Sequence[Settlement]
    topics: Sequence[str]
    limits: Sequence[int]
    max_tasks: int
    second: bool = False


@dataclass(frozen=True, slots=True)
class Sweep:
    """Wake due tasks and take back expired leases."""


@dataclass(frozen=True, slots=True)
class Look:
    """See whether there is work, and sweep if nobody has within a while: what a worker does
    in place of a sweep while it knows of nothing that is due, and an idle one also in place
    of a reserve that finds nothing. ``again``: it swept when it last looked, and others leave
    that to it."""

    again: bool = False


@dataclass(frozen=True, slots=True)
class MarkIdle:
    """Say that this worker sleeps and wants to be notified."""


@dataclass(frozen=True, slots=True)
class ClearIdle:
    """Take that back."""


@dataclass(slots=True)
class Run:
    """Call the handler of this task."""

    task: Leased


@dataclass(frozen=True, slots=True)
class Halt:
    """Tell a run to stop."""

    token: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Forget:
    """Extend these leases no more."""

    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class Settled:
    """Settlements that are through, accepted or refused for good."""

    outcomes: Sequence[tuple[Settlement, Answer]]


Call: TypeAlias = Exchange | Sweep | Look | MarkIdle | ClearIdle
CALLS = (Exchange, Sweep, Look, MarkIdle, ClearIdle)
Command: TypeAlias = Call | Run | Halt | Forget | Settled

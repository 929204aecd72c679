"""Every refusal, one class per SQLSTATE.

The database decides and raises; these classes only carry its answer. Each error
has ``sqlstate`` (class attribute) and ``detail``, the JSON object the database
sent: ``task_id``, ``status``, ``pid``, ``token`` and ``record_ver`` as found,
and under ``expected`` what the caller named. Errors can be pickled, so they
travel between processes whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class SokkaError(Exception):
    """Base of everything this package raises on purpose."""

    sqlstate: ClassVar[str | None] = None

    def __init__(self, message: str, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = dict(detail or {})

    def __reduce__(self) -> tuple[type[SokkaError], tuple[str, dict[str, Any]]]:
        return type(self), (self.message, self.detail)


class Refused(SokkaError):
    """The database refused the call and changed nothing."""


class NoTaskFound(Refused):
    """No task has this id, live or finished (within retention)."""

    sqlstate = "SK001"


class AlreadyDone(Refused):
    """The task is failed or terminated; its record never changes again."""

    sqlstate = "SK002"


class LeaseLost(Refused):
    """The caller is no longer (or never was) the owner: stop the work."""


class WrongOwner(LeaseLost):
    """Another process holds the task."""

    sqlstate = "SK003"


class LeaseExpired(LeaseLost):
    """The lease was the caller's, but its time is over, even if nobody took over."""

    sqlstate = "SK004"


class StaleToken(LeaseLost):
    """The right process with a token that is not the current one."""

    sqlstate = "SK005"


class InvalidStatusTransition(Refused):
    """The task is not in a status that the verb needs."""

    sqlstate = "SK006"


class TaskConcurrentlyUpdated(Refused):
    """The record changed since the version the caller last read."""

    sqlstate = "SK007"


class TaskAlreadyExists(Refused):
    """The task id is in use by a live or finished task."""

    sqlstate = "SK008"


class LeaseHeld(Refused):
    """Another owner's lease on the task is live."""

    sqlstate = "SK009"


class NotDue(Refused):
    """The task is snoozed into the future."""

    sqlstate = "SK010"


class StaleFence(Refused):
    """The fence of this resource has seen a higher token."""

    sqlstate = "SK011"


class UniqueKeyTaken(Refused):
    """An unfinished task of the topic holds the unique key."""

    sqlstate = "SK012"


class Busy(Refused):
    """An open fence or another call holds the row. Nothing is wrong: try again."""

    sqlstate = "55P03"


class WrongIsolation(Refused):
    """A lease verb inside a REPEATABLE READ or SERIALIZABLE transaction."""

    sqlstate = "25001"


class BadArgument(Refused, ValueError):
    """An argument breaks a rule. ``detail`` names ``argument`` and ``rule``."""

    sqlstate = "22023"

    @classmethod
    def of(cls, argument: str, rule: str, value: object = None) -> BadArgument:
        """The refusal of one argument: names it, the rule, and the kind of what
        was given (never the value, which may be a secret)."""
        given = "" if value is None else f" (given: {type(value).__name__})"
        return cls(f"{argument}: {rule}{given}", {"argument": argument, "rule": rule})


class UnfencedWrite(Refused):
    """A guarded table was written without an asserted lease in the transaction."""

    sqlstate = "SK013"


class ScheduleExists(Refused):
    """An unfinished schedule of this name says something else."""

    sqlstate = "SK014"


class NoScheduleFound(Refused):
    """No schedule has this name."""

    sqlstate = "SK015"


class DatabaseUnavailable(SokkaError):
    """The server could not be reached, or the connection broke.

    Whether a statement under way took effect is unknown, except where
    ``detail["sent"]`` is false.
    """


class UnexpectedDatabaseError(SokkaError):
    """The server answered with an error that is not one of our refusals."""


class TransactionConflict(UnexpectedDatabaseError):
    """The server undid the transaction for another's sake (SQLSTATE 40001, 40P01).

    Nothing took effect: repeat the whole transaction.
    """


class SchemaMismatch(SokkaError):
    """The schema in the database is missing or of another version: migrate."""


class UsageError(SokkaError, ValueError):
    """The program asked for something that its own configuration rules out."""


class StopRequested(SokkaError):
    """A handler that was told to stop wanted to wait. ``detail`` names the ``reason``.

    Let it pass: the worker knows how to end the attempt.
    """


class TaskFailed(SokkaError):
    """The task whose result was asked for has none: it failed.

    ``detail`` holds ``task_id`` and ``failure``, the error that was stored.
    """

    @classmethod
    def of(cls, task_id: object, failure: Mapping[str, Any] | None) -> TaskFailed:
        """The error for a failed task: TaskCancelled where it was cancelled."""
        found = dict(failure or {})
        kind = TaskCancelled if found.get("code") == "cancelled" else TaskFailed
        words = found.get("message") or found.get("code") or "failed"
        return kind(f"task {task_id}: {words}", {"task_id": str(task_id), "failure": found})

    @property
    def failure(self) -> dict[str, Any]:
        """The stored error: ``code``, ``message`` and whatever was said beside them."""
        found: dict[str, Any] = self.detail.get("failure") or {}
        return found

    @property
    def code(self) -> str:
        """What the failure is called; ``error`` where nobody gave it a name."""
        return str(self.failure.get("code", "error"))


class TaskCancelled(TaskFailed):
    """The task whose result was asked for was cancelled."""


BY_SQLSTATE: dict[str, type[Refused]] = {
    cls.sqlstate: cls
    for cls in (
        NoTaskFound, AlreadyDone, WrongOwner, LeaseExpired, StaleToken,
        InvalidStatusTransition, TaskConcurrentlyUpdated, TaskAlreadyExists,
        LeaseHeld, NotDue, StaleFence, UniqueKeyTaken, UnfencedWrite, ScheduleExists,
        NoScheduleFound, Busy, WrongIsolation, BadArgument,
    )
    if cls.sqlstate is not None
}

"""How an attempt ended, as the settlement to write."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from sokka_pg.engine.words import Reason, Settlement, Verb
from sokka_pg.errors import BadArgument
from sokka_pg.model import Fail, Json, LeasedTask, Outcome, Retry, Snooze, Wait
from sokka_pg.payload import clean_text, encode, error_object, fit_error

LONGEST_DELAY = timedelta(days=3650)


def from_value(task: LeasedTask, value: object) -> Settlement:
    """The end for what a handler returned: an outcome, or a result to store."""
    if value is None:
        return Settlement(task, Verb.TERMINATE)
    if isinstance(value, Outcome):
        return from_outcome(task, value)
    try:
        return Settlement(task, Verb.TERMINATE, encode(value, "result"))
    except BadArgument as refused:
        error = {"code": "result_not_storable", "message": refused.message}
        return Settlement(task, Verb.FAIL, error)


def from_exception(task: LeasedTask, exc: BaseException) -> Settlement:
    """The end for what a handler raised: an outcome, or an error to retry."""
    if isinstance(exc, Outcome):
        return from_outcome(task, exc)
    return retry(task, error_object(exc))


def from_outcome(task: LeasedTask, outcome: Outcome) -> Settlement:
    """The end that the handler asked for. A malformed outcome is an error of its own."""
    try:
        if isinstance(outcome, Snooze):
            return Settlement(task, Verb.SNOOZE, _seconds("Snooze", outcome.delay))
        if isinstance(outcome, Wait):
            return Settlement(task, Verb.WAIT, _child(outcome))
        if isinstance(outcome, Retry):
            delay = None if outcome.delay is None else _seconds("Retry", outcome.delay)
            return retry(task, _error(outcome.error), delay)
        if isinstance(outcome, Fail):
            return Settlement(task, Verb.FAIL, _failure(outcome))
    except BadArgument as refused:
        return retry(task, {"code": "bad_outcome", "message": refused.message})
    message = f"{type(outcome).__name__} is not an outcome; use Snooze, Retry or Fail"
    return retry(task, {"code": "bad_outcome", "message": message})


def from_halt(task: LeasedTask, reason: Reason) -> Settlement | None:
    """The end of a run that stopped because it was told to."""
    if reason is Reason.LOST:
        return None
    if reason is Reason.TIMEOUT:
        return retry(task, {"code": "timeout", "message": "the attempt took too long"})
    if reason is Reason.CANCEL:
        error = {"code": "cancelled", "message": "cancelled on request"}
        return Settlement(task, Verb.FAIL, error, reason="cancel")
    return Settlement(task, Verb.RELEASE, reason="stop")


def bad_payload(task: LeasedTask, message: object) -> Settlement:
    """The payload does not fit: failed, since no retry can mend it."""
    return Settlement(
        task, Verb.FAIL, {"code": "bad_payload", "message": clean_text(message)}
    )


def retry(task: LeasedTask, error: dict[str, Json], delay_s: float | None = None) -> Settlement:
    return Settlement(task, Verb.RETRY, {"error": error, "delay": delay_s})


def code_of(settlement: Settlement) -> str:
    """The code of the error that a settlement carries."""
    arg = settlement.arg
    error = arg.get("error", arg) if isinstance(arg, dict) else {}
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else "error"


def _seconds(what: str, delay: Any) -> float:
    if not isinstance(delay, timedelta):
        raise BadArgument.of(f"{what}.delay", "must be a timedelta", delay)
    if not timedelta(0) <= delay <= LONGEST_DELAY:
        raise BadArgument.of(f"{what}.delay", "must be from 0 to 10 years", delay)
    return delay.total_seconds()


def _child(outcome: Wait) -> str:
    if not isinstance(outcome.task_id, UUID):
        raise BadArgument.of("Wait.task_id", "must be a UUID", outcome.task_id)
    return str(outcome.task_id)


def _error(error: object) -> dict[str, Json]:
    if isinstance(error, str):
        return {"code": "error", "message": clean_text(error)}
    if not isinstance(error, dict):
        raise BadArgument.of("error", "must be a message or an object", error)
    return fit_error({"code": "error", "message": "", **error})


def _failure(outcome: Fail) -> dict[str, Json]:
    error = _error(outcome.error)
    return fit_error({**error, "details": outcome.details}) if outcome.details else error

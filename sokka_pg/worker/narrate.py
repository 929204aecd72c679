"""What became of settled tasks, as events and log lines."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, TypeVar

from sokka_pg import events
from sokka_pg.calls import Grant
from sokka_pg.engine.outcomes import code_of
from sokka_pg.engine.words import Answer, Leased, Settlement, Verb
from sokka_pg.events import EventFeed, TaskEvent

log = logging.getLogger("sokka_pg.worker")
E = TypeVar("E", bound=TaskEvent)

READY_AND_TAKEN = 2
"""The record_ver of a task whose first change since its creation is this lease."""


def about(kind: type[E], task: Leased, **more: Any) -> E:
    """An event of this kind about a task."""
    return kind(task.task_id, task.topic, task.kind, task.attempt, task.token, **more)


def reserved(task: Grant) -> events.Reserved:
    """That a task was handed to us, and how long that took."""
    # a task that was woken, or handed out before, has been written more than twice
    at_once = task.record_ver == READY_AND_TAKEN
    waited = (task.leased_at - task.created_at).total_seconds() if at_once else None
    return about(events.Reserved, task, waited_s=waited)


def settled(outcomes: Iterable[tuple[Settlement, Answer]], feed: EventFeed) -> None:
    """Tell of settlements that are through; refusals are logged, once each."""
    told: list[TaskEvent] = []
    for settlement, answer in outcomes:
        if answer.verdict != "ok":
            told.append(_refused(settlement, answer))
        elif feed.wanted:
            told.append(_accepted(settlement, answer))
    feed.emit_all(told)


def _accepted(settlement: Settlement, answer: Answer) -> TaskEvent:
    task, took = settlement.task, settlement.duration_s
    status = (answer.detail or {}).get("status")
    if settlement.verb is Verb.TERMINATE or status == "terminated":
        return about(events.Finished, task, duration_s=took)
    if settlement.verb is Verb.RELEASE:
        return about(events.Released, task, reason=settlement.reason)
    if settlement.verb is Verb.SNOOZE:
        if settlement.reason == "unknown_kind":
            return about(events.UnknownKind, task, delay_s=settlement.arg)
        return about(events.SnoozedEvent, task, delay_s=settlement.arg, duration_s=took)
    if settlement.verb is Verb.WAIT and status != "failed":
        return about(events.SnoozedEvent, task, duration_s=took)
    kind = events.Retried if status == "snoozed" else events.Failed
    return about(kind, task, code=code_of(settlement), duration_s=took)


def _refused(settlement: Settlement, answer: Answer) -> TaskEvent:
    task = settlement.task
    if answer.verdict.startswith("SK"):
        log.warning(
            "lost lease: task %s, token %s: %s refused (%s)",
            task.task_id, task.token, settlement.verb, answer.verdict,
        )
    else:
        log.error(
            "task %s cannot be settled (%s): %s; its lease runs out",
            task.task_id, answer.verdict, answer.detail,
        )
    return about(
        events.FenceRefused, task, verb=str(settlement.verb), verdict=answer.verdict
    )

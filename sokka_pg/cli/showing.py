"""How tasks, events and topics look to people: 80 columns, nothing that scripts need."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.table import Column

from sokka_pg.cli import trees
from sokka_pg.cli.output import answer, note, table
from sokka_pg.model import (
    Join,
    Json,
    StepRecord,
    StreamState,
    Task,
    TaskEvent,
    TaskSummary,
    TopicStat,
)

MOST_SHOWN = 4_000
"""Characters of a payload that are shown unless all of it is asked for."""
MOST_STEPS = 20
"""Steps that are shown unless all is asked for."""
_DETAIL_SHOWN = 300
# The year that stands for "when another task says so".
_NEVER = 9998
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def fixed(name: str) -> Column:
    """A column that is never broken over lines: ids and words that people copy."""
    return Column(name, no_wrap=True)


def number(name: str) -> Column:
    return Column(name, justify="right", no_wrap=True)


def loose(name: str) -> Column:
    """A column that takes what room is left, folded where it needs more."""
    return Column(name, overflow="fold", ratio=1)


def age(at: datetime | None, now: datetime | None = None) -> str:
    """How long ago, or ``in 5m``, by this machine's clock: for people only."""
    if at is None:
        return ""
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    return f"in {span(timedelta(seconds=-seconds))}" if seconds <= -1 else span(
        timedelta(seconds=max(0.0, seconds))
    )


def span(length: timedelta | None) -> str:
    """A duration in its largest unit, or its two largest: ``1h30m``, ``45s``, ``250ms``."""
    if length is None:
        return ""
    seconds = length.total_seconds()
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    for i, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            below = _UNITS[i + 1 : i + 2]
            rest = whole % size // below[0][0] if below else 0
            # Beyond a week nobody asks for the hours.
            fine = rest and whole < 7 * 86_400
            return f"{whole // size}{unit}" + (f"{rest}{below[0][1]}" if fine else "")
    return "0s"


def clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def tasks(rows: Sequence[TaskSummary]) -> None:
    now = datetime.now(UTC)
    table(
        (fixed("task"), fixed("status"), loose("topic"), loose("kind"), number("changed")),
        (
            (row.task_id, row.status, row.topic, row.kind, age(row.updated_at, now))
            for row in rows
        ),
    )


def fields(found: Task) -> dict[str, Any]:
    """A task's fields by name."""
    return {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}


def task(
    found: Task, most: int | None, join: Join | None = None, stream: StreamState | None = None
) -> None:
    """Everything about one task; its JSON values cut to ``most`` characters each."""
    table(
        (fixed("task"), loose(str(found.task_id))),
        (*_facts(found), *_facts_of_join(join), *_facts_of_stream(stream)),
    )
    for name in ("data", "result", "error", "progress", "checkpoint"):
        value = getattr(found, name)
        if value is not None:
            _print_json(name, value, most)


def _facts(found: Task) -> Iterable[tuple[str, object]]:
    attempts = f"{found.attempt} granted, {found.failures} failed of {found.max_attempts} at most"
    losses = f"{found.losses} of {found.max_losses} at most"
    lease = "" if found.token is None else f"{found.pid}, token {found.token}"
    facts: tuple[tuple[str, object], ...] = (
        ("status", found.status),
        ("topic", found.topic),
        ("sub-topic", found.sub_topic),
        ("kind", found.kind),
        ("group", None if found.task_group_id == found.task_id else found.task_group_id),
        ("parent", found.parent_task_id),
        ("candidate", found.candidate),
        ("priority", found.priority),
        ("record_ver", found.record_ver),
        ("attempts", attempts),
        ("leases lost", losses if found.losses else None),
        ("lease", lease),
        ("leased at", found.leased_at),
        ("lease expires at", found.lease_expires_at),
        ("cancel requested", found.cancel_requested_at),
        ("cancel reason", found.cancel_reason),
        ("created at", found.created_at),
        ("run at", found.run_at if found.run_at.year < _NEVER else "when other tasks end"),
        ("changed at", found.updated_at),
        ("finished at", found.finished_at),
        ("expires at", found.expires_at),
        ("timeout", span(found.timeout)),
        ("unique key", found.unique_key),
        ("resubmit of", found.resubmit_of),
        ("retry", found.retry),
        ("headers", found.headers),
        ("checkpoint at", found.checkpoint_at),
    )
    return (fact for fact in facts if fact[1] not in (None, ""))


def _facts_of_join(join: Join | None) -> Iterable[tuple[str, object]]:
    if join is None:
        return
    yield "fan-out", trees.counts(join)
    if join.deadline_at is not None:
        yield "deadline", join.deadline_at
    if join.decided_at is not None:
        yield "decided at", join.decided_at


def _facts_of_stream(stream: StreamState | None) -> Iterable[tuple[str, object]]:
    if stream is None:
        return
    yield "stream", f"{stream.last_seq} items written, {stream.consumed_seq} read"
    yield (
        "to be read",
        f"{stream.pending_items} items of {stream.max_items} at most, "
        f"{stream.pending_bytes} bytes of {stream.max_bytes}",
    )


def steps(rows: Sequence[StepRecord], most: int | None) -> None:
    """The recorded steps: the last few, and cut, unless ``most`` is None."""
    if not rows:
        return
    shown = rows if most is None else rows[-MOST_STEPS:]
    answer(None, "", as_json=False)
    table(
        (number("#"), loose("step"), fixed("recorded at (UTC)"), loose("value")),
        ((row.seq, row.name, _moment(row.recorded_at), _value(row.value, most)) for row in shown),
    )
    if len(shown) < len(rows):
        note(f"the last {len(shown)} of {len(rows)} steps; --full shows all")


def _value(value: Json, most: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if most is None else clip(text, _DETAIL_SHOWN)


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%m-%d %H:%M:%S.%f")[:-3]


def _print_json(name: str, value: Json, most: int | None) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if most is not None and len(text) > most:
        text = f"{text[:most]}\n… ({len(text)} characters; --full shows all)"
    answer(None, f"{name}:\n{text}", as_json=False)


def history(events: Sequence[TaskEvent]) -> None:
    table(
        (
            number("#"), fixed("at (UTC)"), fixed("event"), number("try"), number("token"),
            loose("by, detail"),
        ),
        (
            (
                event.seq,
                _moment(event.at),
                event.event,
                event.attempt,
                event.token,
                _by_and_detail(event),
            )
            for event in events
        ),
    )  # fmt: skip


def _by_and_detail(event: TaskEvent) -> str:
    detail: Any = event.detail
    text = "" if not detail else json.dumps(detail, ensure_ascii=False, default=str)
    return "; ".join(part for part in (event.pid or "", clip(text, _DETAIL_SHOWN)) if part)


def topics(rows: Sequence[TopicStat]) -> None:
    now = datetime.now(UTC)
    table(
        (
            loose("topic"), number("ready"), number("running"), number("snoozed"),
            number("oldest"), number("paused"), number("lease"), number("kept"),
        ),
        (
            (
                row.topic, row.starting, row.running, row.snoozed,
                age(row.oldest_ready_at, now), age(row.paused_at, now),
                span(row.lease), span(row.retention),
            )
            for row in rows
        ),
    )  # fmt: skip

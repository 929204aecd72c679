"""One event of each class."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sokka_pg import events
from sokka_pg.events import Event, TaskEvent

ID = UUID(int=1)


def task(topic: str = "t", kind: str = "k") -> tuple[Any, ...]:
    """The fields that all events of a task have."""
    return ID, topic, kind, 1, 7


def concrete() -> set[type[Event]]:
    """Every class of the module that is no base of others."""
    found = {
        cls for cls in vars(events).values() if isinstance(cls, type) and issubclass(cls, Event)
    }
    return found - {Event, TaskEvent}


EVENTS: tuple[Event, ...] = (
    events.Reserved(*task(), waited_s=0.1),
    events.Started(*task()),
    events.Finished(*task(), duration_s=0.1),
    events.Failed(*task(), code="boom", duration_s=0.1),
    events.Retried(*task(), code="boom", duration_s=0.1),
    events.SnoozedEvent(*task(), delay_s=5.0, duration_s=0.1),
    events.Released(*task(), reason="stop"),
    events.Lost(*task(), reason="watchdog"),
    events.FenceRefused(*task(), verb="fail", verdict="SK005"),
    events.CancelRequested(*task()),
    events.Abandoned(*task(), reason="timeout"),
    events.UnknownKind(*task(), delay_s=1.0),
    events.Called("exchange", 0.01, settled=1, reserved=2),
    events.Extended(3, 0.01),
    events.Swept(1, 0, 0, 0),
    events.Fired("nightly", datetime(2026, 1, 2, tzinfo=UTC), ID, 0.2),
    events.Disconnected("desk", "server closed the connection"),
    events.Reconnected("desk", 1.5),
    events.WorkerStarted("w", ("t",)),
    events.WorkerStopping("w", False),
    events.WorkerStopped("w", 0),
)

"""What a worker says about itself while it works.

Each event is a frozen value. Events of one task carry its id, topic, kind,
attempt and token; those of the worker carry what changed. Durations are in
seconds (``*_s``).

An observer is any object with ``notice(event)``. It is called on a thread of
its own, never by a handler or by the worker's loop: an observer that is slow
loses events (counted), one that raises is silenced, and neither slows or
breaks a run. The observers of one worker share that thread, so a slow one also
holds up the others. One that has an attribute ``ignores``, a set of kinds of events,
need not be told of those: where nobody wants a kind, there may be none of it.

A `Companion` is an observer that goes along as well: what traces need.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable
from uuid import UUID

if TYPE_CHECKING:
    from sokka_pg.model import LeasedTask

log = logging.getLogger("sokka_pg")


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class TaskEvent(Event):
    """Something happened to one task under one lease."""

    task_id: UUID
    topic: str
    kind: str
    attempt: int
    token: int


@dataclass(frozen=True, slots=True)
class Reserved(TaskEvent):
    """The task was handed to this worker.

    ``waited_s``: since it was created, by the database's clock. None for a task that
    was not ready all that time: one for later, or one that was handed out before.
    """

    waited_s: float | None = None


@dataclass(frozen=True, slots=True)
class Started(TaskEvent):
    """Its handler is about to be called."""


@dataclass(frozen=True, slots=True)
class Finished(TaskEvent):
    """The task is terminated and its result stored."""

    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed(TaskEvent):
    """The task is failed, for good. ``code`` is the code of its error."""

    code: str = "error"
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Retried(TaskEvent):
    """An attempt ended in an error, and the task waits for its next attempt."""

    code: str = "error"
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SnoozedEvent(TaskEvent):
    """The handler put its task to sleep."""

    delay_s: float = 0.0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Released(TaskEvent):
    """The task was given back with its attempt."""

    reason: str = "stop"


@dataclass(frozen=True, slots=True)
class Lost(TaskEvent):
    """The lease ended under the handler, which is cancelled.

    ``reason`` is ``watchdog`` (not renewed in time, by this process's own
    monotonic clock) or the SQLSTATE of the refusal that told.
    """

    reason: str = "watchdog"


@dataclass(frozen=True, slots=True)
class FenceRefused(TaskEvent):
    """The database refused this worker's write because the lease was over.

    ``verb`` is what was refused, ``verdict`` the SQLSTATE.
    """

    verb: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequested(TaskEvent):
    """Somebody asked for the running task to be cancelled."""


@dataclass(frozen=True, slots=True)
class Abandoned(TaskEvent):
    """A handler did not stop when told to; its task was settled without it.

    It still takes a slot of this worker until it returns.
    """

    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnknownKind(TaskEvent):
    """No handler here for the task's kind: it sleeps ``delay_s``, for others."""

    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Called(Event):
    """The worker's desk asked the database, and had its answer after ``took_s``.

    ``call`` is ``exchange`` (``settled`` attempts written and ``reserved`` tasks
    taken, in one statement) or ``sweep``. Calls that failed are not told.
    """

    call: str
    took_s: float
    settled: int = 0
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Extended(Event):
    """One statement extended ``count`` leases and took ``took_s``."""

    count: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Swept(Event):
    """A sweep that changed something."""

    woken: int
    taken_back: int
    expired: int
    failed_lost: int


@dataclass(frozen=True, slots=True)
class Fired(Event):
    """A tick of a schedule became a task, ``late_s`` after the tick's instant."""

    name: str
    fire_at: datetime
    task_id: UUID
    late_s: float


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """The database stopped answering. Said once for each outage and part.

    ``part`` is ``desk`` (reserve and settle), ``keeper`` (leases) or
    ``listener``.
    """

    part: str
    error: str


@dataclass(frozen=True, slots=True)
class Reconnected(Event):
    """The database answers again after ``after_s``, under the same pid."""

    part: str
    after_s: float


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """The worker is about to reserve."""

    pid: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerStopping(Event):
    """The worker reserves no more. ``now``: without the grace period."""

    pid: str
    now: bool


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """The worker is done. ``unsettled`` leases were left to run out."""

    pid: str
    unsettled: int


class Observer(Protocol):
    """Somebody who wants to know."""

    def notice(self, event: Event, /) -> None:
        """Take note of an event; called on one thread, in order."""


@runtime_checkable
class Companion(Protocol):
    """An observer that goes along with enqueues and runs.

    Both are entered where the work is done, on its thread or loop, and so must not
    wait for anything. What they raise is logged once, and changes nothing.
    """

    def enqueuing(
        self, topic: str, kind: str, headers: Mapping[str, str], /
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Around the creation of a task; gives headers to add to its own."""

    def running(self, task: LeasedTask, /) -> AbstractContextManager[object]:
        """Around the call of a task's handler."""


def companions_of(observers: Iterable[object]) -> tuple[Companion, ...]:
    """Those of the observers that go along."""
    return tuple(each for each in observers if isinstance(each, Companion))


@contextmanager
def enqueuing(
    observers: Iterable[object], topic: str, kind: str, given: Mapping[str, str] | None
) -> Iterator[Mapping[str, str] | None]:
    """Around the creation of a task: its headers, with what companions add. What the
    caller gave is never replaced."""
    with ExitStack() as stack:
        headers = given
        # what is no mapping is refused later, with a better word than ours
        own = given if isinstance(given, Mapping) else {}
        for each in companions_of(observers):
            added = stack.enter_context(_Harmless(each, each.enqueuing, topic, kind, own))
            if added and (given is None or given is own):
                headers = {**_headers(added), **(headers or {})}
        yield headers


def _headers(added: object) -> Mapping[str, str]:
    """What can be stored of that: an enqueue must not fail for an observer's fault."""
    pairs = added.items() if isinstance(added, Mapping) else ()
    return {key: text for key, text in pairs if isinstance(key, str) and isinstance(text, str)}


@contextmanager
def running(companions: Sequence[Companion], task: LeasedTask) -> Iterator[None]:
    """Around the call of a handler."""
    with ExitStack() as stack:
        for each in companions:
            stack.enter_context(_Harmless(each, each.running, task))
        yield


T = TypeVar("T")


class _Harmless(Generic[T]):
    """A companion's block, which can neither raise nor keep an exception from passing."""

    def __init__(
        self, owner: object, make: Callable[..., AbstractContextManager[T]], *arguments: object
    ) -> None:
        self._owner, self._make, self._arguments = owner, make, arguments
        self._block: AbstractContextManager[T] | None = None

    def __enter__(self) -> T | None:
        try:
            block = self._make(*self._arguments)
            entered = block.__enter__()
        except BaseException as exc:
            _complain(self._owner, exc)
            return None
        self._block = block
        return entered

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._block is None:
            return
        try:
            self._block.__exit__(kind, exc, trace)
        except BaseException as raised:
            if raised is not exc:
                _complain(self._owner, raised)


_complained: set[str] = set()


def _complain(observer: object, exc: BaseException) -> None:
    """Once for each class of observers, and process."""
    name = type(observer).__qualname__
    if name not in _complained:
        _complained.add(name)
        _log_raised(observer, exc)


def _log_raised(observer: object, exc: BaseException) -> None:
    log.warning(
        "observer %s raised %s; its further errors are not logged",
        type(observer).__name__, type(exc).__name__,
    )


GATHER_S = 0.02


def _ignored_by_all(observers: Iterable[Observer]) -> frozenset[type[Event]]:
    ignored: list[frozenset[type[Event]]] = []
    for observer in observers:
        try:
            ignored.append(frozenset(getattr(observer, "ignores", ())))
        except Exception as exc:
            _complain(observer, exc)
            return frozenset()
    return frozenset.intersection(*ignored) if ignored else frozenset()


class EventFeed:
    """Hands events to observers from a thread of its own.

    At most ``limit`` events wait; what comes on top is dropped and counted in
    ``dropped``. Without observers ``wanted`` is false and nothing is started.
    """

    def __init__(self, observers: Iterable[Observer] = (), limit: int = 10_000) -> None:
        self.observers: tuple[Observer, ...] = tuple(observers)
        self.companions = companions_of(self.observers)
        self.wanted = bool(self.observers)
        self._ignored = _ignored_by_all(self.observers)
        self.dropped = 0
        self._limit = limit
        self._waiting: deque[Event] = deque()
        self._news = threading.Condition()
        self._closed = False
        self._gathering = False
        self._silenced: set[int] = set()
        self._thread: threading.Thread | None = None

    def wants(self, kind: type[Event]) -> bool:
        """Whether somebody wants events of this kind."""
        return self.wanted and kind not in self._ignored

    def emit(self, *events: Event) -> None:
        """Queue events; returns at once and never raises."""
        if self.wanted and events:
            self.emit_all(events)

    def emit_all(self, events: Sequence[Event]) -> None:
        """Queue several events under one lock."""
        if not self.wanted:
            return
        with self._news:
            room = max(0, self._limit - len(self._waiting))
            self._waiting.extend(events[:room])
            self.dropped += max(0, len(events) - room)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._deliver, name="sokka-events", daemon=True
                )
                self._thread.start()
            if not self._gathering:
                self._news.notify()

    def close(self, timeout_s: float = 2.0) -> None:
        """Deliver what waits, for at most ``timeout_s``, and stop."""
        with self._news:
            self._closed = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _deliver(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closed)
                batch = list(self._waiting)
                self._waiting.clear()
                if not batch and self._closed:
                    return
            for event in batch:
                for observer in self.observers:
                    self._tell(observer, event)
            self._gather()

    def _gather(self) -> None:
        """Let some events come together: each time that this thread is woken the worker's
        loop waits for it."""
        with self._news:
            self._gathering = not self._closed
            self._news.wait_for(lambda: self._closed, GATHER_S)
            self._gathering = False

    def _tell(self, observer: Observer, event: Event) -> None:
        try:
            observer.notice(event)
        except BaseException as exc:
            # an observer's SystemExit must not end the feed for the others
            if id(observer) not in self._silenced:
                self._silenced.add(id(observer))
                _log_raised(observer, exc)

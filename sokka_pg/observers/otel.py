"""OpenTelemetry: a trace from the enqueue to the handler, through the task's headers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sokka_pg import events
from sokka_pg.model import LeasedTask, Outcome

_PROPAGATOR = TraceContextTextMapPropagator()
_SYSTEM = {"messaging.system": "sokka"}


def trace_context(headers: Mapping[str, str] | None) -> Context:
    """The trace that a task's headers name, as a context: for spans of a handler that
    runs in a process of its own, or of callers that reserve by themselves. A fresh one
    if they name none."""
    return _PROPAGATOR.extract(dict(headers or {}), context=Context())


class OpenTelemetryObserver:
    """A span for each enqueue of the app, and one for each run of a handler below it.

    The enqueue puts ``traceparent`` (and ``tracestate``) into the task's headers,
    unless they are given; the run takes them from there, on whatever machine. While
    the handler runs its span is the current one, so that the spans of libraries stand
    below it (not in a child process: there use ``trace_context``). Without a provider
    the global one counts. Lost leases, requests to cancel and handlers that do not
    stop become events of the span.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("sokka_pg", tracer_provider=tracer_provider)
        self._runs: dict[int, Span] = {}
        self._lock = threading.Lock()

    def notice(self, event: events.Event, /) -> None:
        """Note on the run's span what happens to it from outside."""
        if isinstance(event, events.Lost | events.CancelRequested | events.Abandoned):
            with self._lock:
                span = self._runs.get(event.token)
            if span is not None:
                reason = getattr(event, "reason", "")
                span.add_event(type(event).__name__, {"reason": reason} if reason else {})

    @contextmanager
    def enqueuing(
        self, topic: str, kind: str, headers: Mapping[str, str], /
    ) -> Iterator[Mapping[str, str]]:
        """Around the creation of a task."""
        parent = trace_context(headers) if "traceparent" in headers else None
        with self._span(f"send {topic}", SpanKind.PRODUCER, parent, {
            "messaging.operation.type": "send", "messaging.destination.name": topic,
            "sokka_pg.kind": kind,
        }):  # fmt: skip
            added: dict[str, str] = {}
            _PROPAGATOR.inject(added)
            yield added

    @contextmanager
    def running(self, task: LeasedTask, /) -> Iterator[None]:
        """Around the call of a handler."""
        with self._span(f"process {task.topic}", SpanKind.CONSUMER, trace_context(task.headers), {
            "messaging.operation.type": "process", "messaging.destination.name": task.topic,
            "messaging.message.id": str(task.task_id), "sokka_pg.kind": task.kind,
            "sokka_pg.attempt": task.attempt, "sokka_pg.token": task.token,
        }) as span:  # fmt: skip
            with self._lock:
                self._runs[task.token] = span
            try:
                yield
            finally:
                with self._lock:
                    self._runs.pop(task.token, None)

    @contextmanager
    def _span(
        self, name: str, kind: SpanKind, parent: Context | None, attributes: Mapping[str, str | int]
    ) -> Iterator[Span]:
        """A current span. An outcome that a handler raises, such as Snooze, is no error."""
        span = self._tracer.start_span(
            name, context=parent if parent is not None else contexts.get_current(), kind=kind,
            attributes={**_SYSTEM, **attributes},
        )
        with use_span(
            span, end_on_exit=True, record_exception=False, set_status_on_exception=False
        ):
            try:
                yield span
            except Outcome as outcome:
                span.set_attribute("sokka_pg.outcome", type(outcome).__name__)
                raise
            except BaseException as exc:
                # the name only: a message may hold what is nobody else's business
                span.set_status(Status(StatusCode.ERROR, type(exc).__name__))
                span.set_attribute("error.type", type(exc).__name__)
                raise

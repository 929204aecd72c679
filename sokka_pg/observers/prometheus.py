"""Events as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from sokka_pg import events
from sokka_pg.errors import UsageError
from sokka_pg.observers import families as f
from sokka_pg.observers.bounded import MOST, Bounded
from sokka_pg.observers.families import Family, Sort
from sokka_pg.observers.jobs import JobEvent, job_event

_RESULTS: Mapping[type[events.Event], str] = {
    events.Finished: "succeeded",
    events.Failed: "failed",
    events.Retried: "retried",
    events.SnoozedEvent: "snoozed",
    events.Released: "released",
    events.Lost: "lost",
    events.FenceRefused: "refused",
    events.UnknownKind: "unknown_kind",
}
_RAN = (events.Finished, events.Failed, events.Retried, events.SnoozedEvent)
UNCOUNTED = frozenset({events.Started, events.WorkerStopping, events.WorkerStopped})
"""Events that no metric is made of."""
_MOST_KEPT = 2_000


class PrometheusObserver:
    """Counts what workers and job schedulers tell, in ``registry``.

    Give one observer to as many workers and schedulers of a process as you like.
    The number of series has a bound: of topics with kinds, topics, jobs, schedules
    and error codes the first ``most`` keep their names, later ones are
    ``other``. Raises UsageError if the registry has these metrics already.
    """

    ignores = UNCOUNTED

    def __init__(self, registry: CollectorRegistry | None = None, *, most: int = MOST) -> None:
        self.registry = REGISTRY if registry is None else registry
        self._metrics: dict[str, Any] = dict(_made((*f.OF_EVENTS, *f.OF_JOBS), self.registry))
        self._bounds = {
            name: Bounded(most)
            for name in ("topic", "topic_kind", "code", "job", "skip", "schedule", "fixed")
        }
        self._kept: dict[tuple[str, tuple[str, ...], str], Any] = {}
        self._of_events: dict[type[events.Event], Callable[[Any], None]] = {
            events.Reserved: self._reserved,
            events.CancelRequested: self._cancel_requested,
            events.Abandoned: self._abandoned,
            events.Called: lambda event: self._called(event.call, event.took_s),
            events.Extended: lambda event: self._called("extend", event.took_s),
            events.Swept: self._swept,
            events.Fired: self._fired,
            events.Disconnected: self._disconnected,
            events.Reconnected: self._reconnected,
            events.WorkerStarted: self._worker_started,
        }

    def notice(self, event: object, /) -> None:
        """Take note of an event of a worker, or of a job."""
        kind: type[Any] = type(event)
        if kind in _RESULTS:
            self._attempt_ended(event, _RESULTS[kind])
        elif kind in self._of_events:
            self._of_events[kind](event)
        elif (job := job_event(event)) is not None:
            self._job(job)

    observe = notice

    def _child(self, family: Family, *labels: str) -> Any:
        metric = self._metrics[family.name]
        return metric.labels(*labels) if labels else metric

    def _series(self, family: Family, bound: str, *names: str, more: str = "") -> Any:
        """The child of a family for bounded names, and one label ``more`` that needs no
        bound. Kept: to look it up takes four times as long as to count."""
        place = family.name, names, more
        found = self._kept.get(place)
        if found is None:
            labels = self._bounds[bound](*names)
            found = self._child(family, *labels, *((more,) if more else ()))
            if len(self._kept) < _MOST_KEPT:
                self._kept[place] = found
        return found

    # --- tasks ------------------------------------------------------------

    def _reserved(self, event: events.Reserved) -> None:
        self._series(f.RESERVED, "topic", event.topic).inc()
        if event.waited_s is not None:
            waited = self._series(f.PICKUP_SECONDS, "topic", event.topic)
            waited.observe(max(0.0, event.waited_s))

    def _attempt_ended(self, event: Any, result: str) -> None:
        names = event.topic, event.kind
        self._series(f.ATTEMPTS, "topic_kind", *names, more=result).inc()
        if isinstance(event, _RAN):
            self._series(f.ATTEMPT_SECONDS, "topic_kind", *names).observe(event.duration_s)
        if isinstance(event, events.Failed | events.Retried):
            self._series(f.ERRORS, "code", event.code).inc()
        elif isinstance(event, events.FenceRefused):
            self._series(f.REFUSALS, "fixed", event.verb, event.verdict).inc()
        elif isinstance(event, events.Lost):
            self._child(f.LOST_LEASES, event.reason).inc()

    def _cancel_requested(self, event: events.CancelRequested) -> None:
        self._series(f.CANCELS, "topic", event.topic).inc()

    def _abandoned(self, event: events.Abandoned) -> None:
        self._series(f.ABANDONED, "topic_kind", event.topic, event.kind).inc()

    # --- the worker -------------------------------------------------------

    def _called(self, call: str, took_s: float) -> None:
        self._child(f.CALL_SECONDS, call).observe(took_s)

    def _swept(self, event: events.Swept) -> None:
        for what in ("woken", "taken_back", "expired", "failed_lost"):
            self._child(f.SWEPT, what).inc(getattr(event, what))

    def _disconnected(self, event: events.Disconnected) -> None:
        self._child(f.OUTAGES, event.part).inc()
        self._child(f.PART_UP, event.part).set(0)

    def _reconnected(self, event: events.Reconnected) -> None:
        self._child(f.PART_UP, event.part).set(1)

    def _worker_started(self, event: events.WorkerStarted) -> None:
        for part in ("desk", "keeper"):
            self._child(f.PART_UP, part).set(1)

    def _fired(self, event: events.Fired) -> None:
        self._series(f.TICKS, "schedule", event.name).inc()
        self._child(f.TICK_LATE_SECONDS).observe(max(0.0, event.late_s))

    # --- jobs -------------------------------------------------------------

    def _job(self, event: JobEvent) -> None:
        if event.kind in ("succeeded", "failed"):
            self._series(f.JOB_RUNS, "job", event.job, more=event.kind).inc()
            self._series(f.JOB_SECONDS, "job", event.job).observe(event.duration_s)
        if event.kind == "succeeded":
            self._series(f.JOB_LAST_SUCCESS, "job", event.job).set(event.at_unix)
        elif event.kind == "retrying":
            self._series(f.JOB_RETRIES, "job", event.job).inc()
        elif event.kind == "skipped":
            self._series(f.JOB_SKIPS, "skip", event.job, event.reason).inc()


def _made(wanted: Iterable[Family], registry: CollectorRegistry) -> Iterable[tuple[str, Any]]:
    for family in wanted:
        try:
            yield family.name, _metric(family, registry)
        except ValueError as error:
            raise UsageError(
                "this registry has sokka's metrics already: one PrometheusObserver may serve"
                " many workers, or give each a registry of its own"
            ) from error


def _metric(family: Family, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if family.sort is Sort.HISTOGRAM:
        return Histogram(
            family.name, family.text, family.labels, registry=registry, buckets=family.buckets
        )
    kind = Counter if family.sort is Sort.COUNTER else Gauge
    return kind(family.name, family.text, family.labels, registry=registry)


__all__ = ["UNCOUNTED", "PrometheusObserver"]

"""Events become metrics, of which there is a bounded number."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from sokka_pg import events
from sokka_pg.errors import UsageError
from sokka_pg.events import Event
from sokka_pg.observers import PrometheusObserver
from sokka_pg.observers.prometheus import UNCOUNTED
from tests.observers.conftest import Value
from tests.observers.samples import EVENTS, task


class Kind(StrEnum):
    SCHEDULED = "scheduled"
    STARTED = "started"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass
class JobEvent:
    """The shape of the job scheduler's events."""

    kind: Kind
    job_name: str
    attempt: int = 1
    duration: timedelta = timedelta(0)
    reason: str = ""
    timestamp: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    error: Exception | None = None


@pytest.fixture
def observer(registry: CollectorRegistry) -> PrometheusObserver:
    return PrometheusObserver(registry)


def test_the_ends_of_attempts_are_counted_by_topic_kind_and_result(
    observer: PrometheusObserver, value: Value
) -> None:
    observer.notice(events.Finished(*task("mail", "send"), duration_s=0.2))
    observer.notice(events.Failed(*task("mail", "send"), code="boom", duration_s=2.0))
    observer.notice(events.Lost(*task("mail", "send"), reason="watchdog"))
    observer.notice(events.FenceRefused(*task("mail", "send"), verb="fail", verdict="SK005"))
    for result in ("succeeded", "failed", "lost", "refused"):
        labels = {"topic": "mail", "kind": "send", "result": result}
        assert value("sokka_attempts_total", **labels) == 1, result
    assert value("sokka_attempt_duration_seconds_count", topic="mail", kind="send") == 2
    assert value("sokka_attempt_duration_seconds_sum", topic="mail", kind="send") == 2.2
    assert value("sokka_errors_total", code="boom") == 1
    assert value("sokka_refusals_total", verb="fail", code="SK005") == 1
    assert value("sokka_lost_leases_total", reason="watchdog") == 1


def test_the_pickup_is_that_of_tasks_that_were_ready_all_the_time(
    observer: PrometheusObserver, value: Value
) -> None:
    observer.notice(events.Reserved(*task("mail"), waited_s=0.5))
    observer.notice(events.Reserved(*task("mail"), waited_s=None))
    assert value("sokka_reserved_total", topic="mail") == 2
    assert value("sokka_pickup_seconds_count", topic="mail") == 1


def test_an_outage_of_a_part_is_counted_and_shown_until_it_is_over(
    observer: PrometheusObserver, value: Value
) -> None:
    observer.notice(events.WorkerStarted("w", ("mail",)))
    assert value("sokka_part_up", part="desk") == 1
    observer.notice(events.Disconnected("desk", "gone"))
    assert value("sokka_part_up", part="desk") == 0
    observer.notice(events.Reconnected("desk", 2.0))
    assert value("sokka_part_up", part="desk") == 1
    assert value("sokka_outages_total", part="desk") == 1


def test_job_events_become_the_metrics_of_jobs(
    observer: PrometheusObserver, value: Value
) -> None:
    for event in (
        JobEvent(Kind.SCHEDULED, "report"),
        JobEvent(Kind.STARTED, "report"),
        JobEvent(Kind.RETRYING, "report", reason="1s"),
        JobEvent(Kind.SUCCEEDED, "report", attempt=2, duration=timedelta(seconds=3)),
        JobEvent(Kind.FAILED, "report", duration=timedelta(seconds=1)),
        JobEvent(Kind.SKIPPED, "report", reason="overlap"),
    ):
        observer.observe(event)
    assert value("sokka_job_runs_total", job="report", result="succeeded") == 1
    assert value("sokka_job_runs_total", job="report", result="failed") == 1
    assert value("sokka_job_retries_total", job="report") == 1
    assert value("sokka_job_skips_total", job="report", reason="overlap") == 1
    assert value("sokka_job_run_duration_seconds_sum", job="report") == 4
    assert value("sokka_job_last_success_unixtime", job="report") == 1767312000


def test_names_beyond_the_bound_become_other(
    registry: CollectorRegistry, value: Value
) -> None:
    observer = PrometheusObserver(registry, most=3)
    for number in range(10):
        observer.notice(events.Failed(*task(f"t{number}", f"k{number}"), code=f"c{number}"))
        observer.observe(JobEvent(Kind.SUCCEEDED, f"j{number}"))
    other = {"topic": "other", "kind": "other", "result": "failed"}
    assert value("sokka_attempts_total", **other) == 7
    assert value("sokka_errors_total", code="other") == 7
    assert value("sokka_job_runs_total", job="other", result="succeeded") == 7
    observer.notice(events.Failed(*task("t0", "k0"), code="c0"))
    assert value("sokka_attempts_total", topic="t0", kind="k0", result="failed") == 2
    for metric in registry.collect():
        series = {tuple(sorted(s.labels.items())) for s in metric.samples if "le" not in s.labels}
        assert len(series) <= 4, metric.name


def test_every_event_is_counted_or_known_to_be_left_out(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    for event in EVENTS:
        before = samples(registry)
        observer.notice(event)
        changed = samples(registry) != before
        assert changed == (type(event) not in UNCOUNTED), type(event).__name__


def test_an_event_of_somebody_else_is_passed_over(
    registry: CollectorRegistry, observer: PrometheusObserver
) -> None:
    class Odd(Event):
        pass

    before = samples(registry)
    observer.notice(Odd())
    observer.notice(object())
    assert samples(registry) == before


def test_a_registry_takes_one_observer(registry: CollectorRegistry) -> None:
    PrometheusObserver(registry)
    with pytest.raises(UsageError, match="has sokka's metrics already"):
        PrometheusObserver(registry)


def samples(registry: CollectorRegistry) -> list[tuple[str, object, float]]:
    return [
        (s.name, s.labels, s.value) for metric in registry.collect() for s in metric.samples
        if not s.name.endswith("_created")
    ]


def test_a_fired_tick_tells_how_late_it_was(observer: PrometheusObserver, value: Value) -> None:
    observer.notice(events.Fired("nightly", datetime(2026, 1, 2, tzinfo=UTC), uuid4(), 0.25))
    assert value("sokka_schedule_ticks_total", schedule="nightly") == 1
    assert value("sokka_schedule_tick_late_seconds_sum") == 0.25

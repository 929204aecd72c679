"""Every metric, once: its name, type, labels and unit.

What exports them is made from these, and docs/metrics.md is compared with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Sort(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric. A counter's name ends in ``_total``; all times are in seconds."""

    name: str
    sort: Sort
    labels: tuple[str, ...]
    unit: str
    text: str
    buckets: tuple[float, ...] = ()


# A call of the database; the wait of a task; the run of a handler, or of a job.
_CALLS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
_RUNS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)


def _counter(name: str, labels: str, unit: str, text: str) -> Family:
    return Family(name, Sort.COUNTER, tuple(labels.split()), unit, text)


def _gauge(name: str, labels: str, unit: str, text: str) -> Family:
    return Family(name, Sort.GAUGE, tuple(labels.split()), unit, text)


def _histogram(name: str, labels: str, text: str, buckets: tuple[float, ...]) -> Family:
    return Family(name, Sort.HISTOGRAM, tuple(labels.split()), "seconds", text, buckets)


# --- what this worker's events tell ----------------------------------------

RESERVED = _counter("sokka_reserved_total", "topic", "tasks", "tasks handed to this worker")
ATTEMPTS = _counter(
    "sokka_attempts_total", "topic kind result", "attempts", "how attempts here ended"
)
ATTEMPT_SECONDS = _histogram(
    "sokka_attempt_duration_seconds", "topic kind", "how long handlers ran", _RUNS
)
PICKUP_SECONDS = _histogram(
    "sokka_pickup_seconds", "topic",
    "from creation to lease, of tasks that were ready all that time", _WAITS,
)
ERRORS = _counter("sokka_errors_total", "code", "attempts", "attempts that ended in an error")
REFUSALS = _counter(
    "sokka_refusals_total", "verb code", "writes",
    "writes that the database refused because the lease was over",
)
LOST_LEASES = _counter(
    "sokka_lost_leases_total", "reason", "leases", "leases that ended under their handler"
)
CANCELS = _counter(
    "sokka_cancel_requests_total", "topic", "tasks", "running tasks that were to be cancelled"
)
ABANDONED = _counter(
    "sokka_abandoned_total", "topic kind", "handlers", "handlers that did not stop when told to"
)
CALL_SECONDS = _histogram(
    "sokka_call_seconds", "call", "how long the worker's own statements took", _CALLS
)
SWEPT = _counter("sokka_swept_total", "what", "tasks", "tasks that this worker's sweeps moved")
OUTAGES = _counter(
    "sokka_outages_total", "part", "outages", "times that the database stopped answering"
)
PART_UP = _gauge("sokka_part_up", "part", "0 or 1", "whether the database answers this part")
TICKS = _counter("sokka_schedule_ticks_total", "schedule", "ticks", "ticks that became tasks")
TICK_LATE_SECONDS = _histogram(
    "sokka_schedule_tick_late_seconds", "", "how late ticks became tasks", _WAITS
)

OF_EVENTS = (
    RESERVED, ATTEMPTS, ATTEMPT_SECONDS, PICKUP_SECONDS, ERRORS, REFUSALS, LOST_LEASES, CANCELS,
    ABANDONED, CALL_SECONDS, SWEPT, OUTAGES, PART_UP, TICKS, TICK_LATE_SECONDS,
)  # fmt: skip

# --- local jobs ------------------------------------------------------------

JOB_RUNS = _counter("sokka_job_runs_total", "job result", "runs", "runs of jobs that ended")
JOB_SKIPS = _counter("sokka_job_skips_total", "job reason", "runs", "runs that were skipped")
JOB_RETRIES = _counter("sokka_job_retries_total", "job", "attempts", "attempts after the first")
JOB_SECONDS = _histogram(
    "sokka_job_run_duration_seconds", "job", "how long runs took", _RUNS
)
JOB_LAST_SUCCESS = _gauge(
    "sokka_job_last_success_unixtime", "job", "seconds since 1970", "when a run last succeeded"
)

OF_JOBS = (JOB_RUNS, JOB_SKIPS, JOB_RETRIES, JOB_SECONDS, JOB_LAST_SUCCESS)

# --- the worker's own figures ----------------------------------------------

SLOTS = _gauge("sokka_worker_slots", "", "handlers", "handlers that may run at a time")
RUNNING = _gauge("sokka_worker_running", "", "handlers", "handlers under way")
DROPPED = _counter(
    "sokka_events_dropped_total", "", "events", "events that slow observers did not get"
)
POOL_CONNECTIONS = _gauge(
    "sokka_pool_connections", "pool state", "connections", "the handlers' connections"
)
POOL_MOST = _gauge("sokka_pool_limit", "pool", "connections", "connections at most")
POOL_WAITING = _gauge("sokka_pool_waiting", "pool", "calls", "calls that wait for a connection")

OF_WORKER = (SLOTS, RUNNING, DROPPED, POOL_CONNECTIONS, POOL_MOST, POOL_WAITING)

# --- the queue, as the database has it -------------------------------------

QUEUE_UP = _gauge("sokka_queue_up", "", "0 or 1", "whether the figures below could be read")
QUEUE_READ_SECONDS = _gauge(
    "sokka_queue_read_seconds", "", "seconds", "how long it took to read them"
)
QUEUE_AGE = _gauge("sokka_queue_age_seconds", "", "seconds", "how old they are")
TASKS = _gauge("sokka_tasks", "topic status", "tasks", "live tasks")
OLDEST = _gauge(
    "sokka_oldest_task_seconds", "topic status", "seconds",
    "for how long the oldest task has been ready, leased, or overdue in its sleep",
)
PAUSED = _gauge("sokka_topic_paused", "topic", "0 or 1", "whether the topic is paused")
LEASES = _gauge("sokka_leases", "state", "leases", "leases, and those that are over but not swept")
OPEN_FENCES = _gauge(
    "sokka_open_fences", "", "tasks", "tasks whose lease is over, held by a transaction"
)
OPEN_JOINS = _gauge("sokka_open_joins", "", "fan-outs", "fan-outs that are not decided")
SNAPSHOT = _gauge(
    "sokka_oldest_snapshot_seconds", "", "seconds", "for how long the oldest snapshot has been held"
)
SCHEDULES = _gauge("sokka_schedules", "state", "schedules", "schedules")
SCHEDULE_LATE = _gauge(
    "sokka_schedule_overdue_seconds", "", "seconds", "how late the latest active schedule is"
)
LOCKS = _gauge("sokka_held_locks", "", "locks", "leased locks that somebody holds")

OF_QUEUE = (
    QUEUE_UP, QUEUE_READ_SECONDS, QUEUE_AGE, TASKS, OLDEST, PAUSED, LEASES, OPEN_FENCES,
    OPEN_JOINS, SNAPSHOT, SCHEDULES, SCHEDULE_LATE, LOCKS,
)  # fmt: skip

ALL = (*OF_EVENTS, *OF_JOBS, *OF_WORKER, *OF_QUEUE)

"""Observers: the log, Prometheus, OpenTelemetry.

The last two need the extras ``metrics`` and ``otel``; each name is imported when it
is first used, and says which extra is missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sokka_pg.errors import UsageError

if TYPE_CHECKING:
    from sokka_pg.observers.export import Export
    from sokka_pg.observers.log import LogObserver
    from sokka_pg.observers.otel import OpenTelemetryObserver, trace_context
    from sokka_pg.observers.prometheus import PrometheusObserver
    from sokka_pg.observers.queue import QueueCollector
    from sokka_pg.observers.serving import MetricsServer
    from sokka_pg.observers.worker import WorkerCollector

_HOMES = {
    "Export": "export", "LogObserver": "log", "MetricsServer": "serving",
    "OpenTelemetryObserver": "otel", "PrometheusObserver": "prometheus",
    "QueueCollector": "queue", "WorkerCollector": "worker", "trace_context": "otel",
}
_EXTRAS = {"prometheus_client": "metrics", "opentelemetry": "otel"}

__all__ = [
    "Export",
    "LogObserver",
    "MetricsServer",
    "OpenTelemetryObserver",
    "PrometheusObserver",
    "QueueCollector",
    "WorkerCollector",
    "trace_context",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sokka_pg.observers' has no attribute {name!r}")
    try:
        found = getattr(import_module(f"sokka_pg.observers.{home}"), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise UsageError(f"{name} needs the extra: pip install 'sokka-pg[{extra}]'") from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

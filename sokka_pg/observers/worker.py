"""A worker's own figures, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sokka_pg.observers import families as f
from sokka_pg.observers.families import Family, Sort
from sokka_pg.worker import Worker


class Pooled(Protocol):
    """A store that tells of its pool."""

    @property
    def pool_stats(self) -> Mapping[str, int]: ...


class WorkerCollector(Collector):
    """Slots, runs under way, dropped events, and the connections of ``pools``: those of
    the handlers' stores, by name."""

    def __init__(self, worker: Worker, pools: Mapping[str, Pooled] | None = None) -> None:
        self._worker, self._pools = worker, dict(pools or {})

    def describe(self) -> Iterable[Metric]:
        """The families, empty."""
        return [empty(family) for family in f.OF_WORKER]

    def collect(self) -> Iterator[Metric]:
        """The figures of this moment."""
        worker = self._worker
        yield single(f.SLOTS, worker.slots)
        yield single(f.RUNNING, worker.running)
        yield single(f.DROPPED, worker.feed.dropped)
        yield from self._of_pools()

    def _of_pools(self) -> Iterator[Metric]:
        connections, most, waiting = map(empty, (f.POOL_CONNECTIONS, f.POOL_MOST, f.POOL_WAITING))
        for name, store in self._pools.items():
            stats = store.pool_stats
            idle = stats.get("pool_available", 0)
            connections.add_metric([name, "idle"], idle)
            connections.add_metric([name, "used"], max(0, stats.get("pool_size", 0) - idle))
            most.add_metric([name], stats.get("pool_max", 0))
            waiting.add_metric([name], stats.get("requests_waiting", 0))
        yield from (connections, most, waiting)


def empty(family: Family) -> GaugeMetricFamily | CounterMetricFamily:
    """A family without samples."""
    kind = CounterMetricFamily if family.sort is Sort.COUNTER else GaugeMetricFamily
    return kind(family.name, family.text, labels=family.labels)


def single(family: Family, value: float) -> Metric:
    """A family of one sample, without labels."""
    found = empty(family)
    found.add_metric([], value)
    return found

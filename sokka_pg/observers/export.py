"""All metrics of one worker process, served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.registry import Collector

from sokka_pg.connections import ConnectionOptions
from sokka_pg.observers.prometheus import PrometheusObserver
from sokka_pg.observers.queue import QueueCollector
from sokka_pg.observers.serving import LOOPBACK, MetricsServer
from sokka_pg.observers.worker import Pooled, WorkerCollector
from sokka_pg.worker import Worker


class Export:
    """What ``sokka worker --metrics-port`` does, for programs that embed a worker.

    Make it, give ``observers`` to the worker, then ``start`` with that worker; ``close``
    at the end. A PrometheusObserver among ``given`` is used, and its registry served;
    else one is made on ``registry`` (default: the client's own, which has the metrics
    of your program as well). Raises UsageError if the address cannot be had.
    """

    def __init__(
        self, given: Iterable[object] = (), host: str = LOOPBACK, port: int = 0,
        *, registry: CollectorRegistry | None = None,
    ) -> None:
        known = next((each for each in given if isinstance(each, PrometheusObserver)), None)
        self.registry = known.registry if known is not None else (registry or REGISTRY)
        self._server = MetricsServer(self.registry, host, port)
        self.observers: list[PrometheusObserver] = []
        if known is None:
            try:
                self.observers.append(PrometheusObserver(self.registry))
            except BaseException:
                self._server.close()
                raise
        self._collectors: list[Collector] = []

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return self._server.url

    def start(
        self, worker: Worker, database_url: str, schema: str = "sokka", *,
        pools: Mapping[str, Pooled] | None = None, options: ConnectionOptions | None = None,
    ) -> None:
        """Serve this worker's metrics, and its queue's."""
        for collector in (
            WorkerCollector(worker, pools),
            QueueCollector(database_url, schema, options=options),
        ):
            self.registry.register(collector)
            self._collectors.append(collector)
        self._server.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.close()
        for collector in self._collectors:
            self.registry.unregister(collector)
        self._collectors.clear()

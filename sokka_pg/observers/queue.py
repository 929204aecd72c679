"""The queue's depth and health, read from the database when somebody asks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from time import monotonic

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sokka_pg.connections import ConnectionOptions
from sokka_pg.durations import Duration, to_timedelta
from sokka_pg.errors import BadArgument
from sokka_pg.observers import families as f
from sokka_pg.observers.bounded import MOST, Bounded
from sokka_pg.observers.figures import Reader, Reading
from sokka_pg.observers.worker import empty, single
from sokka_pg.schema import check_name

log = logging.getLogger("sokka_pg")

STALE_S = 60.0
# A reading that takes long is made less often: at most a twentieth of the time.
_REST = 20


class QueueCollector(Collector):
    """Figures of a whole queue. One worker that exports them is enough: they are the
    same wherever they are read.

    The database is asked only when metrics are, at most once in ``every`` (longer if
    it takes long to answer), on a connection that lasts as long as the answer. A
    scrape waits for ``wait`` at most, and then gets the figures before; after a
    minute without new ones they are left out, and ``sokka_queue_up`` is 0.
    """

    def __init__(
        self,
        database_url: str,
        schema: str = "sokka",
        *,
        options: ConnectionOptions | None = None,
        every: Duration = 5.0,
        wait: Duration = 2.0,
        most: int = MOST,
    ) -> None:
        self._every_s = to_timedelta(every, "every").total_seconds()
        self._wait_s = to_timedelta(wait, "wait").total_seconds()
        if self._every_s <= 0 or self._wait_s <= 0:
            raise BadArgument.of("every and wait", "must be longer than 0")
        self._reader = Reader(
            database_url, check_name(schema), options or ConnectionOptions(), Bounded(most), most
        )
        self._lock = threading.Lock()
        self._last: Reading | None = None
        self._good: Reading | None = None
        self._under_way: threading.Event | None = None
        self.readings = 0
        """How often the database was asked."""

    def describe(self) -> Iterable[Metric]:
        """The families, empty: nothing is asked for them."""
        return [empty(family) for family in f.OF_QUEUE]

    def collect(self) -> Iterator[Metric]:
        """The figures, at most ``every`` old if the database answers."""
        self._fresh()
        last, good = self._last, self._good
        age_s = monotonic() - good.at if good is not None else STALE_S
        up = last is not None and last.ok and age_s < STALE_S
        yield single(f.QUEUE_UP, int(up))
        if up and good is not None:
            yield single(f.QUEUE_READ_SECONDS, good.took_s)
            yield single(f.QUEUE_AGE, age_s)
            yield from _families(good)

    def _fresh(self) -> None:
        """Have the database asked, if it is time, and wait for the answer."""
        with self._lock:
            if self._under_way is None and self._due():
                self._under_way = threading.Event()
                self.readings += 1
                threading.Thread(target=self._read, name="sokka-metrics", daemon=True).start()
            answer = self._under_way
        if answer is not None:
            answer.wait(self._wait_s)

    def _due(self) -> bool:
        last = self._last
        if last is None:
            return True
        return monotonic() - last.at >= max(self._every_s, _REST * last.took_s)

    def _read(self) -> None:
        try:
            reading = self._reader.read()
        except BaseException:
            log.exception("reading the metrics of the queue broke")
            reading = Reading(monotonic(), 0.0, ok=False)
        with self._lock:
            self._last = reading
            self._good = reading if reading.ok else self._good
            answer, self._under_way = self._under_way, None
        if answer is not None:
            answer.set()


def _families(reading: Reading) -> Iterator[Metric]:
    """The samples, family by family."""
    found = {family.name: empty(family) for family in f.OF_QUEUE}
    for family, labels, value in reading.samples:
        found[family.name].add_metric(labels, value)
    yield from (metric for metric in found.values() if metric.samples)

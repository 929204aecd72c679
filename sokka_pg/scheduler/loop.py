"""The loop that makes tasks of the ticks of schedules. Any number of them may run.

What is due is taken and fired in one transaction, so that a process that dies in
the middle has done all of it or nothing. When ticks are due, the database's clock
says. While nothing is, a loop asks one question a second, which costs one look
into an index.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from time import monotonic

from sokka_pg import durations, events
from sokka_pg.calls import arguments
from sokka_pg.context.plans import asking, carry_out_async
from sokka_pg.durations import Duration
from sokka_pg.engine.backoff import Backoff
from sokka_pg.errors import BadArgument, DatabaseUnavailable, SokkaError, UsageError
from sokka_pg.events import EventFeed, Observer
from sokka_pg.model import DueSchedule, FireVerdict, ScheduleFire
from sokka_pg.scheduler.periodic import Periodic, SyncReport, synced
from sokka_pg.schedules import plan_fires
from sokka_pg.store_async import AsyncTaskStore

log = logging.getLogger("sokka_pg.scheduler")

POLL_S = 1.0
BATCH = 500
CONTENDED_S = 0.05
"""How long to leave what is due to those who have it locked."""


class ScheduleLoop:
    """Fires the ticks of all schedules of one database, whoever declared them.

    First it puts those in ``declared``, for ``source``. ``poll`` (0.01 to 60 s): how
    often it asks whether something is due; what it knows of fires in time.
    ``batch``: schedules in one transaction, 1 to 10,000. ``owns_store``: close it in
    the end. The store may lose its database: the loop goes on when it is back.
    Raises BadArgument.
    """

    def __init__(
        self,
        store: AsyncTaskStore,
        declared: Collection[Periodic] = (),
        *,
        source: str = "app",
        poll: Duration = POLL_S,
        batch: int = BATCH,
        observers: Iterable[Observer] = (),
        feed: EventFeed | None = None,
        owns_store: bool = False,
    ) -> None:
        self._store, self._declared, self._source = store, tuple(declared), source
        self._poll_s = durations.delay(poll, "poll").total_seconds()
        if not 0.01 <= self._poll_s <= 60:
            raise BadArgument.of("poll", "must be 10 ms to 60 s")
        self._batch = int(arguments.integer(batch, "batch", 1, arguments.MOST_MEMBERS))
        self._owns_store = owns_store
        self._own_feed = EventFeed(observers) if feed is None else None
        self._feed = feed or self._own_feed
        self._backoff = Backoff()
        self._failing_since: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._stop_asked = False

    def stop(self, now: bool = False) -> None:
        """Let ``run`` return once what is being fired is fired; from any thread."""
        self._stop_asked = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def run(self) -> None:
        """Fire until stopped."""
        if self._loop is not None:
            raise UsageError("a loop runs once; make another")
        self._loop = asyncio.get_running_loop()
        try:
            if self._declared:
                await self._declare()
            while not self._stop_asked:
                await self._nap(await self._turn())
        finally:
            if self._owns_store:
                await self._store.close()
            if self._own_feed is not None:
                self._own_feed.close()

    async def look(self) -> float:
        """Fire what is due now; after how many seconds to look again.

        Raises SokkaError; what was fired by then is fired.
        """
        while not self._stop_asked:
            found = await self._store.next_schedule_at()
            if found is None:
                return self._poll_s
            if found.wait:
                return min(self._poll_s, found.wait.total_seconds())
            if not await self._fire():
                return min(self._poll_s, CONTENDED_S)
        return 0.0

    # --- one batch --------------------------------------------------------

    async def _fire(self) -> int:
        """Schedules that were handed in: batches, as long as they are full."""
        total = 0
        while not self._stop_asked:
            taken: list[DueSchedule] = []
            fires: list[ScheduleFire] = []

            def plan(
                due: list[DueSchedule], taken: list[DueSchedule] = taken,
                fires: list[ScheduleFire] = fires,
            ) -> list[ScheduleFire]:
                taken.extend(due)
                fires.extend(plan_fires(due))
                return fires

            verdicts = await self._store.fire_due(plan, self._batch)
            self._tell(taken, fires, verdicts)
            total += len(verdicts)
            if len(verdicts) < self._batch:
                break
        return total

    def _tell(
        self, due: Sequence[DueSchedule], fires: Sequence[ScheduleFire],
        verdicts: Sequence[FireVerdict],
    ) -> None:
        for found, fire, verdict in zip(due, fires, verdicts, strict=False):
            if verdict.verdict != "ok":
                log.warning("schedule %s was not fired: %s", found.name, verdict.verdict)
            elif fire.error is not None:
                log.warning("schedule %s cannot be worked out: %s", found.name, fire.error)
            for tick, task_id in zip(fire.ticks, verdict.task_ids, strict=False):
                late_s = (found.clock - tick).total_seconds()
                self._emit(events.Fired(found.name, tick, task_id, late_s))

    def _emit(self, event: events.Event) -> None:
        if self._feed is not None:
            self._feed.emit(event)

    # --- what goes wrong --------------------------------------------------

    async def _turn(self) -> float:
        try:
            wait_s = await self.look()
        except Exception as error:  # a fault here must not end the ticks of all
            return self._failed(error)
        self._served()
        return wait_s

    async def _declare(self) -> None:
        """Put what is declared; a database that is away is waited for."""
        while not self._stop_asked:
            try:
                report = await carry_out_async(
                    synced(self._declared, self._source), asking(self._store)
                )
            except DatabaseUnavailable as error:
                await self._nap(self._failed(error))
            except Exception as error:
                # a role that may not, say: what is in the database fires all the same
                unexpected = not isinstance(error, SokkaError)
                log.warning("declared schedules were not put: %s", error, exc_info=unexpected)
                return
            else:
                self._served()
                told(report)
                return

    def _failed(self, error: Exception) -> float:
        if self._failing_since is None:
            self._failing_since = monotonic()
            expected = isinstance(error, SokkaError)
            log.warning("schedules are not fired, trying on: %s", error, exc_info=not expected)
            self._emit(events.Disconnected("schedules", str(error)))
        return self._backoff.next_s()

    def _served(self) -> None:
        self._backoff.reset()
        if self._failing_since is not None:
            after_s, self._failing_since = monotonic() - self._failing_since, None
            log.info("schedules are fired again after %.1f s", after_s)
            self._emit(events.Reconnected("schedules", after_s))

    async def _nap(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


def told(report: SyncReport) -> None:
    """Log what became of the declared schedules."""
    for name in report.taken:
        log.warning("schedule %s was declared elsewhere, and stays as it is", name)
    for fate in ("created", "changed", "deleted"):
        if names := getattr(report, fate):
            log.info("schedules %s: %s", fate, ", ".join(names))

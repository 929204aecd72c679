"""Progress: written at once, then no more often than worth it, and the last always."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic

from sokka_pg.context.plans import Ask, Landing, Plan
from sokka_pg.errors import Busy, LeaseLost, Refused, SokkaError
from sokka_pg.model import Json, Lease
from sokka_pg.pacing import ProgressPace
from sokka_pg.payload import SMALL_LIMIT, Encoded, encode

log = logging.getLogger("sokka_pg.task")

LONGEST_LANDING_S = 5.0


class Progress:
    """The progress of one attempt. ``arm`` is to call ``flush`` after so many seconds.

    Whoever calls ``report`` when it is time writes, in their own call; what came too
    early is written by ``flush``. One write at a time, so that the newest stays.
    """

    def __init__(self, lease: Lease, arm: Callable[[float], None]) -> None:
        self._lease, self._arm = lease, arm
        self._pace: ProgressPace[Encoded] = ProgressPace()
        self._lock = threading.Lock()
        self._flight: Future[None] | None = None
        self._armed = False
        self._refused: LeaseLost | None = None

    def report(self, progress: Json, at_once: bool) -> Plan[None]:
        """Write it now or soon. Raises what a late write met, if that was the end."""
        text = encode(progress, "progress", SMALL_LIMIT)
        if at_once:
            yield from self._landed()
        if self._refused is not None:
            raise type(self._refused)(self._refused.message, self._refused.detail)
        with self._lock:
            self._pace.offer(text)
        yield from self._write(at_once)
        self._arm_if_due()

    def report_on(self, connection: object, progress: Json) -> Plan[None]:
        """Write it now, in the caller's transaction; an older one must not come after it."""
        with self._lock:
            self._pace.drop()
        yield from self._landed()
        yield Ask("report_progress", self._lease, progress=progress, connection=connection)

    @property
    def wants_flush(self) -> bool:
        """For the timer that was armed: whether something is left to write."""
        with self._lock:
            self._armed = False
            return self._refused is None and self._pace.due_in(monotonic()) is not None

    def flush(self) -> Plan[None]:
        """Write what is held, on behalf of nobody."""
        try:
            yield from self._write(False)
        except SokkaError as error:
            log.debug("progress of task %s was not written: %s", self._lease.task_id, error)
        self._arm_if_due()

    def finish(self) -> Plan[None]:
        """Write the last one, before the attempt's end is."""
        yield from self._landed()
        try:
            yield from self._write(True)
        except SokkaError as error:
            log.debug("progress of task %s was not written: %s", self._lease.task_id, error)

    def _landed(self) -> Plan[None]:
        flight = self._flight
        if flight is not None:
            yield Landing(flight, LONGEST_LANDING_S)

    def _write(self, at_once: bool) -> Plan[None]:
        flight: Future[None] = Future()
        with self._lock:
            text = None if self._refused else self._pace.take(monotonic(), at_once)
            if text is None:
                return
            self._flight = flight
        through = False
        try:
            yield Ask("report_progress", self._lease, progress=text)
            through = True
        except Refused as refused:
            # said once and for all, unless somebody only held the row
            through = not isinstance(refused, Busy)
            if isinstance(refused, LeaseLost):
                self._refused = refused
            raise
        finally:
            with self._lock:
                note = self._pace.written if through else self._pace.not_written
                note(monotonic())
                self._flight = None
            flight.set_result(None)

    def _arm_if_due(self) -> None:
        with self._lock:
            due_in = None if self._refused else self._pace.due_in(monotonic())
            if due_in is None or self._armed:
                return
            self._armed = True
        self._arm(due_in)

"""Keeps one lease alive, and says when it is over.

The keeper renews on a thread of its own, so that neither a blocked event loop nor
a busy handler stops it. By the monotonic clock the lease ends ``ttl`` after the
moment before the request that granted or renewed it was sent, less a margin: the
database counted from later, so a holder that cannot renew stops by itself before
anybody else may begin. A renewal that fails is tried again until then; only one
that is refused ends the lease at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic

from sokka_pg.engine.backoff import Backoff
from sokka_pg.engine.leases import LONGEST_MARGIN_S, MARGIN_SHARE
from sokka_pg.errors import LeaseLost

log = logging.getLogger("sokka_pg.scheduler")

RENEWALS_PER_TTL = 3
LONGEST_PAUSE_S = 1.0


class Keeper:
    """Renews a lease until it is stopped or the lease is lost.

    ``renew`` blocks, and raises LeaseLost if it is refused. ``sent_at``: monotonic,
    from before the lease was asked for.
    """

    def __init__(
        self,
        name: str,
        renew: Callable[[], object],
        ttl: timedelta,
        sent_at: float,
        every: timedelta | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name, self._renew, self._clock = name, renew, clock
        self._ttl_s = ttl.total_seconds()
        self._every_s = (every or ttl / RENEWALS_PER_TTL).total_seconds()
        # half of what is left for a late renewal, so that a slow rhythm is no loss
        spare_s = (self._ttl_s - self._every_s) / 2
        self._margin_s = min(LONGEST_MARGIN_S, self._ttl_s * MARGIN_SHARE, spare_s)
        self._ends = sent_at + self._ttl_s - self._margin_s
        self._backoff = Backoff(0.05, max(0.05, min(self._every_s, LONGEST_PAUSE_S)))
        self._refused: LeaseLost | None = None
        self._over = threading.Event()
        self._listeners: list[Callable[[], object]] = []
        self._thread = threading.Thread(target=self._keep, name="sokka-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Renew no more. A renewal under way is not waited for: after a release it is
        refused."""
        self._over.set()

    @property
    def lost(self) -> bool:
        """Whether the lease is over, as far as this process can know."""
        return self._refused is not None or self.left_s() <= 0.0

    def left_s(self) -> float:
        """How long the lease lasts if nothing renews it."""
        return self._ends - self._clock()

    def check(self) -> None:
        """Raise LeaseLost if the lease is over."""
        if self.lost:
            raise self.loss()

    def loss(self) -> LeaseLost:
        """The error that tells of the loss."""
        if self._refused is not None:
            return self._refused
        return LeaseLost(f"the lease of {self._name} was not renewed in time", {"key": self._name})

    async def until_lost(self) -> None:
        """Return when the lease is over."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def told() -> None:
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(news.set)

        self._listeners.append(told)
        while not self.lost:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.left_s()):
                    await news.wait()

    def _keep(self) -> None:
        wait_s = self._every_s
        # once it is over by our own clock, it is not taken up again
        while not self._over.wait(min(wait_s, max(0.0, self.left_s()))) and not self.lost:
            wait_s = self._renewed()

    def _renewed(self) -> float:
        sent_at = self._clock()
        try:
            self._renew()
        except LeaseLost as refused:
            if not self._over.is_set():
                self._refused = refused
                self._tell()
        except BaseException as error:  # whatever a locker raises must not end the renewing
            if not self._over.is_set():
                log.warning("the lease of %s is not renewed, trying on: %r", self._name, error)
            return self._backoff.next_s()
        else:
            if not self.lost:
                self._ends = sent_at + self._ttl_s - self._margin_s
            self._backoff.reset()
        return self._every_s

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

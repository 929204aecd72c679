"""What a handler is told about its run, and how it is told to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sokka_pg.errors import StopRequested, UsageError
from sokka_pg.scheduler.keeping import Keeper
from sokka_pg.scheduler.locker import AsyncLease, Lease


class JobContext:
    """One attempt of one run. Safe in any thread.

    ``scheduled_at`` is the tick (UTC) that the run is for. ``lease`` is the lease
    that the run holds, None for a job without one. A handler that is to stop sees it
    here; an async handler is cancelled besides.
    """

    def __init__(
        self,
        *,
        job_name: str,
        run_id: str,
        scheduled_at: datetime,
        attempt: int = 1,
        max_attempts: int = 1,
        lease: Lease | AsyncLease | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.job_name, self.run_id, self.scheduled_at = job_name, run_id, scheduled_at
        self.attempt, self.max_attempts = attempt, max_attempts
        self.lease = lease
        self.stop_requested = threading.Event()
        """Set when the handler is to stop; for waiting and for libraries that take one."""
        self._keeper = keeper
        self._reason: str | None = None
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], object]] = []

    @property
    def cancel_reason(self) -> str | None:
        """``timeout``, ``lost``, ``stop`` (shutdown) or ``cancel`` (whoever triggered the
        run gave up), once the handler is to stop; else None."""
        if self._reason is None and self._keeper is not None and self._keeper.lost:
            self.tell_to_stop("lost")
        return self._reason

    @property
    def cancelled(self) -> bool:
        """Whether the handler is to stop."""
        return self.cancel_reason is not None

    @property
    def token(self) -> int:
        """The fencing token of the lease. Raises UsageError where there is none."""
        token = getattr(self.lease, "token", None)
        if token is None:
            raise UsageError(f"job {self.job_name} holds no lease with a token")
        return int(token)

    def assert_held(self, connection: Any) -> Any:
        """Let the open transaction of ``connection`` act for the lease's key: nobody else
        gets it before that transaction ends. To be awaited where the locker is async.
        Raises LeaseLost, and UsageError for a job without such a lease."""
        assert_held = getattr(self.lease, "assert_held", None)
        if assert_held is None:
            raise UsageError(f"job {self.job_name} holds no lease that can be asserted")
        return assert_held(connection)

    def check(self) -> None:
        """Raise StopRequested if the handler is to stop. Let it pass."""
        reason = self.cancel_reason
        if reason is not None:
            raise told_to_stop(reason)

    def wait_cancelled(self, timeout_s: float | None = None) -> bool:
        """Wait until the handler is to stop, or ``timeout_s``; whether it is. Blocks the
        thread: an async handler just awaits, and is cancelled."""
        return self.stop_requested.wait(timeout_s) or self.cancelled

    # --- for the scheduler ------------------------------------------------

    def tell_to_stop(self, reason: str) -> None:
        """The first reason stays."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            listeners, self._listeners = self._listeners, []
        self.stop_requested.set()
        for listener in listeners:
            listener()

    def on_stop(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` once, from any thread, when the handler is to stop."""
        with self._lock:
            if self._reason is None:
                self._listeners.append(listener)
                return
        listener()


def told_to_stop(reason: str | None) -> StopRequested:
    """The error of a handler, or a run, that was to stop."""
    return StopRequested(f"told to stop ({reason})", {"reason": reason})

"""What both schedulers share: their settings, and the way to the core.

The core is begun at the first call in each process. A scheduler that was inherited
over a fork begins its own; without a given id it then has a new one.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypedDict, TypeVar

from sokka_pg.connections import ConnectionOptions
from sokka_pg.durations import Duration, delay
from sokka_pg.errors import UsageError
from sokka_pg.events import Observer
from sokka_pg.workload.core import Core, Verb
from sokka_pg.workload.home import move_in, move_out
from sokka_pg.workload.limits import Limits, Redact
from sokka_pg.workload.settings import checked_settings, new_id

log = logging.getLogger("sokka_pg.workload")

T = TypeVar("T")

AT_EXIT_S = 15.0


class WorkloadOptions(TypedDict, total=False):
    """What a scheduler takes beside database and schema; all optional."""

    scheduler_id: str | None
    connections: ConnectionOptions | None
    limits: Limits | None
    redact: Redact | None
    local_slots: int
    lease: Duration
    progress_every: Duration
    poll: Duration
    observers: Iterable[Observer]


class Shell:
    """A scheduler seen from outside its loop. Thread-safe.

    ``scheduler_id``: stable and, where it is given, taken up again after a restart:
    local tasks that were left are run by executors of the same kind. One process
    at a time should have it. ``limits``: how large things may be. ``redact``: keys
    of metadata whose values snapshots hide, or a function. ``local_slots``: local
    runs at a time. ``lease``: the default lease, and that of local runs.
    ``progress_every``: progress is written no more often than this for each lease.
    ``poll``: how often is looked for news that nothing told of. Nothing is connected
    before the first call. Raises BadArgument.
    """

    def __init__(
        self,
        database_url: str,
        schema: str = "sokka",
        *,
        scheduler_id: str | None = None,
        connections: ConnectionOptions | None = None,
        limits: Limits | None = None,
        redact: Redact | None = None,
        local_slots: int = 10,
        lease: Duration = timedelta(seconds=30),
        progress_every: Duration = timedelta(milliseconds=250),
        poll: Duration = timedelta(seconds=1),
        observers: Iterable[Observer] = (),
    ) -> None:
        self._settings = checked_settings(
            database_url, schema, scheduler_id, connections, limits, redact, local_slots,
            lease, progress_every, poll, observers,
        )
        self._lock = threading.Lock()
        self._core: Core | None = None
        self._end: Future[None] | None = None
        self._closed = False
        _shells.add(self)

    @property
    def scheduler_id(self) -> str:
        """The id of this scheduler."""
        return self._settings.scheduler_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scheduler_id}>"

    def _begin(self, verb: Verb[T]) -> Future[T]:
        """Begin a verb, which is carried through whatever becomes of its caller."""
        with self._lock:
            core = self._ready()
            return core.home.begin(core.carried_through(verb))

    def _begin_wait(self, wait: Verb[T], within: Duration | None = None) -> Future[T]:
        """Begin a wait, which ends with its caller."""
        with self._lock:
            core = self._ready()
            return core.home.begin(core.waiting(wait, within))

    def _ready(self) -> Core:
        if self._closed:
            raise UsageError("this scheduler is closed")
        if self._core is None:
            self._core = Core(self._settings, move_in())
            _open.add(self)
        return self._core

    def _begin_end(self, grace: Duration) -> Future[None]:
        """Begin to close; everybody who closes waits for the same end."""
        delay(grace, "grace")
        with self._lock:
            self._closed = True
            core = self._core
            if self._end is None:
                if core is None:
                    self._end = Future()
                    self._end.set_result(None)
                else:
                    self._end = core.home.begin(core.close(grace))
                    self._end.add_done_callback(lambda _: self._ended(core))
            return self._end

    def _ended(self, core: Core) -> None:
        _open.discard(self)
        move_out(core.home)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        if self._core is not None:
            # its loop is the parent's; kept, so that nothing of it is closed here
            _inherited.append(self._core)
        self._core, self._end = None, None
        if not self._settings.named:
            self._settings = replace(self._settings, scheduler_id=new_id())


_shells: weakref.WeakSet[Shell] = weakref.WeakSet()
# Held until they are closed: a program may drop its scheduler and still have runs.
_open: set[Shell] = set()
_inherited: list[Core] = []


def _all_forked() -> None:
    _open.clear()
    for shell in list(_shells):
        shell._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_all_forked)


@atexit.register
def _close_all() -> None:
    """A process that ends gives back what it runs."""
    ends = []
    for shell in list(_open):
        with suppress(Exception):
            ends.append(shell._begin_end(0))
    for end in ends:
        try:
            end.result(AT_EXIT_S)
        except Exception as error:
            log.warning("a scheduler was not closed in order: %r", error)


def exit_on_sigterm() -> None:
    """From now on SIGTERM ends this process as ``sys.exit(143)`` does: blocks are left,
    schedulers closed, and what runs locally is given back. In the main thread.

    Without it SIGTERM kills at once, and local tasks stay taken until their leases
    run out. Not for a process that handles the signal itself.
    """

    def leave(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)

"""The event loop on which this process's schedulers work, in a thread of its own.

Begun by the first scheduler that is used, ended when the last one is closed. A
process that was forked has no such thread: there everything begins anew.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import UsageError
from sokka_pg.workload.watching import Watcher

T = TypeVar("T")


class Home:
    """A loop, its thread, and the watchers that all schedulers on it share."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="sokka-workload", daemon=True)
        self._watchers: dict[tuple[str, str], Watcher] = {}
        self.users = 0
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop, from any other thread."""
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                "this is the scheduler's own loop, which cannot wait for itself; "
                "an async executor uses AsyncWorkloadScheduler"
            )
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def watcher(
        self, database_url: str, schema: str, options: ConnectionOptions, poll_s: float
    ) -> Watcher:
        """The watcher of one schema; call ``release`` on it once for each call of this.
        On the loop."""
        key = (database_url, schema)
        found = self._watchers.get(key)
        if found is None or found.closed:
            found = self._watchers[key] = Watcher(database_url, schema, options, poll_s)
        return found.retained(poll_s)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _live(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


_lock = threading.Lock()
_home: Home | None = None


def move_in() -> Home:
    """This process's home, for one more scheduler."""
    global _home
    with _lock:
        if _home is None:
            _home = Home()
        _home.users += 1
        return _home


def move_out(home: Home) -> None:
    """One scheduler less; the last one turns off the light."""
    global _home
    with _lock:
        home.users -= 1
        if home.users > 0:
            return
        if _home is home:
            _home = None
    home.end()


def _forked() -> None:
    global _home, _lock
    _lock = threading.Lock()
    _home = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

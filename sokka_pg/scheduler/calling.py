"""Blocking work for an event loop: each call on a thread of its own.

A pool would have a bound, and a handler that sleeps must not stand in the way of
a renewal. The threads are daemons: what does not end keeps no process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T], name: str = "sokka-call") -> asyncio.Future[T]:
    """The outcome of ``work``, which is carried through even if nobody waits for it."""
    promised: Future[T] = Future()
    # from here on it cannot be cancelled any more
    promised.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            found = context.run(work)
        except BaseException as error:
            promised.set_exception(as_exception(error))
        else:
            promised.set_result(found)

    wrapped = asyncio.wrap_future(promised)
    threading.Thread(target=run, name=name, daemon=True).start()
    return wrapped


def as_exception(error: BaseException) -> Exception:
    """The error itself, or one that ends neither thread, loop nor program."""
    if isinstance(error, Exception):
        return error
    found = RuntimeError(f"it raised {type(error).__name__}")
    found.__cause__ = error
    return found

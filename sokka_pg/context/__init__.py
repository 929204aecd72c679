"""What a handler is given beside its payload.

``TaskContext`` for async handlers, ``SyncTaskContext`` for plain functions, in
threads and in processes: the same words, with and without ``await``. A plain
function may annotate either and gets the sync one.

Every write goes through the lease: a handler that lost it gets ``LeaseLost``
and has changed nothing.

A handler that is told to stop (``cancelled``) and returns nothing has stopped,
not finished: its task is released, failed as cancelled, or retried. A value that
it returns is its result all the same, except after a timeout.

What both contexts do is written once, as plans (``plans``): generators that ask
for verbs of the store, for calls and for pauses. A context carries them out,
awaiting or blocking.
"""

from __future__ import annotations

from sokka_pg.context.asynchronous import TaskContext
from sokka_pg.context.common import AnyContext
from sokka_pg.context.synchronous import SyncTaskContext

__all__ = ["AnyContext", "SyncTaskContext", "TaskContext"]

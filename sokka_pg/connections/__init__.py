"""Connections: how ours are made and pooled, and how a call is sent on any."""

from sokka_pg.connections.options import (
    ConnectionOptions,
    connect_arguments,
    set_up,
    set_up_async,
)
from sokka_pg.connections.pools import (
    AsyncBorrowedSource,
    AsyncPool,
    AsyncSource,
    BorrowedSource,
    Source,
    SyncPool,
    async_source,
    source,
)
from sokka_pg.connections.sending import run_on, run_on_async

__all__ = [
    "AsyncBorrowedSource",
    "AsyncPool",
    "AsyncSource",
    "BorrowedSource",
    "ConnectionOptions",
    "Source",
    "SyncPool",
    "async_source",
    "connect_arguments",
    "run_on",
    "run_on_async",
    "set_up",
    "set_up_async",
    "source",
]

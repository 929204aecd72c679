"""The task store for an event loop: ``AsyncTaskStore`` and PostgreSQL's own."""

from sokka_pg.store_async.postgres import AsyncPgTaskStore
from sokka_pg.store_async.protocol import AsyncTaskStore

__all__ = ["AsyncPgTaskStore", "AsyncTaskStore"]

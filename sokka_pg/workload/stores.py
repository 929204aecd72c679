"""Stores that hold a scheduler's limits, so that its local runs keep to them too."""

from __future__ import annotations

from typing import Any

from sokka_pg.model import CheckpointSaved, Json
from sokka_pg.runner import Stores
from sokka_pg.store import PgTaskStore
from sokka_pg.store.protocol import LeaseLike
from sokka_pg.store_async import AsyncPgTaskStore
from sokka_pg.workload.limits import Limits
from sokka_pg.workload.settings import Settings


class LimitedStore(PgTaskStore):
    """Refuses progress and checkpoints beyond the limits, with BadArgument."""

    limits: Limits

    def report_progress(
        self, lease: LeaseLike, pid: str | None = None, token: int | None = None,
        *, progress: Json, connection: Any = None,
    ) -> int:
        return super().report_progress(
            lease, pid, token, progress=self.limits.progress(progress), connection=connection
        )

    def save_checkpoint(
        self, lease: LeaseLike, pid: str | None = None, token: int | None = None,
        *, checkpoint: Json, connection: Any = None,
    ) -> CheckpointSaved:
        return super().save_checkpoint(
            lease, pid, token, checkpoint=self.limits.checkpoint(checkpoint),
            connection=connection,
        )


class AsyncLimitedStore(AsyncPgTaskStore):
    """``LimitedStore`` with awaits."""

    limits: Limits

    async def report_progress(
        self, lease: LeaseLike, pid: str | None = None, token: int | None = None,
        *, progress: Json, connection: Any = None,
    ) -> int:
        return await super().report_progress(
            lease, pid, token, progress=self.limits.progress(progress), connection=connection
        )

    async def save_checkpoint(
        self, lease: LeaseLike, pid: str | None = None, token: int | None = None,
        *, checkpoint: Json, connection: Any = None,
    ) -> CheckpointSaved:
        return await super().save_checkpoint(
            lease, pid, token, checkpoint=self.limits.checkpoint(checkpoint),
            connection=connection,
        )


def limited_stores(settings: Settings) -> tuple[AsyncPgTaskStore, Stores]:
    """The store of the core, and those of its local runs."""
    options: dict[str, Any] = {
        "schema": settings.schema, "options": settings.connections,
        "max_data_bytes": settings.limits.payload_bytes,
    }
    sync = LimitedStore(settings.database_url, **options)
    asynchronous = AsyncLimitedStore(settings.database_url, **options)
    sync.limits = asynchronous.limits = settings.limits
    return asynchronous, Stores(sync, asynchronous)

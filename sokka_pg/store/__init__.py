"""The task store: what it promises (``TaskStore``) and PostgreSQL's (``PgTaskStore``)."""

from sokka_pg.store.postgres import PgTaskStore
from sokka_pg.store.protocol import ErrorLike, LeaseLike, TaskStore

__all__ = ["ErrorLike", "LeaseLike", "PgTaskStore", "TaskStore"]

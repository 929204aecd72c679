"""The queue's views as SQLAlchemy models, for reading."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import create_engine, select, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from sokka_pg.errors import UsageError
from sokka_pg.integrations.sqlalchemy import (
    AllTask,
    AuditEntry,
    FanOut,
    FiredTick,
    HeldLock,
    LiveLease,
    OpenFence,
    Schedule,
    TaskEvent,
    TopicStat,
    View,
)
from sokka_pg.store import PgTaskStore

VIEWS = [
    AllTask, FanOut, TaskEvent, TopicStat, LiveLease, OpenFence, AuditEntry, Schedule, FiredTick,
    HeldLock,
]  # fmt: skip


@pytest.fixture
def session(db: str) -> Iterator[Session]:
    engine = create_engine(
        db.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool
    )
    with Session(engine) as found:
        yield found


def test_the_models_show_what_the_store_shows(session: Session, store: PgTaskStore) -> None:
    created = store.create_task("t", {"n": 1}, headers={"a": "b"}, timeout=5)
    task = store.reserve_task("t", "w1", 60)
    assert task is not None
    lease = session.scalars(select(LiveLease)).one()
    assert (lease.task_id, lease.token) == (task.task_id, task.token)
    store.fail(task, error="broke")
    found = session.scalars(select(AllTask).where(AllTask.topic == "t")).one()
    stored = store.task(created.task_id)
    assert stored is not None
    for field in ("task_id", "status", "data", "headers", "timeout", "error", "finished_at"):
        assert getattr(found, field) == getattr(stored, field), field
    events = session.scalars(select(TaskEvent).order_by(TaskEvent.seq)).all()
    assert [event.event for event in events] == ["created", "reserved", "failed"]


@pytest.mark.parametrize("model", VIEWS)
def test_a_model_has_exactly_the_columns_of_its_view(
    conn: psycopg.Connection, model: type[View]
) -> None:
    query = "select * from sokka." + model.__tablename__
    columns = [column.name for column in conn.execute(query).description or ()]
    assert [column.key for column in model.__table__.columns] == columns


@pytest.mark.parametrize("model", VIEWS)
def test_every_view_can_be_read_in_another_schema_too(
    session: Session, conn: psycopg.Connection, model: type[View]
) -> None:
    conn.execute("create schema other")
    conn.execute(
        f"create view other.{model.__tablename__} as select * from sokka.{model.__tablename__}"
    )
    session.connection(execution_options={"schema_translate_map": {"sokka": "other"}})
    assert session.scalars(select(model)).all() == []
    session.rollback()
    assert session.execute(text("select 1")).scalar() == 1


def test_the_models_are_for_reading_only(session: Session, store: PgTaskStore) -> None:
    store.create_task("t")
    found = session.scalars(select(AllTask)).one()
    found.priority = 0
    with pytest.raises(UsageError, match="AllTask is a view"):
        session.flush()
    session.rollback()
    session.add(TopicStat(topic="new"))
    with pytest.raises(UsageError, match="TopicStat is a view"):
        session.flush()

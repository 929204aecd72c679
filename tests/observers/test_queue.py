"""The figures of a queue, read from its database."""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg import sql
from psycopg.conninfo import make_conninfo

from sokka_pg import PgTaskStore
from sokka_pg.errors import BadArgument
from sokka_pg.observers import QueueCollector
from sokka_pg.observers import families as f
from sokka_pg.schema import sql_root
from tests.docs.reading import psql_folder
from tests.observers.conftest import Value


@pytest.fixture
def collector(db: str, registry: CollectorRegistry) -> QueueCollector:
    """One that asks anew at each look, and waits for the answer."""
    made = QueueCollector(db, every=0.000001, wait=20, most=3)
    made._due = lambda: True  # type: ignore[method-assign]
    registry.register(made)
    return made


@pytest.fixture
def store(db: str) -> Iterator[PgTaskStore]:
    with PgTaskStore(db) as made:
        yield made


@pytest.fixture
def role(db: str) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"sokka_metrics_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(db, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(name)))
        connection.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def test_depth_and_age_are_told_by_topic_and_status(
    collector: QueueCollector, store: PgTaskStore, conn: psycopg.Connection, value: Value
) -> None:
    for _ in range(3):
        store.create_task("mail")
    store.reserve_task("mail", "w", lease=60)
    conn.execute(
        "update sokka.tasks set run_at = run_at - interval '1 hour' where status = 'starting'"
    )
    assert value("sokka_tasks", topic="mail", status="starting") == 2
    assert value("sokka_tasks", topic="mail", status="running") == 1
    assert value("sokka_tasks", topic="mail", status="snoozed") == 0
    oldest = value("sokka_oldest_task_seconds", topic="mail", status="starting")
    assert oldest is not None and oldest >= 3600
    assert value("sokka_leases", state="live") == 1
    assert value("sokka_topic_paused", topic="mail") == 0
    store.pause_topic("mail")
    assert value("sokka_topic_paused", topic="mail") == 1


def test_topics_beyond_the_bound_are_added_up_and_those_known_stay(
    collector: QueueCollector, store: PgTaskStore, value: Value
) -> None:
    for topic, count in (("a", 2), ("b", 2), ("c", 2), ("d", 1), ("e", 1)):
        for _ in range(count):
            store.create_task(topic)
    assert value("sokka_tasks", topic="other", status="starting") == 2
    for _ in range(5):
        store.create_task("e")
    assert value("sokka_tasks", topic="other", status="starting") == 7
    assert value("sokka_tasks", topic="a", status="starting") == 2
    assert value("sokka_tasks", topic="e", status="starting") is None


def test_a_topic_that_is_empty_now_is_told_of_as_empty(
    collector: QueueCollector, store: PgTaskStore, conn: psycopg.Connection, value: Value
) -> None:
    store.create_task("mail")
    assert value("sokka_tasks", topic="mail", status="starting") == 1
    store.terminate(store.reserve_task("mail", "w"))
    assert value("sokka_tasks", topic="mail", status="starting") == 0


def test_open_joins_locks_and_schedules_are_counted(
    collector: QueueCollector, store: PgTaskStore, conn: psycopg.Connection, value: Value
) -> None:
    store.fan_out([{"topic": "t"}, {"topic": "t"}])
    conn.execute("select * from sokka.try_lock('report', 'me', '1 minute')")
    assert value("sokka_open_joins") == 1
    assert value("sokka_held_locks") == 1
    assert value("sokka_schedules", state="active") == 0


def test_an_old_snapshot_is_seen(
    collector: QueueCollector, connect: Callable[..., psycopg.Connection], value: Value
) -> None:
    holder = connect(autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select 1 from pg_class limit 1")
    held = value("sokka_oldest_snapshot_seconds")
    assert held is not None and held > 0


def test_every_figure_is_there_for_who_may_see_it(
    collector: QueueCollector, store: PgTaskStore, registry: CollectorRegistry
) -> None:
    store.create_task("t")
    told = {metric.name for metric in registry.collect() if metric.samples}
    assert told == {family.name for family in f.OF_QUEUE}


def test_what_a_role_may_not_see_is_left_out_and_said_once(
    db: str, registry: CollectorRegistry, conn: psycopg.Connection, role: str, value: Value,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for statement in (
        "grant usage on schema sokka to {}", "grant execute on function sokka.clock to {}",
        "grant execute on function sokka.until_told to {}",
        "grant select on sokka.topic_stats to {}",
    ):
        conn.execute(sql.SQL(statement).format(sql.Identifier(role)))
    made = QueueCollector(make_conninfo(db, user=role), wait=20)
    made._due = lambda: True  # type: ignore[method-assign]
    registry.register(made)
    conn.execute("select sokka.pause_topic('mail')")
    for _ in range(2):
        assert value("sokka_queue_up") == 1
    assert value("sokka_topic_paused", topic="mail") == 1
    assert value("sokka_open_joins") is None
    said = [r.getMessage() for r in caplog.records if "metrics of joins" in r.getMessage()]
    assert said == ["metrics of joins are left out: permission denied for view fan_outs"]


def test_the_role_viewer_sees_every_figure(
    db: str, registry: CollectorRegistry, role: str
) -> None:
    with PgTaskStore(db) as store:
        store.create_task("mail")
    run = subprocess.run(
        [psql_folder() / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", f"viewer={role}",
         "-f", sql_root() / "roles.sql", db],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    registry.register(QueueCollector(make_conninfo(db, user=role), wait=20))
    told = {metric.name for metric in registry.collect() if metric.samples}
    assert told == {family.name for family in f.OF_QUEUE}


def test_a_database_that_is_away_costs_the_figures_and_nothing_else(
    registry: CollectorRegistry, value: Value
) -> None:
    registry.register(QueueCollector("postgresql://ann:secret@127.0.0.1:1/none", wait=20))
    assert value("sokka_queue_up") == 0
    assert value("sokka_open_joins") is None


def test_the_figures_come_back_with_the_database(
    collector: QueueCollector, value: Value
) -> None:
    reader = collector._reader
    right, reader.database_url = reader.database_url, "postgresql://127.0.0.1:1/none"
    assert value("sokka_queue_up") == 0
    reader.database_url = right
    assert value("sokka_queue_up") == 1
    assert value("sokka_open_joins") == 0


def test_the_database_is_asked_once_for_looks_that_come_close(
    db: str, registry: CollectorRegistry, value: Value
) -> None:
    made = QueueCollector(db, every=3600, wait=20)
    registry.register(made)
    assert made.readings == 0
    looks = [threading.Thread(target=value, args=("sokka_queue_up",)) for _ in range(10)]
    for look in looks:
        look.start()
    for look in looks:
        look.join()
    assert value("sokka_queue_up") == 1
    assert made.readings == 1


def test_a_look_does_not_wait_for_a_database_that_hangs(
    db: str, registry: CollectorRegistry, value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = QueueCollector(db, every=0.000001, wait=0.05)
    registry.register(made)
    go_on, began = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        go_on.wait(20)
        raise RuntimeError("over")

    monkeypatch.setattr(made._reader, "read", hang)
    assert value("sokka_queue_up") == 0
    assert began.is_set()
    assert value("sokka_queue_up") == 0
    assert made.readings == 1, "a second one was begun beside the first"
    go_on.set()


def test_figures_that_got_old_are_left_out(
    db: str, registry: CollectorRegistry, value: Value, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = QueueCollector(db, every=3600, wait=20)
    registry.register(made)
    assert value("sokka_queue_up") == 1
    ahead = time.monotonic() + 61
    monkeypatch.setattr("sokka_pg.observers.queue.monotonic", lambda: ahead)
    assert value("sokka_queue_up") == 0
    assert value("sokka_open_joins") is None


@pytest.mark.parametrize("options", [{"every": 0}, {"wait": -1}, {"every": "x"}])
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadArgument):
        QueueCollector("postgresql://localhost/shop", **options)  # type: ignore[arg-type]


def test_another_schema_is_read_where_it_is(
    empty_db: str, registry: CollectorRegistry, value: Value
) -> None:
    from sokka_pg import schema

    with psycopg.connect(empty_db) as connection:
        schema.load(connection, "jobs")
    with PgTaskStore(empty_db, "jobs") as store:
        store.create_task("mail")
    registry.register(QueueCollector(empty_db, "jobs", wait=20))
    assert value("sokka_tasks", topic="mail", status="starting") == 1

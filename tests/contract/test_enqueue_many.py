"""Many tasks of one declaration: arguments in, one task for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from sokka_pg import Sokka
from sokka_pg.errors import BadArgument, UsageError
from sokka_pg.model import BatchesCreated, CreatedId

ROWS = "select topic, kind, priority, data, headers from sokka.tasks order by queue_pos"


@pytest.fixture
def app(db: str) -> Iterator[Sokka]:
    found = Sokka(db)
    yield found
    found.store.close()


@pytest.fixture(params=["sync", "async"])
def enqueue_many(request: pytest.FixtureRequest, app: Sokka) -> Any:
    def call(task: Any, members: Any, **options: Any) -> Any:
        if request.param == "sync":
            return task.enqueue_many(members, **options)

        async def in_a_loop() -> Any:
            try:
                return await task.enqueue_many_async(members, **options)
            finally:
                await app.async_store.close()

        return asyncio.run(in_a_loop())

    return call


def test_each_member_is_the_arguments_of_a_task(
    app: Sokka, conn: psycopg.Connection, enqueue_many: Any
) -> None:
    @app.task(topic="mail", priority=2)
    def send(to: str, subject: str = "hello") -> None: ...

    told: list[CreatedId] = []
    members = ["ann", ("bob",), ("cid", "news"), {"to": "dan"}, {"to": "eve", "subject": "x"}]
    made = enqueue_many(send, iter(members * 300), each=told.extend)
    assert made == BatchesCreated(1_500, 0)
    assert len(told) == 1_500
    alone = [send.enqueue("ann"), send.enqueue("bob"), send.enqueue("cid", "news"),
             send.enqueue(to="dan"), send.enqueue(to="eve", subject="x")]  # fmt: skip
    rows = conn.execute(ROWS).fetchall()
    assert rows[-5:] == rows[:5]
    assert rows[:1_500] == rows[:5] * 300
    assert [row[:4] for row in rows[-5:]] == [
        ("mail", "send", 2, each.task.data) for each in alone
    ]


def test_options_are_those_of_all(app: Sokka, conn: psycopg.Connection, enqueue_many: Any) -> None:
    @app.task
    def note(text: str) -> None: ...

    enqueue_many(note.configure(topic="other", headers={"a": "b"}), ["x", "y"])
    assert conn.execute(ROWS).fetchall() == [
        ("other", "note", 5, {"text": text}, {"a": "b"}) for text in ("x", "y")
    ]
    for name in ("task_id", "unique_key"):
        with pytest.raises(UsageError, match=f"{name} is of one task"):
            enqueue_many(note.configure(**{name: "k"}), ["x"])


def test_a_member_that_does_not_fit_is_refused_and_those_before_it_are_stored(
    app: Sokka, conn: psycopg.Connection, enqueue_many: Any
) -> None:
    @app.task
    def count(number: int) -> None: ...

    with pytest.raises(BadArgument, match="number") as refused:
        enqueue_many(count, [*range(1_003), "many", 5])
    assert refused.value.detail["stored"] == 1_003
    assert refused.value.__notes__ == ["the first 1003 specs are stored"]
    assert conn.execute("select count(*) from sokka.tasks").fetchone() == (1_003,)


def test_an_observer_goes_along_once_with_them_all(
    app: Sokka, conn: psycopg.Connection, enqueue_many: Any
) -> None:
    class Tracer:
        met = 0

        def __call__(self, event: object) -> None: ...

        @contextmanager
        def enqueuing(
            self, topic: str, kind: str, headers: Mapping[str, str]
        ) -> Iterator[Mapping[str, str]]:
            self.met += 1
            yield {"trace": f"{topic}/{kind}/{len(headers)}"}

        @contextmanager
        def running(self, task: Any) -> Iterator[None]:
            yield

    tracer = Tracer()
    app.observers.append(tracer)

    @app.task(topic="t")
    def note(text: str) -> None: ...

    enqueue_many(note.configure(headers={"a": "b"}), (f"{n}" for n in range(1_200)))
    assert tracer.met == 1
    found = conn.execute("select headers, count(*) from sokka.tasks group by 1").fetchall()
    assert found == [({"a": "b", "trace": "t/note/1"}, 1_200)]


def test_in_the_callers_transaction(app: Sokka, db: str, conn: psycopg.Connection) -> None:
    @app.task
    def note(text: str) -> None: ...

    with psycopg.connect(db) as mine:
        note.configure(connection=mine).enqueue_many(f"{n}" for n in range(1_200))
        mine.rollback()
        note.configure(connection=mine).enqueue_many(["kept"])
    assert conn.execute("select data from sokka.tasks").fetchall() == [({"text": "kept"},)]

"""Hostile names travel as data; unique keys are compared byte by byte."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import BadArgument, UniqueKeyTaken
from sokka_pg.store import PgTaskStore

NAMES = [
    "My.Schema", "my-schema", "o'brien", 'a"b', "a$$b", "a\\b", "select", "x.job", "é" * 40,
    "a" * 63, "a" * 64, "x" * 200, "𝄞" * 200, "%s", "%(topic)s", "{0}", ":topic", "?", "$1",
    "'; drop table sokka.tasks;--", "a,b", "{a}", "NULL", "null", "\u202etopic", " padded ",
    "<img src=x onerror=document.title=1>",
]  # fmt: skip


def test_any_printable_name_is_a_topic_a_kind_and_a_worker(store: PgTaskStore) -> None:
    made: dict[str, UUID] = {}
    for name in NAMES:
        created = store.create_task(
            name,
            {name: name},
            kind=name,
            sub_topic=name,
            unique_key=name[:100],
            headers={name: name},
        )
        made[name] = created.task_id
    for name, task_id in made.items():
        assert store.mark_idle([name], name, 60) in (True, False)
        store.pause_topic(name, name)
        store.resume_topic(name)
        found = store.list_tasks({"topic": name, "kind": name, "sub_topic": name}).items
        assert [item.task_id for item in found] == [task_id]
        (task,) = store.reserve_tasks([name], name, 5, 60)
        assert (task.topic, task.kind, task.sub_topic, task.pid) == (name, name, name, name)
        assert task.data == task.headers == {name: name}
        store.advance_fence(name, task.token)
        store.terminate(task, result=name)
        assert [event.pid for event in store.history(task_id)][1:] == [name, name]


def test_names_that_differ_only_in_case_or_form_are_different(store: PgTaskStore) -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    for name in ("Topic", "topic", "TOPIC", composed, decomposed):
        store.create_task(name, name)
    for name in ("Topic", "topic", "TOPIC", composed, decomposed):
        task = store.reserve_task(name, "w1")
        assert task is not None
        assert task.data == name
        assert store.reserve_task(name, "w1") is None


def test_tasks_without_a_key_never_meet_and_keys_are_compared_byte_by_byte(
    store: PgTaskStore,
) -> None:
    assert store.create_task("t").created
    assert store.create_task("t").created
    for key in ("A", "a", "\u00e9", "e\u0301", " a", "k" * 500):
        assert store.create_task("t", unique_key=key).created, key
        assert not store.create_task("t", unique_key=key).created, key
    for key in ("", "k" * 501, "é" * 251):
        with pytest.raises(BadArgument, match="unique_key"):
            store.create_task("t", unique_key=key)


def test_a_key_is_free_again_once_its_task_has_ended(store: PgTaskStore) -> None:
    first = store.create_task("t", unique_key="k")
    task = store.acquire_lease(first.task_id, "w1", 60)
    store.retry(task, error="x", delay=0)
    found = store.task(first.task_id)
    assert found is not None
    assert found.status == "failed"
    second = store.create_task("t", unique_key="k", on_conflict="error")
    assert second.created
    with pytest.raises(UniqueKeyTaken) as refused:
        store.create_task("t", unique_key="k", on_conflict="error")
    assert refused.value.detail["task_id"] == str(second.task_id)


def test_bulk_enqueues_with_crossing_keys_neither_deadlock_nor_double(db: str) -> None:
    keys = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    options = ConnectionOptions(max_size=2)
    with PgTaskStore(db, options=options) as store, ThreadPoolExecutor(2) as threads:
        for number in range(30):
            barrier = threading.Barrier(2)

            def enqueue(order: list[str], topic: str, barrier: Any = barrier) -> list[Any]:
                barrier.wait(20)
                return store.create_tasks([{"topic": topic, "unique_key": key} for key in order])

            topic = f"t{number}"
            one = threads.submit(enqueue, keys, topic)
            two = threads.submit(enqueue, keys[::-1], topic)
            first, second = one.result(), two.result()[::-1]
            assert [a.task_id for a in first] == [b.task_id for b in second]
            assert all(a.created != b.created for a, b in zip(first, second, strict=True))


def test_the_names_of_a_refused_call_reach_no_table(
    store: PgTaskStore, conn: psycopg.Connection
) -> None:
    for name in ("a\x00b", "a\nb", "\x1b[31m", "", "   ", "x" * 201, "\ud800"):
        with pytest.raises(BadArgument):
            store.create_task(name)
        with pytest.raises(BadArgument):
            store.reserve_task("t", name)
        with pytest.raises(BadArgument):
            store.pause_topic(name)
    assert conn.execute("select count(*) from sokka.tasks").fetchone() == (0,)

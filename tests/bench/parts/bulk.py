"""Enqueue in bulk, beside COPY into the same table.

COPY brings rows that are ready: ids, positions and times are made beforehand. All commit
as often. What goes in batches is encoded while the server works on the batch before.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from sokka_pg import calls
from sokka_pg.store import PgTaskStore
from sokka_pg.store_async import AsyncPgTaskStore
from tests.bench.book import Book, Measure
from tests.bench.host import Host, Site
from tests.bench.payloads import payload
from tests.bench.plan import Plan

BATCHES = (1_000, 10_000)
_LEAST = 0.4
_Create = Callable[..., Any]

_COPY = """
    copy sokka.tasks (task_id, task_group_id, created_at, updated_at, run_at, queue_pos, priority,
        max_attempts, max_losses, status, topic, sub_topic, kind, data) from stdin
"""


def run(host: Host, plan: Plan, book: Book) -> None:
    with host.site() as site, _stores(site) as (store, awaited):
        for batch in BATCHES:
            count = max(batch, plan.tasks * 2 // batch * batch)
            at_once = f"{batch:,} to a commit"
            ways = {
                f"COPY into tasks, {at_once}": _each(_copy(site, batch), batch),
                f"create_tasks in SQL, {at_once}": _each(_by_sql(site, batch), batch),
                f"create_tasks_like in SQL, {at_once}": _each(_like_by_sql(site, batch), batch),
                f"PgTaskStore.create_tasks, {at_once}": _each(_by_python(site, batch), batch),
                f"PgTaskStore.create_tasks_in_batches, {at_once}": _in_batches(store, batch),
                f"AsyncPgTaskStore.create_tasks_in_batches, {at_once}": _in_batches(awaited, batch),
            }
            book.compare("bulk", [
                Measure(name, lambda way=way, n=count: _rate(way, n)) for name, way in ways.items()
            ])  # fmt: skip
            copied, *others = ways
            for ours in others:
                book.ratio("bulk", f"{ours} / COPY", ours, copied, least=_LEAST)


def _rate(way: Callable[[int], None], count: int) -> float:
    begun = time.perf_counter()
    way(count)
    return count / (time.perf_counter() - begun)


def _each(once: Callable[[], None], batch: int) -> Callable[[int], None]:
    def all_of_them(count: int) -> None:
        for _ in range(count // batch):
            once()

    return all_of_them


def _copy(site: Site, batch: int) -> Callable[[], None]:
    connection = site.line.connection
    rows = [
        (f"\t2026-01-01\t2026-01-01\t2026-01-01\t{n}\t5\t1\t5\tstarting\tcopied\tdefault\tno_op\t"
         f"{json.dumps(payload(100, n), separators=(',', ':'))}\n")
        for n in range(batch)
    ]  # fmt: skip

    def once() -> None:
        # Ids in order, as a queue makes them.
        ids = sorted(str(uuid4()) for _ in range(batch))
        text = "".join(f"{i}\t{i}{row}" for i, row in zip(ids, rows, strict=True))
        with connection.cursor().copy(_COPY) as copy:
            copy.write(text)

    return once


def _specs(count: int) -> Iterator[dict[str, Any]]:
    return ({"topic": "bulk", "kind": "no_op", "data": payload(100, n)} for n in range(count))


def _by_sql(site: Site, batch: int) -> Callable[[], None]:
    text = json.dumps(list(_specs(batch)))
    connection = site.line.connection

    def once() -> None:
        connection.execute(
            "select count(*) from sokka.create_tasks(%s::jsonb)", (text,), prepare=True
        )

    return once


def _like_by_sql(site: Site, batch: int) -> Callable[[], None]:
    spec = json.dumps({"topic": "bulk", "kind": "no_op"})
    data = json.dumps([each["data"] for each in _specs(batch)])
    connection = site.line.connection

    def once() -> None:
        connection.execute(
            "select count(*) from sokka.create_tasks_like(%s::jsonb, %s::jsonb)",
            (spec, data), prepare=True,
        )  # fmt: skip

    return once


def _by_python(site: Site, batch: int) -> Callable[[], None]:
    specs = list(_specs(batch))

    def once() -> None:
        site.line.run(calls.create_tasks(specs))

    return once


@contextmanager
def _stores(site: Site) -> Iterator[tuple[_Create, _Create]]:
    """``create_tasks_in_batches`` of both stores, connected before anything is measured."""
    with PgTaskStore(site.url) as store, asyncio.Runner() as loop:
        store.topics()
        awaited = AsyncPgTaskStore(site.url)
        loop.run(awaited.topics())
        try:
            yield (
                store.create_tasks_in_batches,
                lambda *args, **options: loop.run(
                    awaited.create_tasks_in_batches(*args, **options)
                ),
            )
        finally:
            loop.run(awaited.close())


def _in_batches(create: _Create, batch: int) -> Callable[[int], None]:
    return lambda count: create(_specs(count), batch_size=batch)

"""Enqueue in bulk, beside COPY into the same table.

COPY brings rows that are ready: ids, positions and times are made beforehand. Both
sides commit as often.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from uuid import uuid4

from sokka_pg import calls
from tests.bench.book import Book, Measure
from tests.bench.host import Host, Site
from tests.bench.payloads import payload
from tests.bench.plan import Plan

BATCHES = (1_000, 10_000)
_LEAST = 0.4

_COPY = """
    copy sokka.tasks (task_id, task_group_id, created_at, updated_at, run_at, queue_pos, priority,
        max_attempts, max_losses, status, topic, sub_topic, kind, data) from stdin
"""


def run(host: Host, plan: Plan, book: Book) -> None:
    with host.site() as site:
        for batch in BATCHES:
            count = max(batch, plan.tasks * 2 // batch * batch)
            ways = {
                f"COPY into tasks, {batch:,} to a commit": _copy(site, batch),
                f"create_tasks in SQL, {batch:,} to a call": _by_sql(site, batch),
                f"PgTaskStore.create_tasks, {batch:,} to a call": _by_python(site, batch),
            }
            book.compare("bulk", [
                Measure(name, lambda way=way, n=count, b=batch: _rate(way, n, b))
                for name, way in ways.items()
            ])  # fmt: skip
            copied, by_sql, by_python = ways
            for ours in (by_sql, by_python):
                book.ratio("bulk", f"{ours} / COPY", ours, copied, least=_LEAST)


def _rate(way: Callable[[], None], count: int, batch: int) -> float:
    begun = time.perf_counter()
    for _ in range(count // batch):
        way()
    return count / (time.perf_counter() - begun)


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


def _by_sql(site: Site, batch: int) -> Callable[[], None]:
    text = json.dumps(
        [{"topic": "bulk", "kind": "no_op", "data": payload(100, n)} for n in range(batch)]
    )
    connection = site.line.connection

    def once() -> None:
        connection.execute(
            "select count(*) from sokka.create_tasks(%s::jsonb)", (text,), prepare=True
        )

    return once


def _by_python(site: Site, batch: int) -> Callable[[], None]:
    specs = [{"topic": "bulk", "kind": "no_op", "data": payload(100, n)} for n in range(batch)]

    def once() -> None:
        site.line.run(calls.create_tasks(specs))

    return once

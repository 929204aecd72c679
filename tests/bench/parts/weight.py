"""What a task weighs: bytes while it lives and when it has ended, and its share of the log.

No checkpoint falls into a run, so the log holds hardly any page images; what they are is
told apart.
"""

from __future__ import annotations

from tests.bench.book import Book
from tests.bench.crew import SLOTS, Crew, crew, drain
from tests.bench.host import Host, Site
from tests.bench.plan import Plan

_MOST_WAL = 1100.0


def run(host: Host, plan: Plan, book: Book) -> None:
    for _ in range(plan.rounds):
        with host.site() as site, crew(site, f"weighed:{SLOTS}") as made:
            _once(site, made, plan.weighed, book)
    total = [sum(pair) for pair in zip(
        book.values("weight", "log to enqueue"), book.values("weight", "log to work"), strict=True
    )]  # fmt: skip
    for value in total:
        book.add("weight", "log, enqueue to finish", value, "bytes/task")
    middle = sorted(total)[len(total) // 2]
    book.judge("weight", "log, enqueue to finish, bytes per task", middle, most=_MOST_WAL)


def _once(site: Site, made: Crew, count: int, book: Book) -> None:
    host = site.host
    book.add("weight", "a waiting task, with its indexes", _waiting(site, count), "bytes/task")
    # Pages and plans are warm before anything counts.
    drain(site, made, count // 5, lambda: site.fill("weighed", count // 5))
    before = _bytes(site, "finished_tasks%")
    enqueued: list[tuple[float, float]] = []

    def fill() -> None:
        start = host.wal()
        site.fill("weighed", count)
        end = host.wal()
        enqueued.append((
            (end.bytes - start.bytes) / count, (end.page_images - start.page_images) / count
        ))  # fmt: skip

    found = drain(site, made, count, fill)
    after = _bytes(site, "finished_tasks%")
    book.add("weight", "log to enqueue", enqueued[0][0], "bytes/task")
    book.add("weight", "log to work", found.wal_bytes, "bytes/task")
    book.add("weight", "page images in the log", enqueued[0][1] + found.wal_page_images, "/task")
    book.add("weight", "a finished task, with its indexes",
             (after - before) / count, "bytes/task")  # fmt: skip


def _waiting(site: Site, count: int) -> float:
    """Of a topic that nobody serves."""
    before = _bytes(site, "tasks")
    site.fill("waiting", count)
    return (_bytes(site, "tasks") - before) / count


def _bytes(site: Site, pattern: str) -> int:
    return int(site.ask(_BYTES, pattern=pattern))


_BYTES = """
    select coalesce(sum(pg_total_relation_size(c.oid)), 0)
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where n.nspname = 'sokka' and c.relkind = 'r' and c.relname like %(pattern)s
"""

"""Enqueue one by one: beside a bare insert of that size, and in a caller's transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sokka_pg import ConnectionOptions
from sokka_pg.store import PgTaskStore
from tests.bench import pgbench
from tests.bench.book import Book, Measure
from tests.bench.crew import SLOTS, crew, until
from tests.bench.host import Host, Site
from tests.bench.payloads import payload
from tests.bench.plan import Plan

CLIENTS = (1, 8, 16)
_LEAST = 0.8

_BARE_TABLE = """
    create table public.bare_tasks (
        id uuid primary key default gen_random_uuid(), topic text not null,
        created_at timestamptz not null default now(), data jsonb)
"""
_BARE = "insert into public.bare_tasks (topic, data) values ('enqueue', '{data}');\n"
_OURS = (
    "select task_id, created from sokka.create_task("
    "p_topic => 'enqueue', p_kind => '{kind}', p_data => '{data}');\n"
)
_ORDER = "begin;\ninsert into public.orders (said) values ('{data}');\n{then}commit;\n"


def _text(size: int = 100) -> str:
    pad = payload(size)["pad"]
    return f'{{"pad":"{pad}"}}'


def bare(site: Site, clients: int, seconds: int) -> float:
    return pgbench.transactions_per_second(
        site, _BARE.format(data=_text()), clients=clients, seconds=seconds
    )


def ours(site: Site, clients: int, seconds: int, kind: str = "hold") -> float:
    return pgbench.transactions_per_second(site, script(kind), clients=clients, seconds=seconds)


def script(kind: str) -> str:
    """One call of create_task."""
    return _OURS.format(data=_text(), kind=kind)


@contextmanager
def busy_workers(site: Site) -> Iterator[None]:
    """One worker process, all of whose slots are taken: it need not be told of more."""
    site.fill("enqueue", SLOTS * 5, kind="hold")
    with crew(site, f"enqueue:{SLOTS}", 1, "--prefetch", "0"):
        until(
            lambda: site.ask(
                "select count(*) >= %(slots)s from sokka.tasks where status = 'running'",
                slots=SLOTS,
            ), "busy workers",
        )  # fmt: skip
        yield


def prepare(site: Site) -> None:
    site.ask(_BARE_TABLE)
    site.ask("create table public.orders (id bigint generated always as identity, said jsonb)")


def run(host: Host, plan: Plan, book: Book) -> None:
    with host.site() as site:
        prepare(site)
        _compare(site, plan, book, "no worker")
        with busy_workers(site):
            _compare(site, plan, book, "workers busy")
    with host.site() as site:
        prepare(site)
        _in_transactions(site, plan, book)
        _by_python(site, plan, book)


def _compare(site: Site, plan: Plan, book: Book, state: str) -> None:
    for clients in CLIENTS:
        named = f"{clients} client{'s' if clients > 1 else ''}, {state}"
        book.compare("enqueue", [
            Measure(f"bare insert, {named}", lambda n=clients: bare(site, n, plan.seconds)),
            Measure(f"create_task, {named}", lambda n=clients: ours(site, n, plan.seconds)),
        ])  # fmt: skip
        book.ratio(
            "enqueue", f"create_task / bare insert, {named}", f"create_task, {named}",
            f"bare insert, {named}", least=_LEAST if clients > 1 else None,
        )


def _in_transactions(site: Site, plan: Plan, book: Book) -> None:
    """An order and its task, committed together."""
    scripts = {
        "an order and a bare insert, 8 clients": _BARE.format(data=_text()),
        "an order and create_task, 8 clients": _OURS.format(data=_text(), kind="hold"),
    }
    measures = [
        Measure(name, lambda then=then: pgbench.transactions_per_second(
            site, _ORDER.format(data=_text(), then=then), clients=8, seconds=plan.seconds
        ), "transactions/s")
        for name, then in scripts.items()
    ]  # fmt: skip
    book.compare("enqueue", measures)
    book.ratio("enqueue", "in a caller's transaction, 8 clients", *reversed(scripts))


def _by_python(site: Site, plan: Plan, book: Book) -> None:
    """By the client library, in one process: its own processor time is part of it."""
    options = ConnectionOptions(max_size=max(CLIENTS))
    with PgTaskStore(site.url, options=options) as store:
        data = payload(100)

        def enqueue(until_s: float) -> int:
            count = 0
            while time.perf_counter() < until_s:
                store.create_task("python", data, kind="hold")
                count += 1
            return count

        def rate(clients: int) -> float:
            with ThreadPoolExecutor(clients) as threads:
                begun = time.perf_counter()
                ends = [begun + max(plan.seconds, 0.1)] * clients
                total = sum(threads.map(enqueue, ends))
                return total / (time.perf_counter() - begun)

        book.compare("enqueue", [
            Measure(f"PgTaskStore.create_task, {n} threads of one process", lambda n=n: rate(n))
            for n in (1, 8)
        ])  # fmt: skip

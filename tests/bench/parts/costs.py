"""What single promises cost: the history, metrics, notifications."""

from __future__ import annotations

from tests.bench.book import Book, Measure
from tests.bench.crew import SLOTS, crew, drain
from tests.bench.host import Host, Site
from tests.bench.parts import enqueue
from tests.bench.plan import Plan

# A finished task is told to go nowhere: the row is made and thrown away, which a function
# call a row pays for. What is left out is the insert, its indexes and its share of the log.
_NO_HISTORY = """
    create function public.forget() returns trigger language plpgsql
        as $$ begin return null; end $$;
    create trigger bench_forget before insert on sokka.finished_tasks
        for each row execute function public.forget();
"""


def _drained(site: Site, plan: Plan, *options: str) -> float:
    with crew(site, f"drain:{SLOTS}", 1, *options) as made:
        return drain(site, made, plan.tasks, lambda: site.fill("drain", plan.tasks)).rate


def history(host: Host, plan: Plan, book: Book) -> None:
    """Work with the history and without it, measured by the processor: without finished
    tasks the database cannot tell how long it took."""

    def server_us(forget: bool) -> float:
        with host.site() as site, crew(site, f"drain:{SLOTS}") as made:
            if forget:
                site.line.connection.execute(_NO_HISTORY)
            found = drain(site, made, plan.tasks, lambda: site.fill("drain", plan.tasks))
            book.add("history", f"log, {'no ' * forget}history", found.wal_bytes, "bytes/task")
            return found.server_cpu_us

    kept, forgotten = "server CPU, history", "server CPU, no history"
    book.compare("history", [
        Measure(kept, lambda: server_us(False), "µs/task"),
        Measure(forgotten, lambda: server_us(True), "µs/task"),
    ])  # fmt: skip
    book.ratio("history", "server CPU with history / without", kept, forgotten)
    book.ratio("history", "log with history / without", "log, history", "log, no history")


def metrics(host: Host, plan: Plan, book: Book) -> None:
    def rate(*options: str) -> float:
        with host.site() as site:
            return _drained(site, plan, *options)

    on, off = "drain, metrics served", "drain, no metrics"
    book.compare("metrics", [
        Measure(off, rate), Measure(on, lambda: rate("--metrics-port", "0"))
    ])  # fmt: skip
    book.ratio("metrics", "drain with metrics / without", on, off)


def notify(host: Host, plan: Plan, book: Book) -> None:
    """Sixteen writers, beside a worker that keeps up and so goes idle again and again, and
    beside one whose slots are all taken."""

    def busy(site: Site) -> float:
        with enqueue.busy_workers(site):
            return enqueue.ours(site, 16, plan.seconds)

    def keeping_up(site: Site) -> float:
        with crew(site, f"enqueue:{SLOTS}") as made:
            made.wait_until_idle()
            return enqueue.ours(site, 16, plan.seconds, kind="no_op")

    for state, work in (("worker keeps up", keeping_up), ("workers busy", busy)):
        names = {f"16 writers, {state}, notify {'on' if on else 'off'}": on for on in (True, False)}

        def rate(on: bool, work: object = work) -> float:
            with host.site() as site:
                site.ask(f"update sokka.settings set notify = {on}")
                return float(work(site))  # type: ignore[operator]

        book.compare("notify", [
            Measure(name, lambda on=on, rate=rate: rate(on)) for name, on in names.items()
        ])  # fmt: skip
        book.ratio("notify", f"16 writers, {state}: notify on / off", *names)

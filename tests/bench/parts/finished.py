"""Does it get slower beside a great many finished tasks?"""

from __future__ import annotations

from sokka_pg.bench import steady
from tests.bench.book import Book, Measure, say
from tests.bench.crew import SLOTS, crew, drain
from tests.bench.host import Host, Site
from tests.bench.parts import enqueue
from tests.bench.plan import Plan

_MOST = 1.1


def run(host: Host, plan: Plan, book: Book) -> None:
    """The same work in a database with that many and in one with none, in turn."""
    label = f"{plan.finished:,} finished tasks"
    with host.site() as beside, host.site() as without:
        steady.prefill(beside.line, plan.finished, lambda text, share=None: None)
        say(f"finished: {label} are there")
        names = {"with none": without, f"beside {label}": beside}
        for what, work in (("drain", _drained), ("create_task, 8 clients", _enqueued)):
            book.compare("finished", [
                Measure(f"{what}, {name}", lambda site=site, work=work: work(site, plan))
                for name, site in names.items()
            ])  # fmt: skip
            none, many = (f"{what}, {name}" for name in names)
            book.ratio("finished", f"{what}: time beside {label} / with none", none, many,
                       most=_MOST)  # fmt: skip


def _drained(site: Site, plan: Plan) -> float:
    with crew(site, f"drain:{SLOTS}") as made:
        return drain(site, made, plan.tasks, lambda: site.fill("drain", plan.tasks)).rate


def _enqueued(site: Site, plan: Plan) -> float:
    rate = enqueue.ours(site, 8, plan.seconds)
    # The next drain must not find them.
    site.ask("select sokka.pause_topic('enqueue')")
    return rate

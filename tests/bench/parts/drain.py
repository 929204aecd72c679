"""Work off a backlog by worker processes: handlers of each kind, payloads of each size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.book import Book, Measure
from tests.bench.crew import SLOTS, Drained, crew, drain
from tests.bench.host import Host, Site
from tests.bench.plan import Plan


@dataclass(frozen=True, slots=True)
class Load:
    """``share``: of the plan's tasks, since some are slower by far."""

    name: str
    kind: str = "no_op"
    processes: int = 1
    size: int = 100
    share: float = 1.0
    slots: int = SLOTS


LOADS = (
    Load("1 process, async", processes=1),
    Load("2 processes, async", processes=2, share=1.5),
    Load("4 processes, async", processes=4, share=1.5),
    Load("1 process, sync", "no_op_sync", share=0.5),
    Load("2 processes, sync", "no_op_sync", 2, share=0.5),
    Load("1 process, handlers in child processes", "no_op_process", share=0.005, slots=4),
    Load("1 process, async, payload 10 kB", size=10_000, share=0.2),
    Load("1 process, async, payload 1 MB", size=1_000_000, share=0.005),
)


def measure(
    host: Host, plan: Plan, load: Load, *options: str, url: Callable[[Site], str] = lambda s: s.url
) -> Drained:
    """One drain in a fresh database, with what it used up beside its rate."""
    count = max(10, int(plan.tasks * load.share))
    warm_up = min(200, count)
    with (
        host.site() as site,
        crew(site, f"drain:{load.slots}", load.processes, *options, url=url(site)) as made,
    ):

        def drained(tasks: int) -> Drained:
            return drain(site, made, tasks, lambda: site.fill("drain", tasks, load.size, load.kind))

        drained(warm_up)  # connections, prepared statements, plans
        return drained(count)


def run(host: Host, plan: Plan, book: Book) -> None:
    def rate(load: Load) -> float:
        found = measure(host, plan, load)
        for name, value, unit in (
            ("worker CPU", found.worker_cpu_us, "µs/task"),
            ("server CPU", found.server_cpu_us, "µs/task"),
            ("memory of a process", found.rss_mib, "MiB"),
            ("connections", found.connections, "connections"),
        ):
            book.add("drain", f"{load.name}: {name}", value, unit)
        return found.rate

    book.compare("drain", [Measure(load.name, lambda load=load: rate(load)) for load in LOADS])
    names = [load.name for load in LOADS]
    book.ratio("drain", "2 processes / 1, async", names[1], names[0])
    book.ratio("drain", "4 processes / 1, async", names[2], names[0])

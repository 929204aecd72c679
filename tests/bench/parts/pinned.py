"""Does it get slower while another session holds an old snapshot?

Two worker processes, all ten priorities, and one task of a hundred fails once and comes
back after a tenth of a second. No dead row can be removed meanwhile.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from sokka_pg import calls
from sokka_pg.bench.ground import BULK, Line
from tests.bench.book import Book, Curve
from tests.bench.crew import SLOTS, crew, drain
from tests.bench.host import Host, Site
from tests.bench.payloads import payload
from tests.bench.plan import Plan

FIFTHS = 5
_WITHOUT, _HELD = "without one", "under an old snapshot"
_LEAST = 0.9
_RETRY = {"max_attempts": 2, "initial": 0.1, "max": 0.1, "jitter": 0}


def run(host: Host, plan: Plan, book: Book) -> None:
    states = (_WITHOUT, _HELD)
    for turn in range(plan.rounds):
        for state in states if turn % 2 == 0 else reversed(states):
            rates = _rates(host, plan.large, state == _HELD)
            for number, rate in enumerate(rates, start=1):
                book.add("pinned", _named(state, number), rate, "tasks/s")
    fifths = range(1, FIFTHS + 1)
    ends = [plan.large * n // FIFTHS for n in fifths]
    for state in states:
        rates = [statistics.median(book.values("pinned", _named(state, n))) for n in fifths]
        book.curves.append(Curve("pinned", state, ends, rates, "tasks done", "tasks/s"))
    book.ratio(
        "pinned", f"last fifth / first, {plan.large:,} tasks",
        _named(_HELD, FIFTHS), _named(_HELD, 1), least=_LEAST,
    )  # fmt: skip


def _named(state: str, fifth: int) -> str:
    return f"{state}, fifth {fifth}"


def _rates(host: Host, count: int, held: bool) -> list[float]:
    """Of the first ``count`` tasks that end. There are a few more, so that the queue does not
    run dry meanwhile: its end is a wait for the last retries, not for the database."""
    more = count + count // 20
    with host.site() as site, crew(site, f"pinned:{SLOTS}", 2) as made:
        with _old_snapshot(site) if held else _nothing():
            # A look at what is left walks over all that is dead: few looks.
            drain(site, made, more, lambda: _fill(site, more), every_s=max(0.5, count / 50_000),
                  patience_s=60 + count / 500)  # fmt: skip
        rows = site.line.connection.execute(_FIFTHS, {"count": count, "fifths": FIFTHS}).fetchall()
        return [float(rate) for (rate,) in rows]


def _fill(site: Site, count: int) -> None:
    chance = random.Random(1)
    for first in range(0, count, BULK):
        site.line.run(calls.create_tasks([
            {"topic": "pinned", "kind": "fail_sometimes", "data": payload(100, first + n),
             "priority": chance.randrange(10), "retry": _RETRY}
            for n in range(min(BULK, count - first))
        ]))  # fmt: skip


@contextmanager
def _old_snapshot(site: Site) -> Iterator[None]:
    holder = Line(site.url, site.line.schema)
    try:
        holder.ask("begin isolation level repeatable read")
        holder.ask("select count(*) from sokka.settings")
        yield
    finally:
        holder.close()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


_FIFTHS = """
    select count(*) / greatest(extract(epoch from max(finished_at) - min(began_at)), 0.001)
      from (select finished_at, ntile(%(fifths)s) over (order by finished_at) as fifth,
                   lag(finished_at, 1, leased_at) over (order by finished_at) as began_at
              from (select finished_at, leased_at from sokka.finished_tasks
                     where topic = 'pinned' order by finished_at limit %(count)s) first) each
     group by fifth order by fifth
"""

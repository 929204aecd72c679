"""Claim and finish in raw SQL, on one connection, beside the floor.

The floor: rows that hold an id and a flag, claimed by an update and finished by a
delete. No lease, no token, no history; whatever a queue promises comes on top.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench import pgbench
from tests.bench.book import Book, Measure
from tests.bench.host import Host, Site
from tests.bench.plan import Plan

BATCHES = (1, 10, 100, 500)
# One at a time is slow, and batches of one wait for the disk in any case.
_SHARE = {1: 0.1, 10: 0.5}
_LEAST = 0.4

_MAKE_BARE = (
    "create table public.bare (id bigint primary key, taken boolean not null default false)"
)
_REFILL_BARE = "truncate public.bare"
_FILL_BARE = "insert into public.bare select n from generate_series(1, %(count)s) n"

_BARE_CLAIM = """
with claimed as (
    update public.bare set taken = true where id = any (array(
        select id from public.bare where not taken
         order by id limit {batch} for update skip locked))
    returning id)
select coalesce(array_agg(id), '{{}}') as ids from claimed \\gset
"""
_BARE_DELETE = "delete from public.bare where id = any (:ids::bigint[]);\n"
_BARE_TWO = _BARE_CLAIM + _BARE_DELETE
_BARE_ONE = """
with ended as (delete from public.bare where id = any (:ids::bigint[])),
claimed as (
    update public.bare set taken = true where id = any (array(
        select id from public.bare where not taken
         order by id limit {batch} for update skip locked))
    returning id)
select coalesce(array_agg(id), '{{}}') as ids from claimed \\gset
"""
_OURS_TWO = """
select array_agg(r.task_id) as ids, array_agg(r.token) as tokens
  from sokka.reserve_tasks(array['floor'], 'bench', {batch}) r \\gset
select count(*) from sokka.terminate_tasks('bench', :ids::uuid[], :tokens::bigint[]);
"""
_OURS_ONE = """
select coalesce(array_agg(r.task_id) filter (where r.verdict = 'reserved'), '{{}}') as ids,
       coalesce(array_agg(r.token) filter (where r.verdict = 'reserved'), '{{}}') as tokens
  from sokka.exchange_work('bench', :ids::uuid[], :tokens::bigint[],
           array_fill('terminate'::text, array[cardinality(:ids::uuid[])]), null,
           array['floor'], {batch}) r \\gset
"""


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    script: str
    fill: Callable[[Site, int], None]
    # The first call of a chain only reserves.
    chained: bool

    def measure(self, site: Site, batch: int, tasks: int) -> Measure:
        def rate() -> float:
            calls = max(2, int(tasks * _SHARE.get(batch, 1.0)) // batch)
            self.fill(site, calls * batch)
            found = pgbench.transactions_per_second(
                site, self.script.format(batch=batch), transactions=calls + self.chained,
                variables={"ids": "{}", "tokens": "{}"},
            )  # fmt: skip
            return found * batch * calls / (calls + self.chained)

        return Measure(_named(self.name, batch), rate)


def _fill_bare(site: Site, count: int) -> None:
    site.ask(_REFILL_BARE)
    site.ask(_FILL_BARE, count=count)


def _fill_ours(site: Site, count: int) -> None:
    site.fill("floor", count)


FLOOR, FLOOR_ONE = "bare rows, claim, then delete", "bare rows, delete and claim in one statement"
TWO, ONE = "reserve_tasks, then terminate_tasks", "exchange_work"
_WAYS = (
    _Way(FLOOR, _BARE_TWO, _fill_bare, chained=False),
    _Way(FLOOR_ONE, _BARE_ONE, _fill_bare, chained=True),
    _Way(TWO, _OURS_TWO, _fill_ours, chained=False),
    _Way(ONE, _OURS_ONE, _fill_ours, chained=True),
)


def _named(name: str, batch: int) -> str:
    return f"{name}, batch {batch}"


def run(host: Host, plan: Plan, book: Book) -> None:
    with host.site() as site:
        site.ask(_MAKE_BARE)
        for batch in BATCHES:
            tasks = max(plan.tasks * (2 if batch >= 100 else 1), batch * 2)
            book.compare("floor", [way.measure(site, batch, tasks) for way in _WAYS])
            for ours, bare in ((TWO, FLOOR), (ONE, FLOOR), (ONE, FLOOR_ONE)):
                book.ratio(
                    "floor", f"{ours} / {bare}, batch {batch}",
                    _named(ours, batch), _named(bare, batch),
                    least=_LEAST if batch >= 100 and bare is FLOOR else None,
                )  # fmt: skip

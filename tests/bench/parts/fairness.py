"""Who is served first: small topics beside a large one, urgent tasks before a backlog."""

from __future__ import annotations

from sokka_pg import calls
from tests.bench.book import Book, Measure
from tests.bench.crew import SLOTS, crew, until
from tests.bench.host import Host, Site
from tests.bench.plan import Plan

SMALL_TOPICS = ("small_a", "small_b", "small_c")


def run(host: Host, plan: Plan, book: Book) -> None:
    book.compare("fairness", [
        Measure("large topic's tasks ended before a small topic's, to one of these",
                lambda: _topics(host, plan), "tasks"),
        Measure("urgent task behind a backlog, enqueue to end", lambda: _urgent(host, plan), "ms"),
    ])  # fmt: skip


def _topics(host: Host, plan: Plan) -> float:
    """1 is an even share: of the large topic as many are done as of each small one."""
    few = max(10, plan.tasks // 50)
    topics = ("large", *SMALL_TOPICS)
    with (
        host.site() as site,
        crew(site, ",".join(topics), 1, "--concurrency", str(SLOTS)) as made,
    ):
        made.wait_until_idle()
        for topic in topics:
            site.line.run(calls.pause_topic(topic))
        site.fill("large", plan.tasks)
        for topic in SMALL_TOPICS:
            site.fill(topic, few)
        for topic in topics:
            site.line.run(calls.resume_topic(topic))
        until(lambda: site.ask(_LEFT, topics=list(SMALL_TOPICS)) == 0, "the small topics",
              made.check)  # fmt: skip
        return float(site.ask(_AHEAD, topics=list(SMALL_TOPICS))) / few


def _urgent(host: Host, plan: Plan) -> float:
    """The median wait of tasks of priority 0 that come one by one before a backlog of 5."""
    with host.site() as site, crew(site, f"mixed:{SLOTS}") as made:
        made.wait_until_idle()
        site.fill("mixed", plan.tasks)
        last = 0
        while site.ask(_LEFT, topics=["mixed"]) > plan.tasks // 5 and last < 50:
            site.fill("mixed", 1, priority=0)
            last += 1
        until(lambda: site.ask(_LEFT, topics=["mixed"]) == 0, "the end", made.check)
        return _median_wait(site)


def _median_wait(site: Site) -> float:
    return float(site.ask(_URGENT) or 0.0)


_LEFT = "select count(*) from sokka.tasks where topic = any (%(topics)s)"
_AHEAD = """
    select count(*) from sokka.finished_tasks
     where topic = 'large' and finished_at <= (
           select avg_at from (
               select to_timestamp(avg(extract(epoch from last_at))) as avg_at from (
                   select max(finished_at) as last_at from sokka.finished_tasks
                    where topic = any (%(topics)s) group by topic) each) found)
"""
_URGENT = """
    select percentile_cont(0.5) within group (
               order by extract(epoch from finished_at - created_at)) * 1000
      from sokka.finished_tasks where priority = 0
"""

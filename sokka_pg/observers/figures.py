"""What is asked of the database for the metrics of the queue.

Each part is one statement on views that the role ``viewer`` may read. One that is
refused or takes too long leaves its metrics out, and no others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import dict_row

from sokka_pg.connections import ConnectionOptions, connect_arguments
from sokka_pg.observers import families as f
from sokka_pg.observers.bounded import OTHER, Bounded
from sokka_pg.observers.families import Family
from sokka_pg.schema import render

log = logging.getLogger("sokka_pg")

CONNECT_S = 2
_LIMITS = (
    "set transaction read only",
    "set local statement_timeout = '2s'",
    "set local lock_timeout = '1s'",
)
_LEFT_OUT = (
    errors.InsufficientPrivilege, errors.UndefinedTable, errors.UndefinedFunction,
    errors.UndefinedColumn, errors.InvalidSchemaName, errors.QueryCanceled,
    errors.LockNotAvailable,
)  # fmt: skip

Row = dict[str, Any]
Sample = tuple[Family, tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Reading:
    """The answers of one look at the database."""

    at: float
    """Monotonic seconds: when they were there."""
    took_s: float
    samples: Sequence[Sample] = ()
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """A statement, and the samples that a row of it makes."""

    name: str
    sql: str
    samples: Callable[[Row], Iterable[Sample]]


@dataclass
class Reader:
    """Reads all parts on a connection of its own, made anew for each reading."""

    database_url: str
    schema: str
    options: ConnectionOptions
    topics: Bounded
    most: int
    _told: set[str] = field(default_factory=set)

    def read(self) -> Reading:
        """The answers. A database that is away is an answer too; nothing is raised
        but for a fault of this program."""
        started = monotonic()
        try:
            samples = self._samples()
        except psycopg.Error as error:
            self._tell_once("outage", f"metrics of the queue cannot be read: {error}")
            return Reading(monotonic(), monotonic() - started, ok=False)
        self._told.discard("outage")
        return Reading(monotonic(), monotonic() - started, samples)

    def _samples(self) -> list[Sample]:
        arguments = connect_arguments(self.database_url, self.options)
        arguments |= {"connect_timeout": CONNECT_S, "prepare_threshold": None}
        found: list[Sample] = []
        connection = psycopg.connect(**arguments, row_factory=dict_row)
        try:
            with connection.transaction():
                for limit in _LIMITS:
                    connection.execute(limit)
                for part in PARTS:
                    found += self._of_part(connection, part)
        finally:
            connection.close()
        return found

    def _of_part(self, connection: psycopg.Connection[Row], part: Part) -> list[Sample]:
        names = [name for (name,) in self.topics.known]
        wanted = {"known": names, "most": self.most, "other": OTHER}
        try:
            with connection.transaction():
                rows = connection.execute(render(part.sql, self.schema), wanted).fetchall()
        except _LEFT_OUT as error:
            said = str(error).partition("\n")[0]
            self._tell_once(part.name, f"metrics of {part.name} are left out: {said}")
            return []
        if part is TOPICS:
            rows = self._by_known_topics(rows)
        return [sample for row in rows for sample in part.samples(row)]

    def _by_known_topics(self, rows: list[Row]) -> list[Row]:
        """A topic that was told of once, and has nothing now, is told of as empty: its
        series go on."""
        for row in rows:
            (row["topic"],) = (OTHER,) if row["topic"] == OTHER else self.topics(row["topic"])
        present = {row["topic"] for row in rows}
        quiet = [name for (name,) in self.topics.known if name not in present]
        return rows + [{"topic": name, **_NOTHING} for name in quiet]

    def _tell_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("%s", text)


def _of_topic(row: Row) -> Iterable[Sample]:
    topic = (row["topic"],)
    for status in ("starting", "snoozed", "running"):
        yield f.TASKS, (*topic, status), row[status]
        yield f.OLDEST, (*topic, status), max(0.0, row[f"{status}_s"] or 0.0)
    yield f.PAUSED, topic, row["paused"]


def _of_leases(row: Row) -> Iterable[Sample]:
    yield f.LEASES, ("live",), row["held"] - row["over"]
    yield f.LEASES, ("over",), row["over"]


def _alone(family: Family) -> Callable[[Row], Iterable[Sample]]:
    def samples(row: Row) -> Iterable[Sample]:
        yield family, (), max(0.0, float(row["value"] or 0))

    return samples


def _of_schedules(row: Row) -> Iterable[Sample]:
    for state in ("active", "paused", "failing"):
        yield f.SCHEDULES, (state,), row[state]
    yield f.SCHEDULE_LATE, (), max(0.0, row["late_s"] or 0.0)


_NOTHING = dict.fromkeys(
    ("starting", "snoozed", "running", "starting_s", "snoozed_s", "running_s", "paused"), 0
)

TOPICS = Part(
    "topics",
    # names that have series come first, then the fullest; the rest is one row
    """
    select case when n.place <= %(most)s then n.topic else %(other)s end as topic,
           sum(n.starting)::float8 as starting, sum(n.snoozed)::float8 as snoozed,
           sum(n.running)::float8 as running,
           extract(epoch from c.now - min(n.oldest_ready_at))::float8 as starting_s,
           extract(epoch from c.now - min(n.next_due_at))::float8 as snoozed_s,
           extract(epoch from c.now - min(n.oldest_lease_at))::float8 as running_s,
           max((n.paused_at is not null)::integer) as paused
      from (select s.*, row_number() over (
                order by s.topic = any (%(known)s::text[]) desc,
                         s.starting + s.snoozed + s.running desc, s.topic) as place
              from sokka.topic_stats s) n
     cross join (select sokka.clock() as now) c
     group by 1, c.now
    """,
    _of_topic,
)

PARTS = (
    TOPICS,
    Part(
        "leases",
        """
        select count(*) as held,
               count(*) filter (where l.lease_expires_at <= c.now) as over
          from sokka.live_leases l, (select sokka.clock() as now) c
        """,
        _of_leases,
    ),
    Part(
        "open fences", "select count(*) as value from sokka.open_fences", _alone(f.OPEN_FENCES)
    ),
    Part(
        "joins", "select count(*) as value from sokka.fan_outs where state = 'open'",
        _alone(f.OPEN_JOINS),
    ),
    Part(
        "schedules",
        """
        select count(*) filter (where s.state = 'active') as active,
               count(*) filter (where s.state = 'paused') as paused,
               count(*) filter (where s.state = 'failing') as failing,
               max(extract(epoch from c.now - s.next_at))
                   filter (where s.state in ('active', 'failing'))::float8 as late_s
          from sokka.all_schedules s, (select sokka.clock() as now) c
         where s.finished_at is null
        """,
        _of_schedules,
    ),
    Part("locks", "select count(*) as value from sokka.held_locks", _alone(f.LOCKS)),
    Part(
        "snapshots",
        """
        select max(extract(epoch from clock_timestamp() - xact_start))::float8 as value
          from pg_stat_activity
         where pid <> pg_backend_pid() and backend_xmin is not null
           and (datname = current_database() or backend_type = 'walsender')
           and backend_type not like 'autovacuum%%'
        """,
        _alone(f.SNAPSHOT),
    ),
)

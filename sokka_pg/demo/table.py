"""The demo's own table, and what it asks of the queue's views.

The table has no unique constraint on purpose: that each file has exactly one
row is what the fence brings about and what the demo counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, LiteralString, Self, TypeAlias
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import DictRow, dict_row

from sokka_pg.connections import ConnectionOptions, connect_arguments
from sokka_pg.errors import Refused, UnfencedWrite, UsageError
from sokka_pg.translate import from_psycopg, translated

SCHEMA = "sokka_demo"
TABLE = f"{SCHEMA}.files"
LONGEST = "60s"
"""For one statement of the demo, in a database where others may hold locks."""

_CREATE = """
create table sokka_demo.files (
    task_id uuid not null,
    token bigint not null,
    worker text not null,
    name text not null,
    sha256 text,
    lines integer,
    functions integer,
    classes integer,
    nodes integer,
    error text,
    written_at timestamptz not null default clock_timestamp()
)
"""
INSERT = """
insert into sokka_demo.files
       (task_id, token, worker, name, sha256, lines, functions, classes, nodes, error)
values (%(task_id)s, %(token)s, %(worker)s, %(name)s, %(sha256)s, %(lines)s, %(functions)s,
        %(classes)s, %(nodes)s, %(error)s)
"""
COUNTED = ("sha256", "lines", "functions", "classes", "nodes", "error")

_LOOK = """
select (select count(*) from {queue}.tasks where topic = %(topic)s) as unfinished,
       (select coalesce(jsonb_object_agg(worker, written), '{{}}')
          from (select worker, count(*) as written from sokka_demo.files group by worker) w
       ) as rows,
       (select coalesce(jsonb_object_agg(pid, leases), '{{}}')
          from (select pid, jsonb_object_agg(task_id, token) as leases
                  from {queue}.live_leases where topic = %(topic)s group by pid) l
       ) as leases
"""
_ROWS = """
select task_id::text, token, worker, name, sha256, lines, functions, classes, nodes, error
  from sokka_demo.files order by name, written_at
"""
_TASKS = """
select task_id::text, data ->> 'name' as name, status, pid, token, attempt, losses,
       error ->> 'message' as error, leased_at, finished_at
  from {queue}.all_tasks where topic = %(topic)s order by created_at, task_id
"""
_LOST = """
select task_id::text, pid, token, at from {queue}.task_history
 where event = 'lease_lost'
   and task_id in (select task_id from {queue}.all_tasks where topic = %(topic)s)
 order by at, token
"""
_OWNERS = """
select task_id::text, status, pid, token from {queue}.all_tasks
 where task_id = any(%(task_ids)s::uuid[])
"""
_HISTORY = """
select seq, at, event, pid, token, attempt from {queue}.task_history
 where task_id = %(task_id)s order by seq
"""
_CANCEL = """
select {queue}.cancel_task(task_id, 'the demo ended') from {queue}.tasks
 where topic = %(topic)s
"""

Rows: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Look:
    """One glance: live tasks, rows by worker, and leases (token by task) by worker."""

    unfinished: int
    rows: dict[str, int]
    leases: dict[str, dict[str, int]]


class Desk:
    """The demo's connection: makes the table, and looks."""

    def __init__(self, database_url: str, queue: str, topic: str) -> None:
        options = ConnectionOptions(application_name="sokka demo")
        try:
            self._connection: psycopg.Connection[DictRow] = psycopg.connect(
                **connect_arguments(database_url, options), row_factory=dict_row
            )
        except psycopg.Error as error:
            raise from_psycopg(error, sent=False) from error
        self._queue, self.topic = sql.Identifier(queue), topic
        self._ask("select set_config('statement_timeout', %(most)s, false)", most=LONGEST)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def prepare(self) -> None:
        """Make the table and guard it. Raises ``UsageError`` where it stands already."""
        with translated(), self._connection.transaction():
            found = self._ask("select to_regnamespace(%(schema)s) as oid", schema=SCHEMA)
            if found[0]["oid"] is not None:
                raise UsageError(
                    f"this database has a schema {SCHEMA} already, from a demo with --keep or "
                    f"one that runs now; drop schema {SCHEMA} cascade, or name another database"
                )
            self._connection.execute(f"create schema {SCHEMA}")
            self._connection.execute(_CREATE)
            self._connection.execute(
                sql.SQL("select {queue}.guard_table(%s::regclass)").format(queue=self._queue),
                (TABLE,),
            )

    def drop(self) -> None:
        """Remove the table and end the tasks that still wait."""
        self._ask(_CANCEL, topic=self.topic)
        with translated():
            self._connection.execute(
                sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(SCHEMA))
            )

    def look(self) -> Look:
        return Look(**self._ask(_LOOK, topic=self.topic)[0])

    def rows(self) -> Rows:
        return self._ask(_ROWS)

    def tasks(self) -> Rows:
        return self._ask(_TASKS, topic=self.topic)

    def lost_leases(self) -> Rows:
        return self._ask(_LOST, topic=self.topic)

    def owners(self, task_ids: list[str]) -> Rows:
        """Who holds these tasks now, or ended them, under which token."""
        return self._ask(_OWNERS, task_ids=task_ids)

    def history(self, task_id: str) -> Rows:
        return self._ask(_HISTORY, task_id=UUID(task_id))

    def version(self) -> int:
        """The server's major version."""
        return self._connection.info.server_version // 10_000

    def write_without_lease(self, task_id: str, name: str) -> Refused | None:
        """Try to write a row with no lease asserted; the refusal, or None if it went in."""
        row = dict.fromkeys(COUNTED)
        facts = {"task_id": task_id, "token": 0, "worker": "nobody", "name": name}
        try:
            with translated():
                self._connection.execute(INSERT, {**row, **facts})
        except UnfencedWrite as refusal:
            return refusal
        return None

    def _ask(self, query: LiteralString, **values: Any) -> Rows:
        with translated():
            text = sql.SQL(query).format(queue=self._queue)
            return self._connection.execute(text, values).fetchall()

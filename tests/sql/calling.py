"""The SQL functions as a program in any language calls them, and a look at what
a call left behind."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import kwargs_row, scalar_row
from psycopg.types.json import Jsonb

Row = SimpleNamespace
DEADLINE_S = 20

# All that the schema knows of a task, so that "nothing changed" means nothing.
IMAGE = """
    select jsonb_build_object(
        'live', (select to_jsonb(t) from sokka.tasks t where t.task_id = %(id)s),
        'finished', (select jsonb_agg(to_jsonb(f)) from sokka.finished_tasks f
                      where f.task_id = %(id)s),
        'past', (select jsonb_agg(to_jsonb(p) order by p.ended_seq) from sokka.past_leases p
                  where p.task_id = %(id)s),
        'payloads', (select jsonb_agg(to_jsonb(p)) from sokka.payloads p
                      where p.task_id = %(id)s),
        'given', (select count(*) from sokka.given_ids g where g.task_id = %(id)s),
        'join', (select to_jsonb(j) from sokka.joins j where j.task_id = %(id)s),
        'inbox', (select count(*) from sokka.join_inbox i where %(id)s in (i.join_id, i.task_id)),
        'children', (select count(*) from sokka.all_tasks c where c.parent_task_id = %(id)s),
        'steps', (select jsonb_agg(to_jsonb(s) order by s.seq) from sokka.task_steps s
                   where s.task_id = %(id)s),
        'stream', (select to_jsonb(s) from sokka.streams s where s.task_id = %(id)s),
        'items', (select jsonb_agg(to_jsonb(i) order by i.seq) from sokka.stream_items i
                   where i.task_id = %(id)s),
        'acts', (select count(*) from sokka.audit_entries a where a.task_id = %(id)s))
"""


@dataclass(frozen=True)
class Refusal:
    """How a call was refused: SQLSTATE, message, and the JSON of its DETAIL."""

    sqlstate: str
    message: str
    detail: dict[str, Any]


class Queue:
    """Calls of the functions of schema ``sokka`` over one connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def rows(self, query: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[Row]:
        with self.connection.cursor(row_factory=kwargs_row(Row)) as cursor:
            return cursor.execute(query.encode(), params or None).fetchall()

    def value(self, query: str, *params: Any) -> Any:
        with self.connection.cursor(row_factory=scalar_row) as cursor:
            return cursor.execute(query.encode(), params or None).fetchone()

    def execute(self, statement: str, *params: Any) -> int:
        """Run a statement; the number of rows it touched."""
        return self.connection.execute(statement.encode(), params or None).rowcount

    def call(self, function: str, **arguments: Any) -> list[Row]:
        """The rows that a function returns. Dictionaries are sent as jsonb."""
        named = ", ".join(f"p_{name} => %({name})s" for name in arguments)
        bound = {name: _bound(value) for name, value in arguments.items()}
        return self.rows(f"select * from sokka.{function}({named})", bound)

    def one(self, function: str, **arguments: Any) -> Row:
        (row,) = self.call(function, **arguments)
        return row

    def refusal(self, function: str, **arguments: Any) -> Refusal | None:
        """How a call is refused, or None where it is accepted."""
        try:
            # In a transaction of the caller the refusal must not end that.
            with self.connection.transaction():
                self.call(function, **arguments)
        except psycopg.Error as error:
            return refusal_of(error)
        return None

    def refused(self, function: str, **arguments: Any) -> Refusal:
        found = self.refusal(function, **arguments)
        assert found is not None, f"{function} was accepted: {arguments}"
        return found

    def create(self, topic: str, **options: Any) -> UUID:
        task_id: UUID = self.one("create_task", topic=topic, **options).task_id
        return task_id

    def reserve(self, topic: str, pid: str = "w1", lease: Any = "1 hour") -> Row:
        return self.one("reserve_task", topic=topic, pid=pid, lease=lease)

    def leased(self, topic: str, pid: str = "w1", lease: Any = "1 hour", **options: Any) -> Row:
        """Create a task and reserve it."""
        self.create(topic, **options)
        return self.reserve(topic, pid, lease)

    def verb(self, name: str, held: Row, /, **options: Any) -> Row:
        """A verb on a lease, by whoever holds it."""
        return self.one(name, task_id=held.task_id, pid=held.pid, token=held.token, **options)

    def row(self, task_id: UUID) -> Row:
        """The task as all_tasks shows it."""
        (found,) = self.rows("select * from sokka.all_tasks where task_id = %s", (task_id,))
        return found

    def history(self, task_id: UUID) -> list[Row]:
        return self.rows(
            "select * from sokka.task_history where task_id = %s order by seq", (task_id,)
        )

    def events(self, task_id: UUID) -> list[str]:
        return [event.event for event in self.history(task_id)]

    def image(self, task_id: UUID) -> dict[str, Any]:
        """Every column of every row about a task."""
        found: dict[str, Any] = self.rows(IMAGE, {"id": task_id})[0].jsonb_build_object
        return found

    def until(self, query: str, *params: Any) -> None:
        """Wait until a query answers true."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.value(query, *params):
            assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {query} {params}"
            time.sleep(0.002)

    def updates(self, table: str) -> tuple[int, int]:
        """How many updates of a table its database has seen, and how many of them were HOT."""
        if self.connection.info.server_version >= 150000:
            self.value("select pg_stat_force_next_flush()")
        else:
            self._wait_to_be_counted()
        (found,) = self.rows(
            "select n_tup_upd as updates, n_tup_hot_upd as hot from pg_stat_user_tables"
            " where relid = %s::regclass",
            (table,),
        )
        return found.updates, found.hot

    def _wait_to_be_counted(self) -> None:
        # PostgreSQL 14 has nothing that forces it. A session's counts arrive in the order
        # in which it used the tables: once a new table's are there, all others' are.
        self.execute("create temp table last_counted (a int)")
        self.execute("insert into last_counted values (1)")
        self.until(
            "select n_tup_ins = 1 from pg_stat_user_tables"
            " where relid = 'pg_temp.last_counted'::regclass"
        )
        self.execute("drop table last_counted")

    def until_expired(self, task_id: UUID) -> None:
        self.until(
            "select lease_expires_at <= sokka.clock() from sokka.tasks where task_id = %s", task_id
        )


class Clock:
    """Stands in for sokka.clock() in one database."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        queue.execute(
            "create table public.test_clock as"
            " select interval '0' as shift, null::timestamptz as stopped_at"
        )
        queue.execute(
            "create or replace function sokka.clock() returns timestamptz language sql volatile as"
            " $$ select coalesce(c.stopped_at, clock_timestamp()) + c.shift"
            " from public.test_clock c $$"
        )

    def advance(self, duration: str) -> None:
        self._queue.execute("update public.test_clock set shift = shift + %s::interval", duration)

    def stop(self, at: Any = None) -> Any:
        """Hold the clock still, at an instant or where it stands; the instant."""
        self._queue.execute(
            "update public.test_clock set stopped_at = coalesce(%s, sokka.clock()),"
            " shift = interval '0'",
            at,
        )
        return self.now()

    def now(self) -> Any:
        return self._queue.value("select sokka.clock()")


def go_on_at_every_glance(queue: Queue, step: str) -> None:
    """From now on the database's clock goes on by this much whenever somebody looks at it."""
    queue.execute("create sequence glances")
    queue.execute("grant usage on sequence glances to public")
    queue.execute(
        "create or replace function sokka.clock() returns timestamptz language sql volatile as"
        f" $$ select timestamptz '2100-01-01' + nextval('public.glances') * interval '{step}' $$"
    )


def topic() -> str:
    """A topic that no other test uses."""
    return f"topic {uuid4()}"


def _bound(value: Any) -> Any:
    if isinstance(value, dict):
        return Jsonb(value)
    if isinstance(value, list) and any(isinstance(member, dict) for member in value):
        return [Jsonb(member) if isinstance(member, dict) else member for member in value]
    return value


def refusal_of(error: psycopg.Error) -> Refusal:
    """A database error as the refusal that it is."""
    text = error.diag.message_detail or "{}"
    try:
        detail = json.loads(text)
    except ValueError:
        detail = {"not JSON": text}
    return Refusal(error.sqlstate or "", error.diag.message_primary or "", detail)

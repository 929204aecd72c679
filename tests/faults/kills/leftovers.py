"""What killed workers must not leave behind, asked of the database and of the machine."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

import psutil
import psycopg

from sokka_pg.store import PgTaskStore
from tests.faults import auditing
from tests.faults.kills.handlers import LOCKS, TTL
from tests.faults.waiting import until

MARK = "SOKKA_TEST_KILLS"
"""In the environment of every process of a run; its value is the run's."""

# Each of these finds what is wrong; none of them may find anything.
_WRONG = {
    "an unfinished task": "select task_id, kind, status from sokka.tasks",
    "an open join": "select task_id, state, in_flight from sokka.joins"
    " where state <> 'closed' or outcome is null",
    "a join that lets a child wait": "select task_id, candidate from sokka.tasks"
    " where candidate is not null",
    "an end that no join took note of": "select join_id, task_id from sokka.join_inbox",
    "a task that ended otherwise than its handler says": """
        select task_id, kind, status, error from sokka.finished_tasks
         where status = 'failed'
           and error ->> 'code' not in
               ('error', 'cancelled', 'lease_lost', 'child_died', 'policy_unmet')""",
    "a task that may be started no more and was lost": """
        select task_id, kind, losses, max_losses from sokka.finished_tasks
         where error ->> 'code' = 'lease_lost' and losses <= max_losses""",
    "an ended task without its own write, or a write twice": """
        select task_id, count(l.task_id) from sokka.finished_tasks f
          left join ledger l using (task_id) where kind = 'once'
         group by task_id, status having count(l.task_id) <> (status = 'terminated')::int""",
    "a write of a task that did not end with it": """
        select l.task_id from ledger l where not exists (select from sokka.finished_tasks f
         where f.task_id = l.task_id and f.token = l.token and f.status = 'terminated')""",
    "a write under a lock by an earlier holder": """
        select * from (select key, number, token,
               lag(token, 1, 0::bigint) over (partition by key order by number) as before
          from written) w where token < before""",
    "a step or checkpoint that went back": """
        select f.task_id from sokka.finished_tasks f where f.kind = 'journey'
           and f.status = 'terminated' and f.result is distinct from '4'::jsonb""",
    "a tick without its one task": """
        select name, fire_at, count(a.task_id) from sokka.fired_ticks t
          left join sokka.all_tasks a using (task_id)
         group by 1, 2 having count(a.task_id) <> 1""",
    "a task of a tick that two ticks made": """
        select headers ->> 'sokka-schedule', headers ->> 'sokka-fire-at' from sokka.all_tasks
         where headers ? 'sokka-schedule' group by 1, 2 having count(*) > 1""",
    "a tick that was left out": """
        select * from (
          select t.name, t.fire_at,
                 lag(t.fire_at) over (partition by t.name order by t.fire_at) as before
            from sokka.fired_ticks t join sokka.all_schedules s using (schedule_id)
           where s.missed = 'all' and not s.serial) w
         where fire_at - before <> interval '200 ms'""",
    "a failing schedule": "select name, error from sokka.all_schedules where state = 'failing'",
    "an advisory lock": """
        select l.* from pg_locks l join pg_database d on d.oid = l.database
         where l.locktype = 'advisory' and d.datname = current_database()""",
    "a prepared transaction":
        "select * from pg_prepared_xacts where database = current_database()",
}  # fmt: skip

_CONNECTIONS = """
    select pid, state, query from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid()
       and application_name like 'sokka_pg%'"""


def check_database(conn: psycopg.Connection, known: Iterable[UUID]) -> None:
    """After the drain, with no worker left: nothing that should not be there."""
    for what, query in _WRONG.items():
        found = conn.execute(query).fetchmany(5)
        assert found == [], f"{what}: {found}"
    present = {task_id for (task_id,) in conn.execute("select task_id from sokka.all_tasks")}
    assert not set(known) - present, "acknowledged and lost"
    auditing.check_records(conn)
    auditing.check_leases(conn)


def check_connections(conn: psycopg.Connection) -> None:
    """Those of the dead and of the stopped are gone, and their listeners with them."""
    until(lambda: conn.execute(_CONNECTIONS).fetchall() == [], "the end of all connections")


def check_locks_are_free(store: PgTaskStore) -> None:
    """Every lock can be had at the latest when its time is over."""
    for key in (*LOCKS, "single"):
        held = until(
            lambda key=key: store.try_lock(key, "heir", TTL), f"lock {key}",
            2 * TTL.total_seconds(),
        )
        assert held is not None
        store.release_lock(key, "heir", held.token)


def check_keys_are_free(store: PgTaskStore, topic: str, keys: Iterable[str]) -> None:
    """Every key can be used again. The tasks that show it are ended."""
    for key in keys:
        task = store.create_task(topic, unique_key=key, on_conflict="error", kind="fate")
        store.cancel(task.task_id)


def check_processes(run: str, alive: Iterable[int] = ()) -> None:
    """No process of the run is left but those, nor what they started."""
    known = set(alive)

    def left() -> list[int]:
        return [each.pid for each in of_run(run) if each.pid not in known]

    until(lambda: not left(), "the end of all processes", timedelta(seconds=10).total_seconds())


def of_run(run: str) -> list[psutil.Process]:
    """All processes that carry the run's mark, whoever started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == run:
                found.append(process)
        except psutil.Error:
            continue
    return found

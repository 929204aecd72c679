"""What must hold in the database whatever went wrong before."""

from __future__ import annotations

import psycopg

_GAPS = """
    select task_id, array_agg(event order by seq) from (
        select *, lag(seq, 1, 0::bigint) over told as seq_before, lag(at) over told as at_before
          from sokka.task_history window told as (partition by task_id order by seq)) h
     group by task_id
    having bool_or(seq <> seq_before + 1 or at < at_before)
        or count(*) filter (where event in ('failed', 'terminated')) > 1"""

_UNTOLD = """
    select task_id, status from sokka.all_tasks a
     where (finished_at is not null) <> exists (
           select from sokka.task_history h
            where h.task_id = a.task_id and h.event = a.status
              and h.event in ('failed', 'terminated'))"""

_TWICE = "select task_id from sokka.all_tasks group by task_id having count(*) > 1"

# An instant that only another clock than the server's can have given.
_AHEAD = "select task_id, event, at from sokka.task_history where at > clock_timestamp()"

# A lease ends by its holder's word or when its time is over, and the next begins then.
_OVERLAPS = """
    with leases as (
        select task_id, token, leased_at, ended_at
          from sokka.past_leases where token is not null
        union all
        select task_id, token, leased_at, finished_at
          from sokka.finished_tasks where token is not null
        union all
        select task_id, token, leased_at, 'infinity' from sokka.tasks where token is not null
    )
    select a.task_id, a.token, b.token
      from leases a join leases b on a.task_id = b.task_id and a.token < b.token
     where a.ended_at > b.leased_at"""

_TOO_SOON = """
    select task_id, token from sokka.past_leases
     where event = 'lease_lost' and ended_at < lease_expires_at"""


def check_records(conn: psycopg.Connection) -> None:
    """Every task is told once, from its creation to its one end, without a gap."""
    for query in (_GAPS, _UNTOLD, _TWICE):
        assert conn.execute(query).fetchall() == []


def check_leases(conn: psycopg.Connection) -> None:
    """No two leases of a task at one time, by the server's clock; none cut short."""
    for query in (_AHEAD, _OVERLAPS, _TOO_SOON):
        assert conn.execute(query).fetchall() == []


def endings(conn: psycopg.Connection) -> dict[str, int]:
    """How many tasks have ended in which way, by their history."""
    return dict(
        conn.execute(
            "select event, count(*) from sokka.task_history"
            " where event in ('failed', 'terminated') group by event"
        ).fetchall()
    )

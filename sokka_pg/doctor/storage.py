"""Checks of the tables: partitions, what retention left, dead rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sokka_pg.doctor.findings import Check, Row, Verdict, fail, some, span, warn

_GRACE_S = 2 * 86_400
_MANY_DEAD = 50_000


def _missing(rows: Sequence[Row]) -> Iterator[Verdict]:
    advice = "select sokka.prepare_partitions(); a worker does so by itself"
    now = [row["name"] for row in rows if row["weeks_ahead"] == 0]
    later = [row["name"] for row in rows if row["weeks_ahead"] > 0]
    if now:
        yield fail(f"missing for this week: {some(now)}; rows go to the default ones", advice)
    if later:
        yield warn(f"missing for the weeks ahead: {some(later)}", advice)


def _strays(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["rows"]:
            yield warn(
                f"{row['name']} holds {row['rows']} rows{' or more' if row['capped'] else ''}",
                "select sokka.prepare_partitions() moves those of weeks to come; for others see "
                "whether the server's clock was wrong",
            )


def _dead(rows: Sequence[Row]) -> Iterator[Verdict]:
    detached = [row["name"] for row in rows if not row["attached"]]
    over = [row for row in rows if row["attached"] and row["over_s"] > _GRACE_S]
    if detached:
        yield warn(
            f"tables that look like partitions and are none: {some(detached)}",
            "attach them, or drop them if nothing in them is needed",
        )
    if over:
        longest = max(row["over_s"] for row in over)
        yield warn(
            f"past their retention for up to {span(longest)}: {some([r['name'] for r in over])}",
            "run a worker, or call select * from sokka.apply_retention() until it returns nothing",
        )


def _dead_rows(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        dead, live = row["dead"], row["live"]
        if dead > _MANY_DEAD and dead > 5 * live:
            vacuumed = row["vacuumed"] or "never"
            yield warn(
                f"{row['name']} has {dead} dead rows beside {live} live ones (vacuumed: "
                f"{vacuumed})",
                "look for old snapshots above; else vacuum the table, and see why autovacuum "
                "does not",
            )


STORAGE = (
    Check(
        "partitions",
        "a week without its partition fills the default one, which retention cannot drop",
        """
        select sokka.partition_name(p.parent, w.start) as name, w.n as weeks_ahead
          from sokka.partitioned_tables() p
         cross join lateral (select n, sokka.week_start(sokka.clock() + make_interval(weeks => n))
                               as start from generate_series(0, 2) n) w
         where to_regclass('sokka.' || sokka.partition_name(p.parent, w.start)) is null
         order by w.n, 1
        """,
        _missing,
        "made for this week and the next two",
    ),
    Check(
        "default partitions",
        "rows there are searched by every look-up and kept for ever",
        """
        select 'finished_tasks_default' as name, count(*)::int as rows, count(*) = 10000 as capped
          from (select from sokka.finished_tasks_default limit 10000) f
        union all
        select 'past_leases_default', count(*)::int, count(*) = 10000
          from (select from sokka.past_leases_default limit 10000) p
        union all
        select 'payloads_default', count(*)::int, count(*) = 10000
          from (select from sokka.payloads_default limit 10000) d
        """,
        _strays,
        "they are empty",
    ),
    Check(
        "old partitions",
        "what is past its retention costs disk and slows look-ups",
        """
        select c.relname::text as name, c.relispartition as attached,
               extract(epoch from sokka.clock() - kept.longest
                   - (to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp at time zone 'UTC'
                      + interval '7 days'))::float8 as over_s
          from pg_class c
          join sokka.partitioned_tables() p on c.relname ~ ('^' || p.parent || '_[0-9]{8}$')
         cross join (select greatest(s.retention, max(t.retention)) as longest
                       from sokka.settings s left join sokka.topics t on true
                      group by s.retention) kept
         where c.relnamespace = 'sokka'::regnamespace and c.relkind in ('r', 'p', 'f')
         order by c.relname
        """,
        _dead,
        "none is past its retention",
    ),
    Check(
        "dead rows",
        "every claim and sweep walks over dead rows that vacuum has not removed",
        """
        select relname::text as name, n_dead_tup as dead, n_live_tup as live,
               to_char(greatest(last_vacuum, last_autovacuum) at time zone 'UTC',
                       'YYYY-MM-DD HH24:MI UTC') as vacuumed
          from pg_stat_user_tables
         where schemaname = 'sokka' and relname in ('tasks', 'idle_workers', 'given_ids')
        """,
        _dead_rows,
        "vacuum keeps up",
    ),
)

"""The check of schedules: ticks that nobody fires, and some that cannot be fired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sokka_pg.doctor.findings import Check, Level, Row, Verdict, by_age, ok, span

# Whoever fires looks every second.
_LATE_S, _TOO_LATE_S = 10, 120
_FAILING_S, _FAILING_LONG_S = 0, 3_600


def _schedules(rows: Sequence[Row]) -> Iterator[Verdict]:
    judges = {"overdue": _overdue, "failing": _failing}
    for row in rows:
        if row["what"] == "all":
            yield ok(f"{row['schedules']} go on, {row['paused']} are paused")
        else:
            yield from judges[row["what"]](row)


def _overdue(row: Row) -> Iterator[Verdict]:
    level = by_age(row["seconds"] or 0, _LATE_S, _TOO_LATE_S)
    if level is not Level.OK:
        yield Verdict(
            level,
            f"{row['schedules']} are due and nobody fires them, for up to {span(row['seconds'])}",
            "run a worker (without --no-schedules), or: sokka schedule run",
        )


def _failing(row: Row) -> Iterator[Verdict]:
    yield Verdict(
        by_age(row["seconds"], _FAILING_S, _FAILING_LONG_S),
        f"schedule {row['name']} has not fired for {span(row['seconds'])}: {row['error']}",
        f"put it anew, or mend what it needs; sokka schedule show {row['name']}",
    )


SCHEDULES = (
    Check(
        "schedules",
        "a tick becomes a task when somebody looks after it",
        """
        select 'all' as what, count(*) filter (where paused_at is null)::int as schedules,
               count(*) filter (where paused_at is not null)::int as paused,
               null::float8 as seconds, null as name, null as error
          from sokka.schedules where finished_at is null
        union all
        select 'overdue', count(*)::int, null,
               extract(epoch from sokka.clock() - min(look_at))::float8, null, null
          from (select look_at from sokka.schedules
                 where look_at <= (select sokka.clock()) and look_at is not null
                   and paused_at is null
                 order by look_at limit 100000) due
        union all
        select 'failing', null, null, seconds, name, error
          from (select extract(epoch from sokka.clock() - failing_since)::float8 as seconds, name,
                       left(error, 200) as error
                  from sokka.schedules
                 where failing_since is not null and finished_at is null and paused_at is null
                 order by failing_since limit 5) failing
        """,
        _schedules,
    ),
)

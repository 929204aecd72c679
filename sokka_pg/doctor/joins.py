"""Checks of fan-outs and streams: what waits for something that does not come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sokka_pg.doctor.findings import Check, Level, Row, Verdict, by_age, ok, span, warn

# Workers sweep every second: a deadline that is over for longer is seen by nobody.
_LATE_S, _TOO_LATE_S = 10, 120
# A topic that somebody reserves from hands its oldest task out sooner, or has some running.
_UNSERVED_S = 300
_FULL_S = 300


def _joins(rows: Sequence[Row]) -> Iterator[Verdict]:
    judges = {"deadline": _late, "paused": _paused, "unserved": _unserved}
    for row in rows:
        if row["what"] == "open":
            yield ok(f"{row['joins']} open")
        else:
            yield from judges[row["what"]](row)


def _late(row: Row) -> Iterator[Verdict]:
    level = by_age(row["seconds"], _LATE_S, _TOO_LATE_S)
    if level is not Level.OK:
        yield Verdict(
            level,
            f"{row['joins']} are past their deadline and still open, for up to "
            f"{span(row['seconds'])}",
            "run a worker (it sweeps every second), or: select * from sokka.sweep()",
        )


def _paused(row: Row) -> Iterator[Verdict]:
    yield warn(
        f"{row['joins']} wait for tasks of topic {row['topic']}, which is paused",
        "sokka topic resume, if that is over; without it they wait until their deadline",
    )


def _unserved(row: Row) -> Iterator[Verdict]:
    if row["seconds"] >= _UNSERVED_S:
        yield warn(
            f"{row['joins']} wait for tasks of topic {row['topic']}, which nobody seems to "
            f"reserve: the first has been ready for {span(row['seconds'])}, and none runs",
            "run a worker for that topic, or cancel them: sokka task cancel",
        )


def _streams(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        if row["seconds"] >= _FULL_S:
            yield warn(
                f"the stream of task {row['task_id']} has been full for "
                f"{span(row['seconds'])}: {row['pending_items']} items of {row['max_items']}, "
                f"{row['pending_bytes']} bytes of {row['max_bytes']}",
                "start its consumer, which goes on where it stopped; or end the task: "
                "sokka task cancel",
            )


JOINS_AND_STREAMS = (
    Check(
        "joins",
        "a fan-out waits for its candidates, however long nobody works on them",
        """
        select 'open' as what, null as topic, count(*)::int as joins, null::float8 as seconds
          from sokka.tasks where is_join and status = 'snoozed'
        union all
        select 'deadline', null, count(*)::int,
               extract(epoch from sokka.clock() - min(deadline_at))::float8
          from (select deadline_at from sokka.joins
                 where state = 'open' and deadline_at <= (select sokka.clock())
                 order by deadline_at limit 100000) late
        having count(*) > 0
        union all
        select case when p.paused_at is not null then 'paused' else 'unserved' end, w.topic,
               w.joins, extract(epoch from sokka.clock() - w.ready_at)::float8
          from (select topic, count(distinct parent_task_id)::int as joins,
                       min(run_at) as ready_at
                  from (select topic, parent_task_id, run_at from sokka.tasks
                         where candidate is not null and status = 'starting'
                         limit 100000) waiting
                 group by topic order by 3 limit 20) w
          left join sokka.topics p on p.topic = w.topic
         where p.paused_at is not null
            or not exists (select from sokka.tasks t
                            where t.topic = w.topic and t.status = 'running')
        """,
        _joins,
    ),
    Check(
        "streams",
        "the producer of a full stream holds a slot and waits for its consumer",
        """
        select s.task_id::text, s.last_seq - s.consumed_seq as pending_items, s.max_items,
               s.pending_bytes, s.max_bytes,
               extract(epoch from sokka.clock() - i.written_at)::float8 as seconds
          from sokka.tasks t
          join sokka.streams s on s.task_id = t.task_id
         cross join lateral (select n.written_at from sokka.stream_items n
                              where n.task_id = s.task_id and n.created_at = s.created_at
                                and n.seq = s.last_seq) i
         where t.status = 'running'
           and (s.last_seq - s.consumed_seq >= s.max_items
                or s.pending_bytes * 10 >= s.max_bytes * 9)
         order by i.written_at limit 5
        """,
        _streams,
        "no producer waits for a consumer",
    ),
)

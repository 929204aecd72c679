"""Checks of what keeps dead rows alive: sessions, prepared transactions, slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sokka_pg.doctor.findings import Check, Level, Row, Verdict, by_age, some, span, warn

_WARN_AFTER_S, _FAIL_AFTER_S = 300, 3_600
_OLD_XIDS = 10_000_000
_GIB = 1024**3


def _sessions(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        level = by_age(row["seconds"], _WARN_AFTER_S, _FAIL_AFTER_S)
        if level is not Level.OK:
            who = row["application_name"] or row["backend_type"]
            yield Verdict(
                level,
                f"session {row['pid']} ({who}, {row['state'] or 'no state'}) has held a snapshot "
                f"for {span(row['seconds'])}",
                f"let it end, or: select pg_terminate_backend({row['pid']})",
            )


def _prepared(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        level = by_age(row["seconds"], _WARN_AFTER_S, _FAIL_AFTER_S)
        if level is not Level.OK:
            yield Verdict(
                level,
                f"transaction {row['gid']} was prepared {span(row['seconds'])} ago",
                "commit prepared or rollback prepared it: it holds its fences and snapshot, "
                "over restarts too",
            )


def _slots(rows: Sequence[Row]) -> Iterator[Verdict]:
    idle = [row["slot_name"] for row in rows if not row["active"]]
    if idle:
        kept = max(row["kept_bytes"] or 0 for row in rows if not row["active"])
        yield warn(
            f"replication slots that nobody reads: {some(idle)}; "
            f"{kept / _GIB:.1f} GiB of WAL kept",
            "start their readers, or: select pg_drop_replication_slot(...)",
        )
    for row in rows:
        if (row["xmin_age"] or 0) > _OLD_XIDS:
            yield warn(
                f"slot {row['slot_name']} keeps rows of {row['xmin_age']} transactions ago",
                "see why its standby is behind, or switch hot_standby_feedback off there",
            )


SNAPSHOTS = (
    Check(
        "old snapshots",
        "no dead row that an open snapshot might see can be removed: claims slow down",
        """
        select pid, application_name, backend_type, state,
               extract(epoch from clock_timestamp() - xact_start)::float8 as seconds
          from pg_stat_activity
         where pid <> pg_backend_pid() and xact_start is not null
           and (backend_xmin is not null or backend_xid is not null)
           and (datname = current_database() or backend_type = 'walsender')
           and backend_type not like 'autovacuum%%'
         order by xact_start limit 5
        """,
        _sessions,
        "no session holds an old one",
    ),
    Check(
        "prepared transactions",
        "they hold fences and snapshots with no session that could be ended",
        """
        select gid, extract(epoch from clock_timestamp() - prepared)::float8 as seconds
          from pg_prepared_xacts where database = current_database() order by prepared limit 5
        """,
        _prepared,
        "none is old",
    ),
    Check(
        "replication slots",
        "a slot without a reader fills the disk with WAL and may keep dead rows",
        """
        select slot_name, active, age(xmin) as xmin_age,
               case when not pg_is_in_recovery()
                    then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8
               end as kept_bytes
          from pg_replication_slots
        """,
        _slots,
        "none is left without a reader",
    ),
)

"""Checks of the server: its version, settings, connections and notifications."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sokka_pg.doctor.findings import Check, Row, Verdict, fail, ok, span, warn

OLDEST_MAJOR, NEWEST_MAJOR = 14, 18
PER_WORKER = 14
"""Connections one worker process may open: a pool of 10, heartbeats, wake-ups, upkeep,
schedules."""


def _version(rows: Sequence[Row]) -> Iterator[Verdict]:
    number, text = rows[0]["number"], rows[0]["text"]
    major = number // 10_000
    if major < OLDEST_MAJOR:
        yield fail(f"PostgreSQL {text}", f"upgrade: {OLDEST_MAJOR} is the oldest that works")
    elif major > NEWEST_MAJOR:
        yield warn(
            f"PostgreSQL {text} is newer than any that was tested ({NEWEST_MAJOR})",
            "upgrade sokka_pg, or test before you rely on it",
        )
    else:
        yield ok(f"PostgreSQL {text}")


def _recovery(rows: Sequence[Row]) -> Iterator[Verdict]:
    if rows[0]["standby"]:
        yield fail("this server is a standby", "connect to the primary")


_SETTINGS = {
    "fsync": ("on", fail, "set fsync = on: a power failure may corrupt the whole cluster"),
    "full_page_writes": (
        "on", fail, "set full_page_writes = on, unless the file system never tears a page",
    ),
    "autovacuum": ("on", fail, "set autovacuum = on: dead task rows pile up and slow every claim"),
    "track_counts": ("on", fail, "set track_counts = on: autovacuum does not work without it"),
    "track_activities": (
        "on", warn, "set track_activities = on: without it old transactions cannot be seen",
    ),
    "default_transaction_isolation": (
        "read committed", warn,
        "our own connections set read committed; raw SQL callers must, or are refused (25001)",
    ),
}  # fmt: skip


def _settings(rows: Sequence[Row]) -> Iterator[Verdict]:
    values = {row["name"]: row["setting"] for row in rows}
    for name, (wanted, level, advice) in _SETTINGS.items():
        if values.get(name, wanted) != wanted:
            yield level(f"{name} is {values[name]}", advice)
    if values.get("synchronous_commit") == "off":
        yield warn(
            "synchronous_commit is off",
            "set it on, at least for producers: a crash of the server may lose tasks whose "
            "creation was confirmed (leases and tokens stay safe)",
        )


def _idle_timeout(rows: Sequence[Row]) -> Iterator[Verdict]:
    timeout_ms = int(rows[0]["setting"])
    if timeout_ms == 0:
        yield warn(
            "idle_in_transaction_session_timeout is off for other connections than ours",
            "alter database ... set idle_in_transaction_session_timeout = '5min'",
        )
    else:
        yield ok(f"a transaction may idle for {span(timeout_ms / 1000)}")


def _connections(rows: Sequence[Row]) -> Iterator[Verdict]:
    row = rows[0]
    most = min(
        row["max_connections"] - row["reserved"],
        *(limit for limit in (row["of_database"], row["of_role"]) if limit >= 0),
        row["max_connections"],
    )
    used, left = row["used"], most - row["used"]
    text = (
        f"{used} of {most} connections in use, {row['ours']} of them by sokka_pg; room for "
        f"{max(0, left // PER_WORKER)} more worker processes of up to {PER_WORKER} each"
    )
    advice = "raise max_connections, lower the pools (max_size), or put a pooler in between"
    if used >= 0.95 * most:
        yield fail(text, advice)
    elif used >= 0.8 * most:
        yield warn(text, advice)
    else:
        yield ok(text)


def _pooler(rows: Sequence[Row]) -> Iterator[Verdict]:
    if rows[0]["announced_pid"] != rows[0]["backend_pid"]:
        yield warn(
            "a pooler stands between this client and the server",
            "in transaction mode use ConnectionOptions(pooler=True), and let workers LISTEN "
            "over a direct connection (they poll otherwise)",
        )


def _notifications(rows: Sequence[Row]) -> Iterator[Verdict]:
    row = rows[0]
    if row["queue_usage"] > 0.5:
        level = fail if row["queue_usage"] > 0.9 else warn
        yield level(
            f"the server's notification queue is {row['queue_usage']:.0%} full",
            "end the session that listens inside an old transaction (pg_stat_activity)",
        )
    if not row["notify"]:
        yield warn(
            "notifications are switched off (settings.notify)",
            "idle workers find new tasks by polling only; update sokka.settings set notify = true",
        )


SERVER = (
    Check(
        "server version",
        "other versions lack what the functions use, or were never tested",
        "select current_setting('server_version_num')::int as number,"
        " current_setting('server_version') as text",
        _version,
    ),
    Check(
        "primary",
        "a standby accepts no writes",
        "select pg_is_in_recovery() as standby",
        _recovery,
        "this server accepts writes",
    ),
    Check(
        "settings",
        "what was committed must survive, and dead rows must go",
        "select name, setting from pg_settings where name in ('fsync', 'full_page_writes',"
        " 'autovacuum', 'track_counts', 'track_activities', 'synchronous_commit',"
        " 'default_transaction_isolation')",
        _settings,
        "fsync, full_page_writes, synchronous_commit and autovacuum are on",
    ),
    Check(
        "idle transactions",
        "an idle transaction keeps its fences and dead rows for as long as it stays open",
        "select setting from pg_settings where name = 'idle_in_transaction_session_timeout'",
        _idle_timeout,
    ),
    Check(
        "connections",
        "a worker that gets no connection cannot keep its leases",
        """
        select current_setting('max_connections')::int as max_connections,
               current_setting('superuser_reserved_connections')::int
                 + coalesce(current_setting('reserved_connections', true)::int, 0) as reserved,
               (select datconnlimit from pg_database where datname = current_database())
                 as of_database,
               (select rolconnlimit from pg_roles where rolname = current_user) as of_role,
               count(*) filter (where backend_type = 'client backend')::int as used,
               count(*) filter (where starts_with(application_name, 'sokka'))::int as ours
          from pg_stat_activity
        """,
        _connections,
    ),
    Check(
        "pooler",
        "a pooler in transaction mode keeps no session: no LISTEN, no settings, no hints",
        "select %(announced_pid)s::int as announced_pid, pg_backend_pid() as backend_pid",
        _pooler,
        "connected to the server itself, so LISTEN works",
    ),
)

NOTIFICATIONS = Check(
    "notifications",
    "they wake idle workers; without them a task waits for the next poll",
    "select pg_notification_queue_usage() as queue_usage,"
    " (select notify from sokka.settings) as notify",
    _notifications,
    "switched on, and the server's queue has room",
)

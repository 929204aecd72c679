"""Checks of the queue at work: leases, fences, due tasks, topics, tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sokka_pg.doctor.findings import Check, Level, Row, Verdict, by_age, fail, ok, some, span, warn

# Workers sweep every second: what waits for longer is seen by nobody.
_LATE_S, _TOO_LATE_S = 10, 120
_OLD_LEASE_S = 86_400
_OPEN_FENCE_S = 300
_JSON_SAFE = 2**53
_DAY_US = 86_400 * 1_000_000


def _leases(rows: Sequence[Row]) -> Iterator[Verdict]:
    row = rows[0]
    if row["held"] == 0:
        yield ok("none is held")
        return
    oldest = f"{row['held']} held, the oldest for {span(row['oldest_s'])}"
    if row["oldest_s"] > _OLD_LEASE_S:
        yield warn(
            f"{oldest} (task {row['oldest_task']})",
            "see whether it still works: sokka task history; a task can be given a timeout",
        )
    else:
        yield ok(oldest)


def _overdue(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        level = by_age(row["late_s"] or 0, _LATE_S, _TOO_LATE_S)
        if level is not Level.OK:
            yield Verdict(
                level,
                f"{row['what']}, for up to {span(row['late_s'])}",
                "run a worker (it sweeps every second), or: select * from sokka.sweep()",
            )


def _fences(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        open_s = row["open_s"]
        session = (
            "a prepared transaction" if row["backend_pid"] is None
            else f"session {row['backend_pid']} ({row['application_name'] or 'unnamed'})"
        )  # fmt: skip
        text = f"{session} still fences task {row['task_id']}, whose lease is over"
        advice = "end that transaction: until then nobody else gets the task"
        yield (fail if open_s is None or open_s > _OPEN_FENCE_S else warn)(text, advice)


def _paused(rows: Sequence[Row]) -> Iterator[Verdict]:
    for row in rows:
        why = f": {row['reason']}" if row["reason"] else ""
        yield warn(
            f"topic {row['topic']} has been paused for {span(row['seconds'])}{why}",
            "sokka topic resume, if that is over",
        )


def _tokens(rows: Sequence[Row]) -> Iterator[Verdict]:
    row = rows[0]
    last, seen = row["last_token"], row["highest_seen"]
    if seen is not None and seen > last:
        yield fail(
            f"the next token would not be above {seen}, which was granted before",
            "select sokka.raise_token_epoch('tokens went back'), before any worker starts",
        )
    if last > _JSON_SAFE:
        yield warn(
            f"tokens are above 2^53 ({last})",
            "readers that keep JSON numbers as doubles will mix them up; read tokens as text",
        )
    if last > row["now_us"] + _DAY_US:
        yield warn(
            "tokens are ahead of the clock: it was set back, or is wrong",
            "check the time of the server",
        )


def _epoch(rows: Sequence[Row]) -> Iterator[Verdict]:
    row = rows[0]
    if row["incarnation"] is None:
        yield ok("no task was ever handed out")
    elif row["incarnation"] == row["present"]:
        yield ok("tokens were lifted for this incarnation of the server")
    else:
        yield ok("the server started anew: the next grant lifts the tokens first")


LEASES_AND_SUCH = (
    Check(
        "leases",
        "a lease that is extended for days may belong to a handler that hangs",
        """
        select count(*)::int as held,
               extract(epoch from sokka.clock() - min(leased_at))::float8 as oldest_s,
               (array_agg(task_id order by leased_at))[1]::text as oldest_task
          from sokka.tasks where token is not null
        """,
        _leases,
    ),
    Check(
        "sweep",
        "expired leases, due tasks and deadlines wait for a sweep; without one nothing moves",
        """
        select count(*) || ' leases are over and were not taken back' as what,
               extract(epoch from sokka.clock() - min(t.lease_expires_at))::float8 as late_s
          from sokka.tasks t where t.token is not null and t.lease_expires_at <= sokka.clock()
           and not exists (select from sokka.open_fences f where f.task_id = t.task_id)
        union all
        select count(*) || ' snoozed tasks are due and were not woken',
               extract(epoch from sokka.clock() - min(run_at))::float8
          from (select run_at from sokka.tasks
                 where status = 'snoozed' and run_at <= (select sokka.clock())
                 order by run_at limit 100000) due
        union all
        select count(*) || ' waiting tasks are past expires_at and were not failed',
               extract(epoch from sokka.clock() - min(expires_at))::float8
          from (select expires_at from sokka.tasks
                 where status <> 'running' and expires_at <= (select sokka.clock())
                 order by expires_at limit 100000) past
        """,
        _overdue,
        "nothing is overdue",
    ),
    Check(
        "open fences",
        "a transaction that asserted a lease holds its task until it ends",
        """
        select task_id::text, backend_pid, application_name,
               extract(epoch from clock_timestamp() - xact_start)::float8 as open_s
          from sokka.open_fences limit 5
        """,
        _fences,
        "no transaction holds a task whose lease is over",
    ),
    Check(
        "paused topics",
        "nothing of a paused topic is handed out",
        """
        select t.topic, extract(epoch from sokka.clock() - t.paused_at)::float8 as seconds,
               (select a.reason from sokka.audit_entries a
                 where a.topic = t.topic and a.action = 'pause' order by a.id desc limit 1)
                 as reason
          from sokka.topics t where t.paused_at is not null order by t.paused_at limit 20
        """,
        _paused,
        "none is paused",
    ),
    Check(
        "tokens",
        "a token granted twice would let a stale worker write",
        """
        select s.last_value as last_token,
               (extract(epoch from clock_timestamp()) * 1000000)::bigint as now_us,
               greatest((select max(token) from sokka.tasks where token is not null),
                        (select max(token) from (select token from sokka.finished_tasks
                          order by finished_at desc, task_id desc limit 1000) newest),
                        (select max(token) from sokka.fences)) as highest_seen
          from sokka.token_seq s
        """,
        _tokens,
        "every later token is above all that were seen",
    ),
    Check(
        "token epoch",
        "after a crash, restore or promotion the sequence may have gone back",
        "select case when is_called then last_value end as incarnation,"
        " sokka.incarnation_hash() as present"
        " from sokka.incarnation_seq",
        _epoch,
    ),
)


def _invalid(rows: Sequence[Row]) -> Iterator[Verdict]:
    if rows:
        names = [row["name"] for row in rows]
        yield fail(f"not valid: {some(names)}", "reindex index concurrently each of them")


def _guards(rows: Sequence[Row]) -> Iterator[Verdict]:
    if rows:
        names = [row["name"] for row in rows]
        yield fail(
            f"switched off: {some(names)}",
            "alter table ... enable trigger user: finished records can be changed now",
        )


def _public(rows: Sequence[Row]) -> Iterator[Verdict]:
    if rows:
        names = [row["name"] for row in rows]
        yield fail(
            f"PUBLIC may use {some(names)}",
            "revoke it from public and grant it to the roles that need it",
        )


GUARDS = (
    Check(
        "indexes",
        "an invalid index slows claims, or no longer holds fences and unique keys",
        """
        select i.indexrelid::regclass::text as name from pg_index i
          join pg_class c on c.oid = i.indrelid
         where c.relnamespace = 'sokka'::regnamespace and not (i.indisvalid and i.indisready)
        """,
        _invalid,
        "all are valid",
    ),
    Check(
        "guards",
        "the triggers refuse illegal moves and changes of finished records",
        """
        select format('%%s on %%s', t.tgname, t.tgrelid::regclass) as name from pg_trigger t
          join pg_class c on c.oid = t.tgrelid
         where c.relnamespace = 'sokka'::regnamespace and not t.tgisinternal
           and t.tgenabled not in ('O', 'A')
         order by 1
        """,
        _guards,
        "all triggers are on",
    ),
    Check(
        "privileges",
        "whoever can connect could create, take or end tasks",
        """
        select format('%%s (%%s)', g.object, string_agg(distinct g.privilege, ', ')) as name
          from (
            select 'schema ' || n.nspname as object, a.privilege_type as privilege
              from pg_namespace n,
                   aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
             where n.oid = 'sokka'::regnamespace and a.grantee = 0
            union all
            select c.oid::regclass::text, a.privilege_type from pg_class c,
                   aclexplode(coalesce(c.relacl,
                       acldefault(case c.relkind when 'S' then 's' else 'r' end::"char",
                                  c.relowner))) a
             where c.relnamespace = 'sokka'::regnamespace
               and c.relkind in ('r', 'p', 'v', 'm', 'S') and a.grantee = 0
            union all
            select p.oid::regprocedure::text, a.privilege_type from pg_proc p,
                   aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
             where p.pronamespace = 'sokka'::regnamespace and a.grantee = 0
          ) g
         group by g.object order by 1
        """,
        _public,
        "PUBLIC has none",
    ),
)

-- Views for the people who operate the queue.

create view sokka.live_leases as
select t.task_id, t.topic, t.kind, t.pid, t.token, t.attempt, t.leased_at,
       t.lease_expires_at, t.record_ver
  from sokka.tasks t
 where t.token is not null;

-- open_fences: leases whose time is over, but which an open transaction still
-- holds, so that nobody can take the task over. assert_lease leaves an advisory
-- lock of the task for this view: row locks are not to be seen in pg_locks. A
-- prepared transaction has no backend_pid.
create view sokka.open_fences as
select t.task_id, t.topic, t.pid, t.token, t.lease_expires_at, l.pid as backend_pid,
       a.xact_start, a.application_name
  from pg_locks l
  join sokka.tasks t
    on hashtext(t.task_id::text) = l.objid::bigint::bit(32)::integer
   and t.token is not null and t.lease_expires_at <= sokka.clock()
  left join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'advisory' and l.granted and l.objsubid = 2
   and l.classid = 'sokka.tasks'::regclass::oid
   and l.database = (select d.oid from pg_database d where d.datname = current_database());

-- topic_stats: the live tasks of each topic, and what is set for it. The instant is that
-- of until_told(), which a reader of the view may not call.
create view sokka.topic_stats as
select coalesce(s.topic, t.topic) as topic,
       coalesce(s.starting, 0) as starting, coalesce(s.snoozed, 0) as snoozed,
       coalesce(s.running, 0) as running,
       s.oldest_ready_at, s.next_due_at, s.oldest_lease_at,
       t.paused_at, t.lease, t.retention
  from (select topic,
               count(*) filter (where status = 'starting') as starting,
               count(*) filter (where status = 'snoozed') as snoozed,
               count(*) filter (where status = 'running') as running,
               min(run_at) filter (where status = 'starting') as oldest_ready_at,
               min(run_at) filter (where status = 'snoozed' and run_at < '9998-12-31 00:00:00+00')
                   as next_due_at,
               min(leased_at) as oldest_lease_at
          from sokka.tasks group by topic) s
  full join sokka.topics t on t.topic = s.topic;

create view sokka.audit_log as
select id, at, actor, action, task_id, topic, reason, detail from sokka.audit_entries;

-- fan_outs: every join that is remembered, and how far it is.
create view sokka.fan_outs as
select j.task_id, j.parent_task_id, j.policy, j.needed, j.total, j.max_running, j.in_flight,
       j.done, j.succeeded, j.failed, j.late, j.state, j.outcome, j.deadline_at, j.created_at,
       j.decided_at
  from sokka.joins j;

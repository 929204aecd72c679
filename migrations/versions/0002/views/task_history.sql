-- task_history: one row per event of a task, numbered in order within the task.
-- Put together from where each fact already stands: the live row, the final
-- record, and the leases that ended without finishing.
create view sokka.task_history as
select t.task_id, e.seq, e.at, e.event, e.pid, e.token, e.attempt, e.detail
  from sokka.tasks t
 cross join lateral (values
    (1::bigint, t.created_at, 'created', null::text, null::bigint, null::integer,
     jsonb_strip_nulls(jsonb_build_object('topic', t.topic, 'kind', t.kind,
         'resubmit_of', t.resubmit_of, 'parent_task_id', t.parent_task_id,
         'candidate', t.candidate))),
    (t.reserved_seq, t.leased_at, 'reserved', t.pid, t.token, t.attempt, null),
    (t.cancel_seq, t.cancel_requested_at, 'cancel_requested', t.pid, t.token, t.attempt,
     jsonb_strip_nulls(jsonb_build_object('reason', t.cancel_reason)))
 ) e (seq, at, event, pid, token, attempt, detail)
 where e.seq is not null
union all
select f.task_id, e.seq, e.at, e.event, e.pid, e.token, e.attempt, e.detail
  from sokka.finished_tasks f
 cross join lateral (values
    (1::bigint, f.created_at, 'created', null::text, null::bigint, null::integer,
     jsonb_strip_nulls(jsonb_build_object('topic', f.topic, 'kind', f.kind,
         'resubmit_of', f.resubmit_of, 'parent_task_id', f.parent_task_id,
         'candidate', f.candidate))),
    (f.reserved_seq, f.leased_at, 'reserved', f.pid, f.token, f.attempt, null),
    (f.cancel_seq, f.cancel_requested_at, 'cancel_requested', f.pid, f.token, f.attempt,
     jsonb_strip_nulls(jsonb_build_object('reason', f.cancel_reason))),
    (f.event_seq, f.finished_at, f.status, f.pid, f.token, f.attempt,
     case when f.status = 'failed' then jsonb_build_object('error', f.error) end)
 ) e (seq, at, event, pid, token, attempt, detail)
 where e.seq is not null
union all
select p.task_id, e.seq, e.at, e.event, p.pid, p.token, p.attempt, e.detail
  from sokka.past_leases p
 cross join lateral (values
    (p.reserved_seq, p.leased_at, 'reserved', null::jsonb),
    (p.ended_seq, p.ended_at, p.event, p.detail)
 ) e (seq, at, event, detail)
 where e.seq is not null;

-- all_tasks: every task, live and finished (within retention). Columns are only
-- ever added, at the end.

create view sokka.live_tasks as
select t.task_id, t.task_group_id, t.topic, t.sub_topic, t.kind, t.status, t.priority,
       case when t.data_aside
            then (select p.data from sokka.payloads p
                   where p.task_id = t.task_id and p.created_at = t.created_at)
            else t.data end as data,
       t.headers, t.run_at, t.expires_at, t.timeout, t.max_attempts, t.retry, t.max_losses,
       t.unique_key, t.attempt, t.failures, t.losses, t.pid, t.token, t.leased_at,
       t.lease_expires_at, t.cancel_requested_at, t.cancel_reason, t.progress, t.checkpoint,
       t.checkpoint_seq, t.checkpoint_at, null::jsonb as result, t.error, t.record_ver,
       t.resubmit_of, t.created_at, t.updated_at, null::timestamptz as finished_at,
       t.parent_task_id, t.candidate, t.depth
  from sokka.tasks t;

create view sokka.all_tasks as
select * from sokka.live_tasks
union all
select f.task_id, f.task_group_id, f.topic, f.sub_topic, f.kind, f.status, f.priority,
       case when f.data_aside
            then (select p.data from sokka.payloads p
                   where p.task_id = f.task_id and p.created_at = f.created_at)
            else f.data end,
       f.headers, f.run_at, f.expires_at, f.timeout, f.max_attempts, f.retry, f.max_losses,
       f.unique_key, f.attempt, f.failures, f.losses, f.pid, f.token, f.leased_at,
       f.lease_expires_at, f.cancel_requested_at, f.cancel_reason, f.progress, f.checkpoint,
       f.checkpoint_seq, f.checkpoint_at, f.result, f.error, f.record_ver,
       f.resubmit_of, f.created_at, f.finished_at, f.finished_at, f.parent_task_id, f.candidate,
       f.depth
  from sokka.finished_tasks f;

-- created_task: the answer to create_task.
create view sokka.created_task as
select l.*, null::boolean as created from sokka.live_tasks l where false;

-- cancel_children: cancel what is live below a task, at most p_max of it; waiting ones
-- fail at once, running ones are asked to stop. What somebody else holds, and what is
-- left, stays in the inbox for the sweep.
create function sokka.cancel_children(p_parent uuid, p_reason text, p_max integer) returns void
language plpgsql
set enable_seqscan = off
as $$
declare
    v_now timestamptz;
    v_waiting uuid[];
    v_topics text[];
begin
    select array_agg(l.task_id) into v_waiting
      from (select t.task_id from sokka.tasks t
             where t.parent_task_id = p_parent and t.status <> 'running'
             order by t.candidate limit p_max for update skip locked) l;
    v_now := sokka.clock();
    if v_waiting is not null then
        perform sokka.finish_tasks(v_waiting, 'failed', null,
            sokka.cancelled_error(p_reason), v_now, false);
    end if;
    with running as (
        select t.task_id from sokka.tasks t
         where t.parent_task_id = p_parent and t.status = 'running' and t.cancel_requested_at is null
         order by t.candidate limit p_max for no key update skip locked
    ), asked as (
        update sokka.tasks t
           set cancel_requested_at = v_now, cancel_reason = p_reason,
               cancel_seq = t.event_seq + 1, event_seq = t.event_seq + 1,
               record_ver = t.record_ver + 1
          from running r
         where t.task_id = r.task_id
        returning t.topic
    )
    select array_agg(distinct a.topic) into v_topics from asked a;
    if v_topics is not null and (select s.notify from sokka.settings s) then
        perform pg_notify('sokka', 'c' || sokka.topic_hash(t)) from unnest(v_topics) t;
    end if;
    if exists (select from sokka.tasks t where t.parent_task_id = p_parent
                  and (t.status <> 'running' or t.cancel_requested_at is null)) then
        insert into sokka.join_inbox (join_id, task_id) values (p_parent, p_parent);
    end if;
end
$$;

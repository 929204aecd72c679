-- cancel_children: cancel what is live below a task: waiting ones fail at once, running
-- ones are asked to stop, and so on downwards, p_max in all. The caller notes the rest.
-- p_candidates: only the candidates of a join, not what its reducer has begun.
-- Returns how many more there might have been.
create function sokka.cancel_children(
    p_parent uuid, p_reason text, p_max integer, p_candidates boolean
) returns integer
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
    v_left integer := p_max;
    v_waiting uuid[];
    v_next uuid;
begin
    select array_agg(l.task_id) into v_waiting
      from (select t.task_id from sokka.tasks t
             where t.parent_task_id = p_parent and t.status <> 'running'
               and (t.candidate is not null or not p_candidates)
             order by t.candidate limit v_left for update skip locked) l;
    if v_waiting is not null then
        -- Not advancing their joins: that would come back here, with a new p_max.
        perform sokka.finish_tasks(v_waiting, 'failed', null, sokka.cancelled_error(p_reason),
            sokka.clock(), false, 0, false);
        v_left := v_left - cardinality(v_waiting);
    end if;
    v_left := v_left - sokka.ask_children(p_parent, p_reason, v_left, p_candidates);
    for v_next in
        select distinct t.parent_task_id from sokka.tasks t where t.parent_task_id = any (v_waiting) loop
        if v_left > 0 then
            v_left := sokka.cancel_children(v_next, 'its parent was cancelled', v_left, false);
        end if;
        perform sokka.note_the_rest(v_next, false);
    end loop;
    return v_left;
end
$$;

-- ask_children: ask running children to stop; how many were asked.
create function sokka.ask_children(
    p_parent uuid, p_reason text, p_max integer, p_candidates boolean
) returns integer
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
    v_now constant timestamptz := sokka.clock();
    v_asked integer;
    v_topics text[];
begin
    with running as (
        select t.task_id from sokka.tasks t
         where t.parent_task_id = p_parent and t.status = 'running' and t.cancel_requested_at is null
           and (t.candidate is not null or not p_candidates)
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
    select count(*), array_agg(distinct a.topic) into v_asked, v_topics from asked a;
    if v_asked > 0 and (select s.notify from sokka.settings s) then
        perform pg_notify('sokka', 'c' || sokka.topic_hash(t)) from unnest(v_topics) t;
    end if;
    return v_asked;
end
$$;

-- note_the_rest: children that were not reached, or whose rows somebody holds, are left
-- to the sweep, by way of the inbox.
create function sokka.note_the_rest(p_parent uuid, p_candidates boolean) returns void
language sql as $$
    insert into sokka.join_inbox (join_id, task_id)
    select p_parent, p_parent
     where exists (select from sokka.tasks t where t.parent_task_id = p_parent
                      and (t.candidate is not null or not p_candidates)
                      and (t.status <> 'running' or t.cancel_requested_at is null))
$$;

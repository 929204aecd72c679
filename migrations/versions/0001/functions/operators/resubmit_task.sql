-- resubmit_task: a new task like a finished one, with its attempts ahead of it.
-- Needs:  a failed or terminated task within retention.
-- Leaves: starting. It joins the old one's group, unless that was the old one itself.
-- Returns the new task.
-- Raises: 22023, SK001, SK006 (not finished), SK012 (another unfinished task holds
--         its unique key).
create function sokka.resubmit_task(p_task_id uuid, p_reason text default null)
returns setof sokka.created_task
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
declare
    v_old sokka.all_tasks;
    v_spec sokka.task_spec;
    v_answer record;
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    perform sokka.check_reason(p_reason);
    select * into v_old from sokka.all_tasks a where a.task_id = p_task_id;
    if not found then
        perform sokka.refuse_missing(p_task_id, '{}');
    elsif v_old.finished_at is null then
        perform sokka.refuse('SK006', format('task %s is %s, not finished', p_task_id, v_old.status),
            jsonb_build_object('task_id', p_task_id, 'status', v_old.status, 'pid', v_old.pid,
                'token', v_old.token, 'record_ver', v_old.record_ver,
                'expected', '{"status": ["failed", "terminated"]}'::jsonb));
    end if;
    v_spec := (null, v_old.topic, v_old.data, v_old.kind, v_old.sub_topic, sokka.new_task_id(),
        nullif(v_old.task_group_id, v_old.task_id), v_old.priority, null, v_old.max_attempts,
        v_old.retry, v_old.timeout, null, v_old.unique_key, v_old.headers, v_old.max_losses,
        'error', p_task_id, false)::sokka.task_spec;
    select * into v_answer from sokka.insert_tasks(array[v_spec]);
    perform sokka.record_act('resubmit', p_task_id, v_old.topic, p_reason,
        jsonb_build_object('new_task_id', v_answer.task_id));
    return query select l.*, true from sokka.live_tasks l where l.task_id = v_answer.task_id;
end
$$;

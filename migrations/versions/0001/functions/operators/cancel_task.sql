-- cancel_task: a waiting task fails at once (code cancelled); a running one is
-- asked to stop: every extend tells its owner, and a notification hurries it. The
-- owner's own end still wins; any other end of the lease fails the task.
-- Returns what became of it; outcome: cancelled, requested, already_requested, or
--         already_done (a finished task stays as it is).
-- Raises: 22023, SK001, 55P03.   Locks: the row, passing an open fence.
create function sokka.cancel_task(p_task_id uuid, p_reason text default null)
returns table (status text, record_ver bigint, run_at timestamptz, outcome text)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_task sokka.locked_task;
    v_now timestamptz;
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    perform sokka.check_reason(p_reason);
    select * into v_task from sokka.locked_task t where t.task_id = p_task_id for no key update;
    v_now := sokka.clock();
    if v_task.task_id is null then
        return query select f.status, f.record_ver, f.run_at, 'already_done'
                       from sokka.finished_tasks f where f.task_id = p_task_id;
        if not found then
            perform sokka.refuse_missing(p_task_id, '{}');
        end if;
        return;
    end if;
    perform sokka.record_act('cancel', p_task_id, v_task.topic, p_reason,
        jsonb_build_object('pid', v_task.pid, 'token', v_task.token, 'status', v_task.status));
    if v_task.status <> 'running' then
        return query select o.status, o.record_ver, o.run_at, 'cancelled'
                       from sokka.finish_task(v_task, 'failed', null,
                           sokka.cancelled_error(p_reason), v_now, false) o;
    elsif v_task.cancel_requested_at is not null then
        return query select v_task.status, v_task.record_ver, v_task.run_at, 'already_requested';
    else
        return query
            update sokka.tasks t
               set cancel_requested_at = v_now, cancel_reason = p_reason,
                   cancel_seq = t.event_seq + 1, event_seq = t.event_seq + 1,
                   record_ver = t.record_ver + 1
             where t.task_id = p_task_id
            returning t.status, t.record_ver, t.run_at, 'requested';
        if (select s.notify from sokka.settings s) then
            perform pg_notify('sokka', 'c' || sokka.topic_hash(v_task.topic));
        end if;
    end if;
end
$$;

-- revoke_lease: take a task from its owner, or wake it, if it still is as last read.
-- Needs:  the record_ver last read; the task running (a live lease too) or snoozed.
-- Leaves: starting; failed where a cancel request stands. Not counted as a loss.
-- Raises: 22023, 25001, SK001, SK002, SK007 (changed since), SK006, 55P03 (an open
--         fence or another call holds the row).   Locks: the row, never waiting.
create function sokka.revoke_lease(p_task_id uuid, p_record_ver bigint, p_reason text default null)
returns setof sokka.task_outcome
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
as $$
declare
    v_task sokka.locked_task;
    v_now timestamptz;
    v_outcome sokka.task_outcome;
    v_expected constant jsonb := jsonb_build_object('record_ver', p_record_ver);
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    perform sokka.check_not_null('record_ver', p_record_ver is null);
    perform sokka.check_reason(p_reason);
    perform sokka.check_isolation();
    begin
        select * into v_task from sokka.locked_task t where t.task_id = p_task_id for update nowait;
    exception when lock_not_available then
        perform sokka.refuse('55P03', format('task %s is held by an open fence or another call', p_task_id),
            jsonb_build_object('task_id', p_task_id, 'expected', v_expected));
    end;
    v_now := sokka.clock();
    if v_task.task_id is null then
        perform sokka.refuse_missing(p_task_id, v_expected);
    elsif v_task.record_ver <> p_record_ver then
        perform sokka.refuse('SK007', format('task %s has changed since version %s', p_task_id, p_record_ver),
            sokka.found(v_task, v_expected));
    elsif v_task.status = 'starting' then
        perform sokka.refuse('SK006', format('task %s is starting: there is nothing to revoke', p_task_id),
            sokka.found(v_task, v_expected || '{"status": ["running", "snoozed"]}'));
    elsif (v_task.is_join or v_task.candidate is not null) and v_task.run_at = sokka.until_told() then
        perform sokka.refuse('SK006',
            format('task %s waits for other tasks: there is nothing to revoke', p_task_id),
            sokka.found(v_task, v_expected || '{"status": ["running", "snoozed"]}'));
    end if;
    perform sokka.record_act('revoke', p_task_id, v_task.topic, p_reason,
        jsonb_build_object('pid', v_task.pid, 'token', v_task.token, 'status', v_task.status));
    perform sokka.announce(array[v_task.topic]);
    v_outcome := sokka.return_to_starting(v_task, 'revoked', v_now,
        jsonb_strip_nulls(jsonb_build_object('reason', p_reason, 'actor', session_user)),
        v_task.attempt, v_task.losses);
    if v_task.cancel_requested_at is not null then
        v_task.record_ver := v_outcome.record_ver;
        v_outcome := sokka.finish_task(v_task, 'failed', null,
            sokka.cancelled_error(v_task.cancel_reason), v_now, false);
    end if;
    return next v_outcome;
end
$$;

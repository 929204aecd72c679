-- acquire_lease: lease one named task, paused topic or not.
-- Needs:  the task waiting and due, or running under a lease that is over or the
--         caller's own (which then dies).
-- Leaves: running under a new token.
-- Raises: 22023, 25001, SK001, SK002 (also where a cancel request stands, the
--         losses are spent or the deadline has passed: the next sweep ends the
--         task), SK009 (held by another), SK010 (not due), 55P03.
-- Locks:  the task's row.
create function sokka.acquire_lease(p_task_id uuid, p_pid text, p_lease interval default null)
returns setof sokka.leased_task
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_task sokka.locked_task;
    v_now timestamptz;
    v_end text;
    v_expected constant jsonb := jsonb_build_object('pid', p_pid);
    v_lease constant interval := sokka.checked_lease('lease', p_lease);
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    perform sokka.check_name('pid', p_pid);
    perform sokka.check_isolation();
    select * into v_task from sokka.locked_task t where t.task_id = p_task_id for update;
    v_now := sokka.clock();
    if v_task.task_id is null then
        perform sokka.refuse_missing(p_task_id, v_expected);
    end if;
    if v_task.status = 'running' and v_task.lease_expires_at > v_now and v_task.pid <> p_pid then
        perform sokka.refuse('SK009', format('task %s is held by another owner', p_task_id),
            sokka.found(v_task, v_expected));
    elsif v_task.status = 'snoozed' and v_task.run_at > v_now then
        perform sokka.refuse('SK010', format('task %s is not due before %s', p_task_id, v_task.run_at),
            sokka.found(v_task, v_expected) || jsonb_build_object('run_at', v_task.run_at));
    end if;
    v_end := sokka.end_in_sight(v_task, v_now);
    if v_end is not null then
        perform sokka.refuse('SK002', format('task %s is at its end (%s)', p_task_id, v_end),
            sokka.found(v_task, v_expected) || jsonb_build_object('error_code', v_end));
    end if;
    perform sokka.make_ready(v_task, v_now);
    return query select * from sokka.grant_leases(
        array(select t.ctid from sokka.tasks t where t.task_id = p_task_id), p_pid, coalesce(v_lease, sokka.lease_of(v_task.topic)), false);
end
$$;

-- end_in_sight: null, or the code of the error with which the next sweep will end
-- a task that nobody may lease again. A refusal undoes whatever was done before
-- it, so the end cannot be recorded by the call that refuses.
create function sokka.end_in_sight(p_task sokka.locked_task, p_now timestamptz) returns text
language sql immutable as $$
    select case
        when p_task.cancel_requested_at is not null then 'cancelled'
        when p_task.status = 'running' and p_task.lease_expires_at <= p_now
             and p_task.losses >= p_task.max_losses then 'lease_lost'
        when p_task.expires_at <= p_now
             and not (p_task.status = 'running' and p_task.lease_expires_at > p_now) then 'expired'
    end
$$;

-- make_ready: take a task to starting, whatever it was.
create function sokka.make_ready(p_task sokka.locked_task, p_now timestamptz) returns void
language plpgsql as $$
begin
    if p_task.status = 'snoozed' then
        perform sokka.wake_task(p_task.task_id, p_now);
    elsif p_task.status = 'running' and p_task.lease_expires_at <= p_now then
        perform sokka.return_to_starting(p_task, 'lease_lost', p_now,
            jsonb_build_object('losses', sokka.capped(p_task.losses, 1)), p_task.attempt,
            sokka.capped(p_task.losses, 1));
    elsif p_task.status = 'running' then
        perform sokka.return_to_starting(p_task, 'released', p_now,
            '{"reason": "acquired again"}', greatest(p_task.attempt - 1, 0), p_task.losses);
    end if;
end
$$;

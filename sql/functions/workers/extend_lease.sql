-- extend_lease: the caller is alive: the lease lasts at least until clock + p_lease.
-- Needs:  a live lease (task, pid, token).   Leaves: running; never shortens.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row, passing an
--         open fence.
create function sokka.extend_lease(
    p_task_id uuid, p_pid text, p_token bigint, p_lease interval default null
) returns setof sokka.lease_state
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_lease constant interval := sokka.checked_lease('lease', p_lease);
    v_task constant sokka.locked_task := sokka.lock_for_keeping(p_task_id, p_pid, p_token);
begin
    return query
        update sokka.tasks t
           set lease_expires_at = greatest(t.lease_expires_at,
                   sokka.clock() + coalesce(v_lease, sokka.lease_of(v_task.topic))),
               record_ver = t.record_ver + 1
         where t.task_id = p_task_id
        returning t.lease_expires_at, t.cancel_requested_at is not null, t.record_ver;
end
$$;

-- renew_lease: as extend_lease, but the lease lasts exactly until clock + p_lease,
-- so it may shorten.   Locks: the task's row; a shortening waits for an open fence.
create function sokka.renew_lease(
    p_task_id uuid, p_pid text, p_token bigint, p_lease interval default null
) returns setof sokka.lease_state
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_lease interval := sokka.checked_lease('lease', p_lease);
    v_task sokka.locked_task;
    v_shortens boolean;
begin
    -- Which lock it takes is settled before: going from the weaker to the stronger
    -- one deadlocks with a fence that ends its task.
    select coalesce(v_lease, sokka.lease_of(t.topic)),
           sokka.clock() + coalesce(v_lease, sokka.lease_of(t.topic)) < t.lease_expires_at
      into v_lease, v_shortens from sokka.tasks t where t.task_id = p_task_id;
    if v_shortens then
        v_task := sokka.lock_for_ending(p_task_id, p_pid, p_token);
    else
        v_task := sokka.lock_for_keeping(p_task_id, p_pid, p_token);
        if sokka.clock() + v_lease < v_task.lease_expires_at then
            perform sokka.refuse('55P03', format('task %s was extended meanwhile', p_task_id),
                sokka.found(v_task, jsonb_build_object('pid', p_pid, 'token', p_token)));
        end if;
    end if;
    return query
        update sokka.tasks t
           set lease_expires_at = sokka.clock() + v_lease, record_ver = t.record_ver + 1
         where t.task_id = p_task_id
        returning t.lease_expires_at, t.cancel_requested_at is not null, t.record_ver;
end
$$;

-- release_lease: give a running task back untouched.
-- Needs:  a live lease (task, pid, token).   Leaves: starting, the attempt given
--         back. With a cancel request standing: failed.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row.
create function sokka.release_lease(p_task_id uuid, p_pid text, p_token bigint)
returns setof sokka.task_outcome
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_task constant sokka.locked_task := sokka.lock_for_ending(p_task_id, p_pid, p_token);
    v_now constant timestamptz := sokka.clock();
begin
    if v_task.cancel_requested_at is not null then
        return next sokka.finish_task(v_task, 'failed', null,
            sokka.cancelled_error(v_task.cancel_reason), v_now, true);
    else
        return next sokka.return_to_starting(v_task, 'released', v_now, null,
            greatest(v_task.attempt - 1, 0), v_task.losses);
        perform sokka.announce(array[v_task.topic]);
    end if;
end
$$;

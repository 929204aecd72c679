-- fail_task: the task has failed for good, whatever its retry policy.
-- Needs:  a live lease (task, pid, token); an error {"code", "message", ...}.
-- Leaves: failed.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row.
create function sokka.fail_task(
    p_task_id uuid, p_pid text, p_token bigint, p_error jsonb
) returns setof sokka.task_outcome
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_error constant jsonb := sokka.error_object(p_error);
    v_task constant sokka.locked_task := sokka.lock_for_ending(p_task_id, p_pid, p_token);
begin
    return next sokka.finish_task(v_task, 'failed', null, v_error, sokka.clock(), true, 1);
end
$$;

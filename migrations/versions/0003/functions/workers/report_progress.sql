-- report_progress: say how far the work is. Does not extend the lease.
-- Needs:  a live lease (task, pid, token); JSON of at most 64 KiB, or null for none.
-- Leaves: running.   Returns the new record_ver.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row, passing an
--         open fence.
create function sokka.report_progress(
    p_task_id uuid, p_pid text, p_token bigint, p_progress jsonb
) returns table (record_ver bigint)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    perform sokka.check_json('progress', p_progress, 65536);
    perform sokka.lock_for_keeping(p_task_id, p_pid, p_token);
    return query
        update sokka.tasks t set progress = p_progress, record_ver = t.record_ver + 1
         where t.task_id = p_task_id returning t.record_ver;
    if exists (select from sokka.watched_tasks w where w.task_id = p_task_id) then
        perform sokka.tell_watchers(array[p_task_id]);
    end if;
end
$$;

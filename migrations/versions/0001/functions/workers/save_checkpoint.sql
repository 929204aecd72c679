-- save_checkpoint: replace the task's checkpoint, from which the next owner goes
-- on. In the caller's transaction it is recorded together with the caller's writes.
-- Needs:  a live lease (task, pid, token); JSON within max_data_bytes, or null.
-- Leaves: running.   Returns the checkpoint's number within the task, and its time.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row, passing an
--         open fence.
create function sokka.save_checkpoint(
    p_task_id uuid, p_pid text, p_token bigint, p_checkpoint jsonb
) returns table (seq bigint, saved_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
begin
    perform sokka.check_json('checkpoint', p_checkpoint, (select s.max_data_bytes from sokka.settings s));
    perform sokka.lock_for_keeping(p_task_id, p_pid, p_token);
    return query
        update sokka.tasks t
           set checkpoint = p_checkpoint, checkpoint_seq = t.checkpoint_seq + 1,
               checkpoint_at = sokka.clock(), record_ver = t.record_ver + 1
         where t.task_id = p_task_id returning t.checkpoint_seq, t.checkpoint_at;
end
$$;

-- assert_lease: the caller's transaction is fenced: its lease is live and newest,
-- and nobody can take the task over before the transaction ends, even when the
-- lease runs out meanwhile. Heartbeats pass.
-- Needs:  a live lease (task, pid, token), READ COMMITTED.   Leaves: running.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row, FOR KEY SHARE.
create function sokka.assert_lease(p_task_id uuid, p_pid text, p_token bigint)
returns setof sokka.lease_state
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_task constant sokka.locked_task := sokka.lock_for_fence(p_task_id, p_pid, p_token);
begin
    -- For the view open_fences only: a row lock shows nowhere.
    perform pg_advisory_xact_lock_shared(
        'sokka.tasks'::regclass::oid::integer, hashtext(p_task_id::text));
    -- For the triggers of guarded tables. It ends with the transaction, and with a
    -- savepoint that is rolled back, as the row lock does.
    perform set_config('skpg_fence.sokka',
        concat_ws(' ', nullif(current_setting('skpg_fence.sokka', true), ''),
            p_task_id || '/' || p_token), true);
    return query select v_task.lease_expires_at, v_task.cancel_requested_at is not null,
                        v_task.record_ver;
end
$$;

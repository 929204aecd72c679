-- snooze_task: put a running task to sleep; its owner gives it up.
-- Needs:  a live lease (task, pid, token).   Leaves: snoozed until clock + p_snooze
--         (starting where that is now); the attempt is given back. With a cancel
--         request standing: failed.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row.
create function sokka.snooze_task(
    p_task_id uuid, p_pid text, p_token bigint, p_snooze interval
) returns setof sokka.task_outcome
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_snooze interval;
    v_task sokka.locked_task;
    v_now timestamptz;
begin
    perform sokka.check_not_null('snooze', p_snooze is null);
    v_snooze := sokka.checked_delay('snooze', p_snooze);
    v_task := sokka.lock_for_ending(p_task_id, p_pid, p_token);
    v_now := sokka.clock();
    if v_task.cancel_requested_at is not null then
        return next sokka.finish_task(v_task, 'failed', null,
            sokka.cancelled_error(v_task.cancel_reason), v_now, true);
    else
        return next sokka.put_to_sleep(v_task, 'snoozed', v_now, v_snooze, null,
            greatest(v_task.attempt - 1, 0), v_task.failures,
            jsonb_build_object('seconds', extract(epoch from v_snooze)));
    end if;
end
$$;

-- retry_task: the attempt ended in an error; the task's retry policy decides.
-- Needs:  a live lease (task, pid, token); an error. p_delay replaces the policy's
--         wait, not its limit.
-- Leaves: snoozed until the wait is over (losses start anew); failed when
--         max_attempts failures are spent or a cancel request stands.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row.
create function sokka.retry_task(
    p_task_id uuid, p_pid text, p_token bigint, p_error jsonb, p_delay interval default null
) returns setof sokka.task_outcome
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_error constant jsonb := sokka.error_object(p_error);
    v_delay constant interval := sokka.checked_delay('delay', p_delay);
    v_task constant sokka.locked_task := sokka.lock_for_ending(p_task_id, p_pid, p_token);
    v_now constant timestamptz := sokka.clock();
    v_failures constant integer := sokka.capped(v_task.failures, 1);
begin
    if v_task.cancel_requested_at is not null then
        return next sokka.finish_task(v_task, 'failed', null,
            sokka.cancelled_error(v_task.cancel_reason) || jsonb_build_object('last_error', v_error),
            v_now, true, 1);
    elsif v_failures >= v_task.max_attempts then
        return next sokka.finish_task(v_task, 'failed', null, v_error, v_now, true, 1);
    else
        return next sokka.put_to_sleep(v_task, 'retried', v_now,
            coalesce(v_delay, sokka.retry_wait(v_task.retry, v_failures)), v_error,
            v_task.attempt, v_failures,
            jsonb_build_object('error', v_error, 'failures', v_failures));
    end if;
end
$$;

-- wait_for_task: sleep until a child of this task is final; the owner gives it up and
-- holds no slot meanwhile. The next owner starts the handler anew.
-- Needs:  a live lease (task, pid, token); p_waits_for a child of the task, such as its
--         fan-out, but no single candidate of one.
-- Leaves: snoozed; starting as soon as the child is final (at once if it is), and after
--         an hour in any case, to look by itself. The attempt is given back. With a
--         cancel request standing: failed.
-- Raises: 22023 (not a child of it), 25001, SK001-SK006, 55P03.
-- Locks:  the task's row, then the child's FOR KEY SHARE: an end of the child that is
--         under way is waited for, and a later one finds this task asleep.
create function sokka.wait_for_task(
    p_task_id uuid, p_pid text, p_token bigint, p_waits_for uuid
) returns setof sokka.task_outcome
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_task sokka.locked_task;
    v_parent uuid;
    v_candidate integer;
    v_final boolean;
    v_now timestamptz;
begin
    perform sokka.check_not_null('waits_for', p_waits_for is null);
    v_task := sokka.lock_for_ending(p_task_id, p_pid, p_token);
    select t.parent_task_id, t.candidate into v_parent, v_candidate from sokka.tasks t
     where t.task_id = p_waits_for for key share;
    v_final := not found;
    if v_final then
        select f.parent_task_id, f.candidate into v_parent, v_candidate
          from sokka.finished_tasks f where f.task_id = p_waits_for;
        if not found then
            perform sokka.refuse_missing(p_waits_for, '{}');
        end if;
    end if;
    if v_parent is distinct from p_task_id or v_candidate is not null then
        perform sokka.refuse_argument('waits_for', 'must be a child of the task, no candidate of a join');
    end if;
    v_now := sokka.clock();
    if v_task.cancel_requested_at is not null then
        return next sokka.finish_task(v_task, 'failed', null,
            sokka.cancelled_error(v_task.cancel_reason), v_now, true);
    else
        return next sokka.put_to_sleep(v_task, 'snoozed', v_now,
            case when v_final then interval '0' else interval '1 hour' end, null,
            greatest(v_task.attempt - 1, 0), v_task.failures,
            jsonb_build_object('waits_for', p_waits_for),
            case when not v_final then p_waits_for end);
    end if;
end
$$;

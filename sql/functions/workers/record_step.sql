-- record_step: what a step of the task gave, once. The first value under a name stays:
-- a later call gets that one back, and recorded is false.
-- Needs:  a live lease (task, pid, token); a name; JSON within max_data_bytes, or null.
-- Leaves: running.   Returns the step's number within the task, its value and time.
-- Raises: 22023 (also beyond 10,000 steps or 64 MiB of all their values), 25001, SK001-SK006, 55P03.
-- Locks:  the task's row, passing an open fence.
create function sokka.record_step(
    p_task_id uuid, p_pid text, p_token bigint, p_name text, p_value jsonb
) returns table (seq bigint, value jsonb, recorded_at timestamptz, recorded boolean)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_task sokka.locked_task;
    v_last record;
    v_bytes bigint;
begin
    perform sokka.check_name('name', p_name);
    perform sokka.check_json('value', p_value, (select s.max_data_bytes from sokka.settings s));
    v_task := sokka.lock_for_keeping(p_task_id, p_pid, p_token);
    return query
        select s.seq, s.value, s.recorded_at, false from sokka.task_steps s
         where s.task_id = p_task_id and s.name = p_name and s.created_at = v_task.created_at;
    if found then
        return;
    end if;
    select coalesce(max(l.seq), 0) as seq, coalesce(max(l.bytes_so_far), 0) as bytes into v_last
      from (select s.seq, s.bytes_so_far from sokka.task_steps s
             where s.task_id = p_task_id and s.created_at = v_task.created_at
             order by s.seq desc limit 1) l;
    v_bytes := v_last.bytes + coalesce(octet_length(p_value::text), 0);
    if v_last.seq >= 10000 then
        perform sokka.refuse_argument('name', 'must be one of at most 10000 steps of a task');
    elsif v_bytes > 67108864 then
        perform sokka.refuse_argument('value', 'must leave all steps of the task within 67108864 bytes');
    end if;
    return query
        insert into sokka.task_steps as s (task_id, created_at, recorded_at, seq, token,
            bytes_so_far, name, value)
        values (p_task_id, v_task.created_at, sokka.clock(), v_last.seq + 1, p_token, v_bytes, p_name,
            p_value)
        returning s.seq, s.value, s.recorded_at, true;
end
$$;

-- list_steps: the recorded steps of a task, in order; none for an unknown id.
-- Raises: 22023.
create function sokka.list_steps(p_task_id uuid)
returns table (seq bigint, name text, value jsonb, token bigint, recorded_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    return query select s.seq, s.name, s.value, s.token, s.recorded_at from sokka.task_steps s
                  where s.task_id = p_task_id order by s.seq;
end
$$;

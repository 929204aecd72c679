-- create_task: enqueue one task, in the caller's transaction.
-- Needs:  a topic.   Leaves: starting, or snoozed where run_at lies ahead.
-- Returns the task and whether it was created here: an unfinished task with the
-- same unique key in the topic is returned instead (p_on_conflict => 'existing').
-- Raises: 22023, SK008 (task_id in use), SK012 (unique key, on_conflict => 'error').
-- Works in any isolation level.
create function sokka.create_task(
    p_topic text,
    p_data jsonb default null,
    p_kind text default 'default',
    p_sub_topic text default 'default',
    p_task_id uuid default null,
    p_task_group_id uuid default null,
    p_priority integer default 5,
    p_run_at timestamptz default null,
    p_max_attempts integer default null,
    p_retry jsonb default null,
    p_timeout interval default null,
    p_expires_at timestamptz default null,
    p_unique_key text default null,
    p_headers jsonb default null,
    p_max_losses integer default 5,
    p_on_conflict text default 'existing'
) returns setof sokka.created_task
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_retry constant jsonb := case when p_retry is not null then sokka.checked_retry(p_retry) end;
    v_spec sokka.task_spec;
    v_answer record;
begin
    v_spec := (null, p_topic, p_data, coalesce(p_kind, 'default'),
        coalesce(p_sub_topic, 'default'), coalesce(p_task_id, sokka.new_task_id()),
        p_task_group_id, coalesce(p_priority, 5), p_run_at,
        coalesce(p_max_attempts, (p_retry ->> 'max_attempts')::integer, 1), v_retry, p_timeout,
        p_expires_at, p_unique_key, p_headers, coalesce(p_max_losses, 5),
        coalesce(p_on_conflict, 'existing'), null, p_task_id is not null)::sokka.task_spec;
    select * into v_answer from sokka.insert_tasks(array[v_spec]);
    return query select l.*, v_answer.created from sokka.live_tasks l
                  where l.task_id = v_answer.task_id;
    if not found then
        -- The holder of the unique key has finished since.
        return query select a.*, v_answer.created from sokka.all_tasks a
                      where a.task_id = v_answer.task_id;
    end if;
end
$$;

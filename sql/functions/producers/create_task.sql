-- create_task: enqueue one task, in the caller's transaction.
-- Needs:  a topic.   Leaves: starting, or snoozed where run_at lies ahead.
-- Returns the task and whether it was created here: an unfinished task with the
-- same unique key in the topic is returned instead (p_on_conflict => 'existing').
-- Raises: 22023, SK008 (task_id in use), SK012 (unique key, on_conflict => 'error'),
--         SK001 or SK002 (the parent is unknown or finished).
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
    p_on_conflict text default 'existing',
    p_parent_task_id uuid default null
) returns setof sokka.created_task
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_retry jsonb;
    v_now timestamptz;
    v_new_id uuid;
begin
    if p_retry is not null or p_timeout is not null then
        p_timeout := sokka.exact_seconds(p_timeout);
        if p_retry is not null then
            v_retry := sokka.checked_retry(p_retry);
            p_max_attempts := coalesce(p_max_attempts, (p_retry ->> 'max_attempts')::integer);
        end if;
    end if;
    -- The short road, of a task that can meet no other one: a statement that inserts it
    -- and returns it. Whatever breaks a rule, or is to stand apart, takes the long one.
    -- Each transaction sets up anew what it evaluates, which is most of this call's cost:
    -- so what most tasks are given is looked at in place, the rest by a function.
    if p_task_id is null and p_unique_key is null and p_parent_task_id is null
       and (p_run_at is null and p_max_attempts is null and p_timeout is null
            and p_expires_at is null and p_headers is null and p_priority between 0 and 9
            and p_sub_topic = 'default' and p_max_losses = 5 and p_on_conflict = 'existing'
            and sokka.plain_name(p_topic) and sokka.plain_name(p_kind)
            or sokka.seldom_plain(p_topic, p_kind, p_sub_topic, p_priority, p_run_at,
                p_max_attempts, p_timeout, p_expires_at, p_headers, p_max_losses, p_on_conflict))
       and not sokka.travels_badly(p_data)
       -- The settings cannot ask for less than 1,024 bytes.
       and (p_data is null or octet_length(p_data::text) <= 1024 or sokka.fits_settings(p_data)) then
        v_now := sokka.clock();
        v_new_id := sokka.new_task_id();
        return query
            insert into sokka.tasks as t (
                task_id, task_group_id, created_at, updated_at, run_at, queue_pos, priority,
                max_attempts, max_losses, status, topic, sub_topic, kind, expires_at, timeout,
                retry, headers, data)
            values (v_new_id, coalesce(p_task_group_id, v_new_id), v_now, v_now,
                coalesce(p_run_at, v_now), nextval('sokka.queue_pos_seq'),
                coalesce(p_priority, 5), coalesce(p_max_attempts, 1), coalesce(p_max_losses, 5),
                case when p_run_at > v_now then 'snoozed' else 'starting' end, p_topic,
                coalesce(p_sub_topic, 'default'), coalesce(p_kind, 'default'), p_expires_at,
                p_timeout, v_retry, p_headers, p_data)
            returning t.task_id, t.task_group_id, t.topic, t.sub_topic, t.kind, t.status,
                t.priority, t.data, t.headers, t.run_at, t.expires_at, t.timeout, t.max_attempts,
                t.retry, t.max_losses, t.unique_key, t.attempt, t.failures, t.losses, t.pid,
                t.token, t.leased_at, t.lease_expires_at, t.cancel_requested_at, t.cancel_reason,
                t.progress, t.checkpoint, t.checkpoint_seq, t.checkpoint_at, null::jsonb, t.error,
                t.record_ver, t.resubmit_of, t.created_at, t.updated_at, null::timestamptz,
                t.parent_task_id, t.candidate, t.depth, true;
        -- As somebody_idle does it, in place.
        if not sokka.may_look_for_idle(p_topic) then
            perform sokka.tell_idle(p_topic);
        elsif exists (select from sokka.idle_workers w
                       where w.topic = p_topic and w.idle_until > sokka.clock()) then
            perform sokka.tell_idle(p_topic);
        end if;
        return;
    end if;
    return query select * from sokka.create_checked_task((null, p_topic, p_data,
        coalesce(p_kind, 'default'), coalesce(p_sub_topic, 'default'),
        coalesce(p_task_id, sokka.new_task_id()), p_task_group_id, coalesce(p_priority, 5), p_run_at,
        coalesce(p_max_attempts, 1), v_retry, p_timeout,
        p_expires_at, p_unique_key, p_headers, coalesce(p_max_losses, 5),
        coalesce(p_on_conflict, 'existing'), null, p_task_id is not null, p_parent_task_id, null,
        sokka.depth_below(p_parent_task_id), false)::sokka.task_spec);
end
$$;

-- create_checked_task: the long road: check, insert, look for what it met, read it back.
create function sokka.create_checked_task(p_spec sokka.task_spec)
returns setof sokka.created_task
language plpgsql as $$
declare
    v_answer record;
begin
    select * into v_answer from sokka.insert_tasks(array[p_spec]);
    return query select l.*, v_answer.created from sokka.live_tasks l
                  where l.task_id = v_answer.task_id;
    if not found then
        -- The holder of the unique key has finished since.
        return query select a.*, v_answer.created from sokka.all_tasks a
                      where a.task_id = v_answer.task_id;
    end if;
end
$$;

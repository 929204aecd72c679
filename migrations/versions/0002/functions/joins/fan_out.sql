-- fan_out: one child task for each candidate, and a join: a task that waits for them as
-- its policy says. All in one call, in one transaction.
-- Needs:  0 to 10,000 specs as create_tasks takes them (without run_at, unique_key,
--         on_conflict, task_group_id and parent_task_id). p_needed for the policy quorum.
--         A parent needs its live lease: all of p_parent_task_id, p_pid, p_token, or none.
-- Leaves: the join snoozed until it is decided, its children starting; those beyond
--         p_max_running held back until others end. p_kind: the join is worked off by
--         this kind when it is satisfied, instead of ending.
-- Returns the join's task id, its status, how many children, and whether it was made
--         here: a join with p_task_id under the same parent is returned as it is.
-- Raises: 22023, SK008, 25001 and SK001-SK006 (the parent's lease), 55P03.
-- Locks:  the parent's row FOR KEY SHARE, as a fence.
create function sokka.fan_out(
    p_specs jsonb,
    p_policy text default 'settled',
    p_needed integer default null,
    p_max_running integer default null,
    p_deadline interval default null,
    p_task_id uuid default null,
    p_topic text default null,
    p_kind text default null,
    p_data jsonb default null,
    p_sub_topic text default null,
    p_parent_task_id uuid default null,
    p_pid text default null,
    p_token bigint default null,
    p_priority integer default 5,
    p_retry jsonb default null,
    p_timeout interval default null,
    p_headers jsonb default null,
    p_max_attempts integer default null
) returns table (task_id uuid, status text, total integer, created boolean)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_total integer;
    v_needed integer;
    v_deadline constant interval := sokka.checked_delay('deadline', p_deadline);
    v_retry constant jsonb := case when p_retry is not null then sokka.checked_retry(p_retry) end;
    v_join sokka.task_spec;
    v_found record;
begin
    v_total := sokka.check_fan_out(p_specs, p_max_running);
    v_needed := sokka.needed_of(p_policy, p_needed, v_total);
    if num_nonnulls(p_parent_task_id, p_pid, p_token) not in (0, 3) then
        perform sokka.refuse_argument('parent_task_id', 'needs pid and token, and they need it');
    elsif p_parent_task_id is not null then
        perform sokka.lock_for_fence(p_parent_task_id, p_pid, p_token);
    end if;
    v_join := (null, coalesce(p_topic, p_specs -> 0 ->> 'topic', 'fan-out'), p_data,
        coalesce(p_kind, 'join'), coalesce(p_sub_topic, 'default'),
        coalesce(p_task_id, sokka.new_task_id()), null, coalesce(p_priority, 5), sokka.until_told(),
        coalesce(p_max_attempts, (p_retry ->> 'max_attempts')::integer, 1), v_retry, p_timeout, null,
        null, p_headers, 5, 'existing', null, p_task_id is not null, p_parent_task_id, null,
        sokka.depth_below(p_parent_task_id), true)::sokka.task_spec;
    begin
        perform sokka.insert_tasks(array[v_join]);
    exception when sqlstate 'SK008' then
        select * into v_found from sokka.find_join(p_task_id, p_parent_task_id);
        if v_found.task_id is null then
            raise;
        end if;
        return query select v_found.task_id, v_found.status, v_found.total, false;
        return;
    end;
    insert into sokka.joins (task_id, parent_task_id, created_at, deadline_at, total, needed,
        max_running, released, in_flight, reduces, policy)
    values (v_join.task_id, p_parent_task_id, sokka.clock(), sokka.clock() + v_deadline, v_total,
        v_needed, p_max_running, least(v_total, p_max_running), least(v_total, p_max_running),
        p_kind is not null, p_policy);
    if v_total > 0 then
        perform sokka.insert_children(p_specs, v_join, p_max_running);
    end if;
    -- At once where there is nothing to wait for; in any isolation, for nobody else
    -- can know of it yet.
    perform sokka.advance_join(v_join.task_id, 0);
    return query select a.task_id, a.status, v_total, true
                   from sokka.all_tasks a where a.task_id = v_join.task_id;
end
$$;

-- check_fan_out: how many candidates there are.
create function sokka.check_fan_out(p_specs jsonb, p_max_running integer) returns integer
language plpgsql as $$
declare
    v_odd record;
begin
    perform sokka.check_not_null('specs', p_specs is null);
    if jsonb_typeof(p_specs) <> 'array' then
        perform sokka.refuse_argument('specs', 'must be a JSON array of objects');
    elsif jsonb_array_length(p_specs) > 10000 then
        perform sokka.refuse_argument('specs', 'must have at most 10000 members');
    elsif p_max_running < 1 then
        perform sokka.refuse_argument('max_running', 'must be at least 1');
    end if;
    select e.ordinality as ord into v_odd
      from jsonb_array_elements(p_specs) with ordinality e
     where jsonb_typeof(e.value) = 'object'
       and jsonb_strip_nulls(e.value) ?| array['run_at', 'unique_key', 'on_conflict', 'task_group_id', 'parent_task_id']
     order by e.ordinality limit 1;
    if found then
        perform sokka.refuse_spec(v_odd.ord, 'spec', 'must have no run_at, unique_key, '
            'on_conflict, task_group_id or parent_task_id: the join says when and whose');
    end if;
    return jsonb_array_length(p_specs);
end
$$;

-- needed_of: how many successes a policy needs.
create function sokka.needed_of(p_policy text, p_needed integer, p_total integer) returns integer
language plpgsql immutable as $$
begin
    if p_policy is null or p_policy not in ('settled', 'all', 'any', 'first_success', 'quorum') then
        perform sokka.refuse_argument('policy', 'must be settled, all, any, first_success or quorum');
    elsif (p_policy = 'quorum') <> (p_needed is not null) then
        perform sokka.refuse_argument('needed', 'goes with the policy quorum, and only with that');
    elsif p_needed not between 0 and p_total then
        perform sokka.refuse_argument('needed', 'must be from 0 to the number of candidates');
    end if;
    return case p_policy when 'settled' then 0 when 'all' then p_total when 'quorum' then p_needed else 1 end;
end
$$;

-- find_join: a join under this parent, by an id that its caller gave.
create function sokka.find_join(
    p_task_id uuid, p_parent_task_id uuid, out task_id uuid, out status text, out total integer
)
language plpgsql as $$
#variable_conflict use_column
begin
    select j.task_id, a.status, j.total into task_id, status, total
      from sokka.joins j join sokka.all_tasks a on a.task_id = j.task_id
     where j.task_id = p_task_id and j.parent_task_id is not distinct from p_parent_task_id;
end
$$;

-- insert_children: the candidates as tasks; those beyond p_max_running held back.
create function sokka.insert_children(
    p_specs jsonb, p_join sokka.task_spec, p_max_running integer
) returns void
language plpgsql as $$
declare
    v_specs sokka.task_spec[];
    v_max_depth constant integer := (select s.max_depth from sokka.settings s);
begin
    if p_join.depth >= v_max_depth then
        perform sokka.refuse_argument('parent_task_id',
            format('must leave room for a join and its children below it (settings.max_depth: %s)',
                v_max_depth));
    end if;
    v_specs := sokka.read_specs(p_specs);
    perform sokka.insert_tasks(array(
        select (u.ord, u.topic, u.data, u.kind, u.sub_topic, u.task_id, p_join.task_id, u.priority,
                case when u.ord > p_max_running then sokka.until_told() end, u.max_attempts,
                u.retry, u.timeout, u.expires_at, null, u.headers, u.max_losses, u.on_conflict,
                null, u.given, p_join.task_id, u.ord, p_join.depth + 1, false)::sokka.task_spec
          from unnest(v_specs) u));
end
$$;

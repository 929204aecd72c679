-- create_tasks: enqueue many tasks in one call.
-- Needs:  an array of at most 10,000 objects with create_task's argument names as
--         keys; a JSON null is as good as no key. Durations are seconds or ISO
--         8601 text, instants ISO 8601 text with an offset.
-- Leaves: all of them, or none: one bad spec refuses the call and is named by its
--         position, from 1.
-- Returns (ord, task_id, created) for each.   Raises: as create_task.
create function sokka.create_tasks(p_specs jsonb)
returns table (ord bigint, task_id uuid, created boolean)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_specs sokka.task_spec[];
begin
    perform sokka.check_not_null('specs', p_specs is null);
    if jsonb_typeof(p_specs) <> 'array' then
        perform sokka.refuse_argument('specs', 'must be a JSON array of objects');
    end if;
    if jsonb_array_length(p_specs) > 10000 then
        perform sokka.refuse_argument('specs', 'must have at most 10000 members');
    end if;
    if jsonb_array_length(p_specs) = 0 then
        return;
    end if;
    begin
        v_specs := sokka.parse_specs(p_specs);
    exception when data_exception then
        perform sokka.refuse_first_bad_spec(p_specs);
        raise;
    end;
    return query select i.ord, i.task_id, i.created from sokka.insert_tasks(v_specs) i order by i.ord;
end
$$;

-- shape_fault: null, or what is wrong with a spec's keys and text values.
create function sokka.shape_fault(p_spec jsonb) returns text
language sql immutable as $$
    select case
        when jsonb_typeof(p_spec) <> 'object' then 'must be a JSON object'
        when p_spec - array['topic', 'data', 'kind', 'sub_topic', 'task_id', 'task_group_id',
                'priority', 'run_at', 'max_attempts', 'retry', 'timeout', 'expires_at',
                'unique_key', 'headers', 'max_losses', 'on_conflict'] <> '{}'
            then 'must have no other keys than create_task has arguments'
        when jsonb_typeof(p_spec -> 'topic') is distinct from 'string' then 'must have a string as topic'
        when jsonb_typeof(p_spec -> 'kind') not in ('string', 'null') then 'must have a string as kind'
        when jsonb_typeof(p_spec -> 'sub_topic') not in ('string', 'null')
            then 'must have a string as sub_topic'
        when jsonb_typeof(p_spec -> 'unique_key') not in ('string', 'null')
            then 'must have a string as unique_key'
    end
$$;

-- parse_specs: specs with their defaults filled in. Raises 22xxx without saying
-- which one: that is found out only when it happens.
create function sokka.parse_specs(p_specs jsonb) returns sokka.task_spec[]
language plpgsql as $$
declare
    v_fault text;
begin
    select sokka.shape_fault(e) into v_fault
      from jsonb_array_elements(p_specs) e where sokka.shape_fault(e) is not null limit 1;
    if found then
        perform sokka.refuse_argument('spec', v_fault);
    end if;
    return (
        select array_agg((s.ord, s.topic, s.data, coalesce(s.kind, 'default'),
                   coalesce(s.sub_topic, 'default'), coalesce(s.task_id, sokka.new_task_id()),
                   s.task_group_id, coalesce(s.priority, 5),
                   case when s.run_at is not null then sokka.instant_of('run_at', s.run_at) end,
                   coalesce(s.max_attempts, (s.retry ->> 'max_attempts')::integer, 1),
                   case when s.retry is not null then sokka.checked_retry(s.retry) end,
                   case when s.timeout is not null then sokka.duration_of('timeout', s.timeout) end,
                   case when s.expires_at is not null
                        then sokka.instant_of('expires_at', s.expires_at) end,
                   s.unique_key, s.headers,
                   coalesce(s.max_losses, 5), coalesce(s.on_conflict, 'existing'), null::uuid,
                   s.task_id is not null)::sokka.task_spec)
          from rows from (jsonb_to_recordset(p_specs) as (
                   topic text, data jsonb, kind text, sub_topic text, task_id uuid,
                   task_group_id uuid, priority integer, run_at text, max_attempts integer,
                   retry jsonb, timeout jsonb, expires_at text, unique_key text, headers jsonb,
                   max_losses integer, on_conflict text)) with ordinality
               as s (topic, data, kind, sub_topic, task_id, task_group_id, priority, run_at,
                   max_attempts, retry, timeout, expires_at, unique_key, headers, max_losses,
                   on_conflict, ord));
end
$$;

-- refuse_first_bad_spec: parse one by one and name the first that fails.
create function sokka.refuse_first_bad_spec(p_specs jsonb) returns void
language plpgsql as $$
declare
    v_spec record;
    v_detail text;
begin
    for v_spec in select e.value, e.ordinality as ord
                    from jsonb_array_elements(p_specs) with ordinality e loop
        begin
            perform sokka.parse_specs(jsonb_build_array(v_spec.value));
        exception when data_exception then
            get stacked diagnostics v_detail = pg_exception_detail;
            if sqlstate = '22023' then
                perform sokka.refuse_spec(v_spec.ord,
                    v_detail::jsonb ->> 'argument', v_detail::jsonb ->> 'rule');
            end if;
            perform sokka.refuse_spec(v_spec.ord, 'spec', 'holds a value that cannot be read: ' || sqlerrm);
        end;
    end loop;
end
$$;

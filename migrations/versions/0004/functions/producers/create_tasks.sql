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
    v_plain record;
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
    v_plain := sokka.look_at_specs(p_specs);
    if v_plain.topics is not null then
        return query select * from sokka.insert_plain_specs(p_specs, v_plain.aside);
        perform sokka.announce(v_plain.topics);
    else
        return query select i.ord, i.task_id, i.created
                       from sokka.insert_tasks(sokka.read_specs(p_specs)) i order by i.ord;
    end if;
end
$$;

-- spec_fields: specs as they are read, in order; what is not given is null. Evaluated in
-- place: only the fields that are asked for are converted. Raises 22xxx without saying
-- which one: that is found out only when it happens.
create function sokka.spec_fields(p_specs jsonb)
returns table (
    ord bigint, topic text, data jsonb, kind text, sub_topic text, task_id uuid,
    task_group_id uuid, priority integer, run_at timestamptz, max_attempts integer, retry jsonb,
    timeout interval, expires_at timestamptz, unique_key text, headers jsonb, max_losses integer,
    on_conflict text, parent_task_id uuid
)
language sql stable as $$
    select s.ord, s.topic, s.data, s.kind, s.sub_topic, s.task_id, s.task_group_id, s.priority,
           case when s.run_at is not null then sokka.instant_of('run_at', s.run_at) end,
           coalesce(s.max_attempts, (s.retry ->> 'max_attempts')::integer),
           case when s.retry is not null then sokka.checked_retry(s.retry) end,
           case when s.timeout is not null then sokka.duration_of('timeout', s.timeout) end,
           case when s.expires_at is not null
                then sokka.instant_of('expires_at', s.expires_at) end,
           s.unique_key, s.headers, s.max_losses, s.on_conflict, s.parent_task_id
      from rows from (jsonb_to_recordset(p_specs) as (
               topic text, data jsonb, kind text, sub_topic text, task_id uuid,
               task_group_id uuid, priority integer, run_at text, max_attempts integer,
               retry jsonb, timeout jsonb, expires_at text, unique_key text, headers jsonb,
               max_losses integer, on_conflict text, parent_task_id uuid)) with ordinality
           as s (topic, data, kind, sub_topic, task_id, task_group_id, priority, run_at,
               max_attempts, retry, timeout, expires_at, unique_key, headers, max_losses,
               on_conflict, parent_task_id, ord)
$$;

-- look_at_specs: the topics of specs that all can be read, break no rule and can meet no
-- other task: no id and no unique key is given, and no parent. Null if one is not so.
-- aside: whether there are payloads that are to stand apart.
create function sokka.look_at_specs(p_specs jsonb, out topics text[], out aside boolean)
language plpgsql as $$
declare
    v_max_bytes constant integer := (select g.max_data_bytes from sokka.settings g);
begin
    if exists (
        select from jsonb_array_elements(p_specs) e
         where sokka.shape_fault(e) is not null
            or e ?| array['task_id', 'unique_key', 'parent_task_id']) then
        return;
    end if;
    select array_agg(distinct s.topic order by s.topic), bool_or(sokka.travels_badly(s.data))
      into topics, aside
      -- Fenced off, so that plain_options is given values and can be evaluated in place.
      from (select f.* from sokka.spec_fields(p_specs) f offset 0) s
    having bool_and(coalesce(octet_length(s.data::text), 0) <= v_max_bytes
        and sokka.plain_options(s.topic, s.kind, s.sub_topic, s.priority, s.run_at,
            s.max_attempts, s.timeout, s.expires_at, s.headers, s.max_losses, s.on_conflict));
exception when data_exception then
    topics := null;
end
$$;

-- insert_plain_specs: insert such specs in one pass, with no look for conflicts (2.6 us a
-- row) and ids that differ in their last digits (0.4 us a row instead of 3.3).
create function sokka.insert_plain_specs(p_specs jsonb, p_aside boolean)
returns table (ord bigint, task_id uuid, created boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := sokka.clock();
    v_ids constant text := sokka.new_task_id();
    v_head constant text := left(v_ids, 24);
    -- Random, and room above it for 10,000 more of twelve digits.
    v_tail constant bigint := 140737488355328
        | ('x' || right(v_ids, 12))::bit(48)::bigint % 140737488338944;
begin
    insert into sokka.tasks (
        task_id, task_group_id, created_at, updated_at, run_at, queue_pos, priority,
        max_attempts, max_losses, data_aside, status, topic, sub_topic, kind, expires_at, timeout,
        retry, headers, data)
    select s.id, coalesce(s.task_group_id, s.id), v_now, v_now, coalesce(s.run_at, v_now),
           nextval('sokka.queue_pos_seq'), coalesce(s.priority, 5), coalesce(s.max_attempts, 1),
           coalesce(s.max_losses, 5), s.aside,
           case when s.run_at > v_now then 'snoozed' else 'starting' end, s.topic,
           coalesce(s.sub_topic, 'default'), coalesce(s.kind, 'default'), s.expires_at,
           sokka.exact_seconds(s.timeout), s.retry, s.headers, case when not s.aside then s.data end
      from (select f.*, (v_head || to_hex(v_tail + f.ord))::uuid as id,
                   sokka.travels_badly(f.data) as aside
              from sokka.spec_fields(p_specs) f offset 0) s;
    if p_aside then
        insert into sokka.payloads (task_id, created_at, data)
        select (v_head || to_hex(v_tail + f.ord))::uuid, v_now, f.data
          from sokka.spec_fields(p_specs) f where sokka.travels_badly(f.data);
    end if;
    return query select o, (v_head || to_hex(v_tail + o))::uuid, true
                   from generate_series(1::bigint, jsonb_array_length(p_specs)) o;
end
$$;

-- read_specs: parse them; a bad one is named by its position.
create function sokka.read_specs(p_specs jsonb) returns sokka.task_spec[]
language plpgsql as $$
begin
    return sokka.parse_specs(p_specs);
exception when data_exception then
    perform sokka.refuse_first_bad_spec(p_specs);
    raise;
end
$$;

-- shape_fault: null, or what is wrong with a spec's keys and text values.
create function sokka.shape_fault(p_spec jsonb) returns text
language sql immutable as $$
    select case
        when jsonb_typeof(p_spec) <> 'object' then 'must be a JSON object'
        when p_spec - array['topic', 'data', 'kind', 'sub_topic', 'task_id', 'task_group_id',
                'priority', 'run_at', 'max_attempts', 'retry', 'timeout', 'expires_at',
                'unique_key', 'headers', 'max_losses', 'on_conflict', 'parent_task_id'] <> '{}'
            then 'must have no other keys than create_task has arguments'
        when jsonb_typeof(p_spec -> 'topic') is distinct from 'string' then 'must have a string as topic'
        when jsonb_typeof(p_spec -> 'kind') not in ('string', 'null') then 'must have a string as kind'
        when jsonb_typeof(p_spec -> 'sub_topic') not in ('string', 'null')
            then 'must have a string as sub_topic'
        when jsonb_typeof(p_spec -> 'unique_key') not in ('string', 'null')
            then 'must have a string as unique_key'
    end
$$;

-- parse_specs: specs with their defaults filled in.
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
                   s.task_group_id, coalesce(s.priority, 5), s.run_at,
                   coalesce(s.max_attempts, 1), s.retry, s.timeout, s.expires_at, s.unique_key,
                   s.headers, coalesce(s.max_losses, 5), coalesce(s.on_conflict, 'existing'),
                   null::uuid, s.task_id is not null, s.parent_task_id, null::integer,
                   case when s.parent_task_id is not null
                        then sokka.depth_below(s.parent_task_id) else 0 end,
                   false)::sokka.task_spec)
          from sokka.spec_fields(p_specs) s);
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

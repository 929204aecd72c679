-- create_tasks_like: enqueue many tasks that differ in their data alone.
-- Needs:  spec: an object as create_tasks takes it, without data and without what makes
--         a task one of a kind (task_id, unique_key, parent_task_id); data: an array of
--         at most 10,000 payloads, in which a JSON null is as good as none.
-- Leaves: one task for each payload, or none: what create_tasks would make of that many
--         copies of the spec, each with its payload. A wrong payload is named by its
--         position, from 1; a wrong spec is that of the first task.
-- Returns (ord, task_id, created) for each.   Raises: as create_tasks.
create function sokka.create_tasks_like(p_spec jsonb, p_data jsonb)
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
    perform sokka.check_not_null('spec', p_spec is null);
    perform sokka.check_not_null('data', p_data is null);
    if jsonb_typeof(p_spec) <> 'object' then
        perform sokka.refuse_argument('spec', 'must be a JSON object');
    end if;
    if p_spec ?| array['data', 'task_id', 'unique_key', 'parent_task_id'] then
        perform sokka.refuse_argument('spec',
            'must not name data, task_id, unique_key or parent_task_id');
    end if;
    if jsonb_typeof(p_data) <> 'array' then
        perform sokka.refuse_argument('data', 'must be a JSON array of payloads');
    end if;
    if jsonb_array_length(p_data) > 10000 then
        perform sokka.refuse_argument('data', 'must have at most 10000 members');
    end if;
    if jsonb_array_length(p_data) = 0 then
        return;
    end if;
    v_specs := sokka.read_specs(jsonb_build_array(p_spec));
    perform sokka.check_specs(v_specs);
    return query select * from sokka.insert_like(v_specs, p_data, sokka.look_at_payloads(p_data));
    perform sokka.announce(array[v_specs[1].topic]);
end
$$;

-- look_at_payloads: whether some are to stand apart. Refuses the first that is too large.
create function sokka.look_at_payloads(p_data jsonb) returns boolean
language plpgsql as $$
declare
    v_max_bytes constant integer := (select g.max_data_bytes from sokka.settings g);
    v_aside boolean;
    v_bad bigint;
begin
    select bool_or(sokka.travels_badly(e.value)),
           min(e.ord) filter (where octet_length(e.value::text) > v_max_bytes)
      into v_aside, v_bad
      from jsonb_array_elements(p_data) with ordinality e (value, ord);
    if v_bad is not null then
        perform sokka.refuse_spec(v_bad, 'data',
            format('must have at most %s bytes of JSON text', v_max_bytes));
    end if;
    return v_aside;
end
$$;

-- insert_like: insert a task for each payload, all by the one spec; ids as those of
-- insert_plain_specs.
create function sokka.insert_like(p_specs sokka.task_spec[], p_data jsonb, p_aside boolean)
returns table (ord bigint, task_id uuid, created boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := sokka.clock();
    v_ids constant text := sokka.new_task_id();
    v_head constant text := left(v_ids, 24);
    v_tail constant bigint := 140737488355328
        | ('x' || right(v_ids, 12))::bit(48)::bigint % 140737488338944;
begin
    insert into sokka.tasks (
        task_id, task_group_id, created_at, updated_at, run_at, queue_pos, priority,
        max_attempts, max_losses, data_aside, status, topic, sub_topic, kind, expires_at, timeout,
        retry, headers, data)
    select e.id, coalesce(s.task_group_id, e.id), v_now, v_now, coalesce(s.run_at, v_now),
           nextval('sokka.queue_pos_seq'), s.priority, s.max_attempts, s.max_losses, e.aside,
           case when s.run_at > v_now then 'snoozed' else 'starting' end, s.topic, s.sub_topic,
           s.kind, s.expires_at, s.timeout, s.retry, s.headers,
           case when not e.aside then e.data end
      from (select u.task_group_id, u.run_at, u.priority, u.max_attempts, u.max_losses, u.topic,
                   u.sub_topic, u.kind, u.expires_at, sokka.exact_seconds(u.timeout) as timeout,
                   u.retry, u.headers
              from unnest(p_specs) u offset 0) s,
           (select (v_head || to_hex(v_tail + j.ord))::uuid as id,
                   nullif(j.value, 'null') as data,
                   p_aside and sokka.travels_badly(j.value) as aside
              from jsonb_array_elements(p_data) with ordinality j (value, ord) offset 0) e;
    if p_aside then
        insert into sokka.payloads (task_id, created_at, data)
        select (v_head || to_hex(v_tail + j.ord))::uuid, v_now, j.value
          from jsonb_array_elements(p_data) with ordinality j (value, ord)
         where sokka.travels_badly(j.value);
    end if;
    return query select o, (v_head || to_hex(v_tail + o))::uuid, true
                   from generate_series(1::bigint, jsonb_array_length(p_data)) o;
end
$$;

-- Firing: whoever knows the rules of the schedules takes those that are due (their rows
-- are locked until its transaction ends), works out their ticks, and hands them in. Any
-- number of programs may do so at once.

-- due_schedules: up to p_limit schedules that are due, locked; others' are passed by.
-- serial: one tick at a time may become a task; busy: that of its last one is not final
-- yet. clock: the time by which they are due.
-- Raises: 22023, 25001.   Locks: the schedules' rows, never waiting.
create function sokka.due_schedules(p_limit integer default 500)
returns table (
    schedule_id uuid, name text, generation bigint, schedule text, anchor_at timestamptz,
    due_at timestamptz, missed text, max_catch_up integer, grace interval, busy boolean,
    repeats bigint, runs bigint, expires_at timestamptz, clock timestamptz, serial boolean
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := sokka.clock();
begin
    if p_limit is null or p_limit not between 1 and 10000 then
        perform sokka.refuse_argument('limit', 'must be from 1 to 10000');
    end if;
    perform sokka.check_isolation();
    return query
        select s.schedule_id, s.name, s.generation, s.schedule, s.anchor_at, s.next_at, s.missed,
               s.max_catch_up, s.grace,
               s.serial and exists (select from sokka.tasks t where t.task_id = s.last_task_id),
               s.repeats, s.runs, s.expires_at, v_now, s.serial
          from sokka.schedules s
         where s.look_at <= v_now and s.look_at is not null and s.paused_at is null
         order by s.look_at limit p_limit for update skip locked;
end
$$;

-- next_schedule_at: when to look again, by the database's clock; no row when nothing is
-- scheduled. One probe of an index, however many schedules there are.
-- Raises: 25006 where nothing can be fired: whoever asks is left on a server that has
--         become a standby, and would go on asking it.
create function sokka.next_schedule_at() returns table (look_at timestamptz, clock timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
begin
    if current_setting('transaction_read_only')::boolean then
        perform sokka.refuse('25006', 'schedules cannot be fired in a read-only transaction', '{}');
    end if;
    return query
        select min(s.look_at), sokka.clock() from sokka.schedules s
         where s.look_at is not null and s.paused_at is null
        having min(s.look_at) is not null;
end
$$;

-- fire_schedules: hand in what became of due schedules.
-- Needs:  an array of at most 10,000 objects: schedule_id, generation and due_at as
--         due_schedules gave them; ticks (instants, oldest first, each becomes a task);
--         next_at (null: there is no further tick); skipped (how many ticks were passed
--         over); or busy (true: look again in a second), or error (text: it cannot be
--         worked out; look again in a minute).
-- Leaves: the tasks of the ticks and the advanced schedule, or neither. A schedule whose
--         task cannot be made keeps its tick, says why, and is looked at in a minute;
--         it holds nobody up.
-- Returns for each how many tasks were made, which, and the verdict: ok, SK007 (it is not as it
--         was: somebody else has fired it, or changed it), or the SQLSTATE of the fault.
-- Raises: 22023, 25001.   Locks: the schedules' rows.
create function sokka.fire_schedules(p_fires jsonb)
returns table (ord bigint, schedule_id uuid, fired integer, verdict text, task_ids uuid[])
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_fires sokka.schedule_fire[];
    v_fire sokka.schedule_fire;
begin
    perform sokka.check_isolation();
    v_fires := sokka.read_fires(p_fires);
    if (select count(*) <> count(distinct f.schedule_id) from unnest(v_fires) f) then
        perform sokka.refuse_argument('fires', 'must name each schedule once');
    end if;
    -- In order of ids, whoever calls.
    perform from sokka.schedules s
      where s.schedule_id in (select f.schedule_id from unnest(v_fires) f)
      order by s.schedule_id for update;
    begin
        return query select * from sokka.fire_together(v_fires);
        return;
    exception when others then
        -- One of them is broken: find out which, one by one.
        null;
    end;
    foreach v_fire in array v_fires loop
        begin
            return query select * from sokka.fire_together(array[v_fire]);
        exception when others then
            perform sokka.put_off(v_fire, sqlerrm);
            return query select v_fire.ord, v_fire.schedule_id, 0, sqlstate, '{}'::uuid[];
        end;
    end loop;
end
$$;

create function sokka.read_fires(p_fires jsonb) returns sokka.schedule_fire[]
language plpgsql as $$
begin
    perform sokka.check_not_null('fires', p_fires is null);
    if jsonb_typeof(p_fires) <> 'array' or jsonb_array_length(p_fires) > 10000 then
        perform sokka.refuse_argument('fires', 'must be a JSON array of at most 10000 objects');
    end if;
    return array(
        select (f.ord, f.schedule_id, f.generation, sokka.checked_instant('due_at', f.due_at),
                array(select sokka.checked_instant('ticks', t.tick)
                        from jsonb_array_elements_text(coalesce(f.ticks, '[]')) with ordinality t (tick, n)
                       order by t.n),
                sokka.checked_instant('next_at', f.next_at), coalesce(f.skipped, 0),
                coalesce(f.busy, false), f.error)::sokka.schedule_fire
          from rows from (jsonb_to_recordset(p_fires) as (
                   schedule_id uuid, generation bigint, due_at text, ticks jsonb, next_at text,
                   skipped bigint, busy boolean, error text)) with ordinality
               as f (schedule_id, generation, due_at, ticks, next_at, skipped, busy, error, ord)
         order by f.ord);
exception when data_exception then
    perform sokka.refuse_argument('fires', 'must be as due_schedules gave them: ' || sqlerrm);
end
$$;

-- fire_together: the ticks of these schedules become tasks, and the schedules move on.
-- Their rows are locked. Ticks beyond the repeats or after the end do not fire.
create function sokka.fire_together(p_fires sokka.schedule_fire[])
returns table (ord bigint, schedule_id uuid, fired integer, verdict text, task_ids uuid[])
language plpgsql as $$
#variable_conflict use_column
declare
    v_now constant timestamptz := sokka.clock();
    v_specs sokka.task_spec[];
begin
    with mine as (
        select f.*, s.name, s.task, s.repeats, s.runs, s.expires_at
          from unnest(p_fires) f join sokka.schedules s on s.schedule_id = f.schedule_id
         where s.generation = f.generation and s.next_at = f.due_at and s.paused_at is null
    ), ticks as (
        select m.schedule_id, m.generation, m.name, m.task, t.tick
          from mine m cross join lateral unnest(m.ticks) with ordinality t (tick, n)
         where (m.repeats is null or t.n <= m.repeats - m.runs)
           and (m.expires_at is null or t.tick <= m.expires_at)
    ), fires as (
        insert into sokka.schedule_fires as d (schedule_id, generation, fire_at, fired_at, task_id, name, extra)
        select t.schedule_id, t.generation, t.tick, v_now, sokka.new_task_id(), t.name, false
          from ticks t
        on conflict do nothing
        returning d.schedule_id, d.generation, d.fire_at, d.task_id
    )
    select array_agg(sokka.spec_of_tick(t.task, t.name, d.task_id, d.fire_at)
                     order by d.fire_at, d.task_id) into v_specs
      from fires d join ticks t on t.schedule_id = d.schedule_id and t.tick = d.fire_at;
    if v_specs is not null then
        perform sokka.insert_tasks(v_specs);
    end if;
    return query
        with made as (
            select d.schedule_id, count(*) as fired, max(d.fire_at) as last_fire_at,
                   array_agg(d.task_id order by d.fire_at) as task_ids
              from sokka.schedule_fires d
             where d.task_id in (select u.task_id from unnest(v_specs) u) group by 1
        ), moved as (
            update sokka.schedules s
               set runs = s.runs + coalesce(m.fired, 0), skipped = s.skipped + f.skipped,
                   last_fire_at = coalesce(m.last_fire_at, s.last_fire_at),
                   last_task_id = coalesce(m.task_ids[m.fired], s.last_task_id),
                   next_at = n.next_at, updated_at = v_now,
                   look_at = case when f.busy then v_now + interval '1 second'
                                  when f.error is not null then v_now + interval '1 minute'
                                  else n.next_at end,
                   failing_since = case when f.error is not null then coalesce(s.failing_since, v_now) end,
                   error = f.error,
                   finished_at = case when n.next_at is null then v_now end
              from unnest(p_fires) f
              left join made m on m.schedule_id = f.schedule_id
             cross join lateral (
                select case when f.busy or f.error is not null then f.due_at
                            when o.repeats <= o.runs + coalesce(m.fired, 0) then null
                            when o.expires_at < f.next_at then null
                            else f.next_at end as next_at
                  from sokka.schedules o where o.schedule_id = f.schedule_id) n
             where s.schedule_id = f.schedule_id and s.generation = f.generation
               and s.next_at = f.due_at and s.paused_at is null
            returning s.schedule_id
        )
        select f.ord, f.schedule_id, coalesce(m.fired, 0)::integer,
               case when v.schedule_id is not null then 'ok' else 'SK007' end,
               coalesce(m.task_ids, '{}')
          from unnest(p_fires) f
          left join made m on m.schedule_id = f.schedule_id
          left join moved v on v.schedule_id = f.schedule_id
         order by f.ord;
end
$$;

-- spec_of_tick: the task of a tick: the schedule's, and in its headers whose and which.
create function sokka.spec_of_tick(
    p_task jsonb, p_name text, p_task_id uuid, p_fire_at timestamptz
) returns sokka.task_spec
language plpgsql as $$
declare
    v_spec sokka.task_spec;
begin
    v_spec := (sokka.read_specs(jsonb_build_array(p_task)))[1];
    v_spec.task_id := p_task_id;
    v_spec.headers := coalesce(v_spec.headers, '{}') || jsonb_build_object(
        'sokka-schedule', p_name, 'sokka-fire-at',
        to_char(p_fire_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
    return v_spec;
end
$$;

-- put_off: a schedule whose task cannot be made keeps its tick and says why.
create function sokka.put_off(p_fire sokka.schedule_fire, p_error text) returns void
language sql as $$
    update sokka.schedules s
       set look_at = sokka.clock() + interval '1 minute', error = left(p_error, 2000),
           failing_since = coalesce(s.failing_since, sokka.clock()), updated_at = sokka.clock()
     where s.schedule_id = p_fire.schedule_id and s.generation = p_fire.generation
       and s.next_at = p_fire.due_at
$$;

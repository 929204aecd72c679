-- What operators do with schedules.

-- schedule_named: lock the schedule of this name, or refuse.
create function sokka.schedule_named(p_name text) returns sokka.schedules
language plpgsql as $$
declare
    v_schedule sokka.schedules;
begin
    perform sokka.check_not_null('name', p_name is null);
    select * into v_schedule from sokka.schedules s where s.name = p_name for update;
    if not found then
        perform sokka.refuse('SK015', format('there is no schedule %s', quote_literal(p_name)),
            jsonb_build_object('name', p_name));
    end if;
    return v_schedule;
end
$$;

-- delete_schedule: it fires no more; the tasks that it made stay.
-- Returns whether there was one.   Raises: 22023, 55P03.   Locks: its row.
create function sokka.delete_schedule(p_name text, p_reason text default null)
returns table (deleted boolean)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
begin
    perform sokka.check_not_null('name', p_name is null);
    perform sokka.check_reason(p_reason);
    delete from sokka.schedules s where s.name = p_name;
    deleted := found;
    if deleted then
        perform sokka.record_act('delete_schedule', null, null, p_reason,
            jsonb_build_object('schedule', p_name));
    end if;
    return next;
end
$$;

-- pause_schedule: it fires no more until it is resumed. Pausing twice changes nothing.
-- Returns the schedule.   Raises: 22023, SK015, 55P03.   Locks: its row.
create function sokka.pause_schedule(p_name text, p_reason text default null)
returns setof sokka.all_schedules
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
declare
    v_schedule constant sokka.schedules := sokka.schedule_named(p_name);
begin
    perform sokka.check_reason(p_reason);
    if v_schedule.paused_at is null then
        update sokka.schedules s set paused_at = sokka.clock(), updated_at = sokka.clock()
         where s.schedule_id = v_schedule.schedule_id;
        perform sokka.record_act('pause_schedule', null, null, p_reason,
            jsonb_build_object('schedule', p_name));
    end if;
    return query select a.* from sokka.all_schedules a where a.name = p_name;
end
$$;

-- resume_schedule: it goes on. What it missed meanwhile fires or not, as it says itself.
-- Returns the schedule.   Raises: 22023, SK015, 55P03.   Locks: its row.
create function sokka.resume_schedule(p_name text, p_reason text default null)
returns setof sokka.all_schedules
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
declare
    v_schedule constant sokka.schedules := sokka.schedule_named(p_name);
begin
    perform sokka.check_reason(p_reason);
    if v_schedule.paused_at is not null then
        update sokka.schedules s
           set paused_at = null, look_at = s.next_at, updated_at = sokka.clock()
         where s.schedule_id = v_schedule.schedule_id;
        perform sokka.record_act('resume_schedule', null, null, p_reason,
            jsonb_build_object('schedule', p_name));
    end if;
    return query select a.* from sokka.all_schedules a where a.name = p_name;
end
$$;

-- trigger_schedule: an extra run now, paused or not. It moves no tick and counts as none.
-- Returns the task.   Raises: 22023, SK015, 55P03.   Locks: its row.
create function sokka.trigger_schedule(p_name text, p_reason text default null)
returns table (task_id uuid, fire_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
declare
    v_schedule constant sokka.schedules := sokka.schedule_named(p_name);
begin
    perform sokka.check_reason(p_reason);
    task_id := sokka.new_task_id();
    fire_at := sokka.clock();
    loop
        insert into sokka.schedule_fires as f
            (schedule_id, generation, fire_at, fired_at, task_id, name, extra)
        values (v_schedule.schedule_id, v_schedule.generation, trigger_schedule.fire_at,
            sokka.clock(), trigger_schedule.task_id, v_schedule.name, true)
        on conflict do nothing;
        exit when found;
        -- Another one in the same microsecond; the schedule's row is locked, so each ends
        -- this soon.
        fire_at := fire_at + interval '1 microsecond';
    end loop;
    perform sokka.insert_tasks(array[
        sokka.spec_of_tick(v_schedule.task, v_schedule.name, task_id, fire_at)]);
    perform sokka.record_act('trigger_schedule', task_id, v_schedule.task ->> 'topic', p_reason,
        jsonb_build_object('schedule', p_name));
    return next;
end
$$;

-- get_schedule: the schedule of this name; no row when there is none.   Raises: 22023.
create function sokka.get_schedule(p_name text) returns setof sokka.all_schedules
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
begin
    perform sokka.check_not_null('name', p_name is null);
    return query select a.* from sokka.all_schedules a where a.name = p_name;
end
$$;

-- list_schedules: by name; p_cursor is the last name of the page before.
-- Needs:  filters: an object of source, state (active, paused, finished, failing) and
--         prefix (of the name).
-- Raises: 22023.
create function sokka.list_schedules(
    p_filters jsonb default '{}', p_cursor text default null, p_limit integer default 100
) returns setof sokka.all_schedules
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
declare
    v_filters constant jsonb := coalesce(p_filters, '{}');
begin
    perform sokka.check_limit(p_limit);
    if jsonb_typeof(v_filters) <> 'object' or v_filters - array['source', 'state', 'prefix'] <> '{}'
       or exists (select from jsonb_each(v_filters) f where jsonb_typeof(f.value) not in ('string', 'null')) then
        perform sokka.refuse_argument('filters', 'must be an object of source, state and prefix');
    elsif v_filters ->> 'state' not in ('active', 'paused', 'finished', 'failing') then
        perform sokka.refuse_argument('filters.state', 'must be active, paused, finished or failing');
    end if;
    return query
        select a.* from sokka.all_schedules a
         where (p_cursor is null or a.name > p_cursor)
           and (v_filters ->> 'source' is null or a.source = v_filters ->> 'source')
           and (v_filters ->> 'state' is null or a.state = v_filters ->> 'state')
           and (v_filters ->> 'prefix' is null or starts_with(a.name, v_filters ->> 'prefix'))
         order by a.name limit p_limit;
end
$$;

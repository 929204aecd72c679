-- Schedules are kept under their names. A changed one is a new generation: its counters
-- and its anchor begin anew, and what the old one made is no longer its business.

-- put_schedule: make a schedule, or change the one of this name. One that says the same
-- as before stays as it is.
-- Needs:  a name; an object with schedule (text), next_at (its first tick, an instant
--         with an offset), task (an object as create_tasks takes it, with a topic) and,
--         if wanted: anchor_at (default: next_at), missed (skip, one, all), max_catch_up, grace, serial,
--         repeats, expires_at, source, description. p_overwrite: change what is there.
-- Returns its id and generation, and whether it was made or changed.
-- Raises: 22023, SK014 (there is another one, p_overwrite is false), 55P03.
-- Locks:  the schedule's row.
create function sokka.put_schedule(p_name text, p_spec jsonb, p_overwrite boolean default true)
returns table (schedule_id uuid, generation bigint, created boolean, changed boolean)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_new sokka.schedules;
    v_old sokka.schedules;
begin
    perform sokka.check_name('name', p_name);
    v_new := sokka.read_schedule(p_name, p_spec);
    loop
        insert into sokka.schedules as s select v_new.* on conflict (name) do nothing;
        if found then
            perform sokka.record_act('put_schedule', null, v_new.task ->> 'topic', null,
                jsonb_build_object('schedule', p_name, 'generation', 1));
            return query select v_new.schedule_id, v_new.generation, true, true;
            return;
        end if;
        select * into v_old from sokka.schedules s where s.name = p_name for update;
        -- Not there any more: deleted since the insert met it.
        exit when found;
    end loop;
    if v_old.spec = v_new.spec and v_old.finished_at is null then
        return query select v_old.schedule_id, v_old.generation, false, false;
        return;
    elsif v_old.finished_at is null and not coalesce(p_overwrite, true) then
        perform sokka.refuse('SK014', format('there is a schedule %s already', quote_literal(p_name)),
            jsonb_build_object('name', p_name, 'generation', v_old.generation));
    end if;
    return query select c.schedule_id, c.generation, v_old.finished_at is not null, true
                   from sokka.change_schedule(v_old, v_new) c;
    perform sokka.record_act('put_schedule', null, v_new.task ->> 'topic', null,
        jsonb_build_object('schedule', p_name, 'generation', v_old.generation + 1));
end
$$;

-- change_schedule: the next generation, in its place: whoever waits for the row finds it.
create function sokka.change_schedule(p_old sokka.schedules, p_new sokka.schedules)
returns setof sokka.schedules
language sql as $$
    update sokka.schedules s
       set generation = p_old.generation + 1, updated_at = p_new.updated_at,
           anchor_at = p_new.anchor_at, next_at = p_new.next_at, look_at = p_new.look_at,
           last_fire_at = null, last_task_id = null, finished_at = null, failing_since = null,
           error = null, expires_at = p_new.expires_at, runs = 0, skipped = 0,
           repeats = p_new.repeats, max_catch_up = p_new.max_catch_up, grace = p_new.grace,
           serial = p_new.serial, missed = p_new.missed, source = p_new.source,
           schedule = p_new.schedule, description = p_new.description, task = p_new.task,
           spec = p_new.spec
     where s.schedule_id = p_old.schedule_id
    returning s.*
$$;

-- read_schedule: a spec as a row, its defaults filled in; refuses what breaks a rule.
create function sokka.read_schedule(p_name text, p_spec jsonb) returns sokka.schedules
language plpgsql as $$
declare
    v_now constant timestamptz := sokka.clock();
    v_row sokka.schedules;
    v_fault text := sokka.schedule_fault(p_spec);
begin
    if v_fault is not null then
        perform sokka.refuse_argument(split_part(v_fault, ': ', 1), split_part(v_fault, ': ', 2));
    end if;
    v_row.schedule_id := sokka.new_task_id();
    v_row.created_at := v_now;
    v_row.updated_at := v_now;
    v_row.generation := 1;
    v_row.runs := 0;
    v_row.skipped := 0;
    v_row.name := p_name;
    v_row.schedule := p_spec ->> 'schedule';
    v_row.next_at := sokka.checked_instant('next_at', p_spec ->> 'next_at');
    v_row.look_at := v_row.next_at;
    v_row.anchor_at := coalesce(sokka.checked_instant('anchor_at', p_spec ->> 'anchor_at'), v_row.next_at);
    v_row.expires_at := sokka.checked_instant('expires_at', p_spec ->> 'expires_at');
    v_row.missed := coalesce(p_spec ->> 'missed', 'one');
    v_row.serial := coalesce((p_spec ->> 'serial')::boolean, false);
    v_row.repeats := (p_spec ->> 'repeats')::bigint;
    v_row.max_catch_up := coalesce((p_spec ->> 'max_catch_up')::integer, 100);
    v_row.grace := coalesce(sokka.checked_delay('grace', sokka.duration_of('grace', p_spec -> 'grace')),
        interval '1 minute');
    v_row.source := coalesce(p_spec ->> 'source', 'sql');
    v_row.description := p_spec ->> 'description';
    v_row.task := p_spec -> 'task';
    v_row.spec := p_spec - array['next_at', 'anchor_at'];
    -- A task that could not be made is refused now, not at its tick.
    perform sokka.check_specs(array[
        sokka.spec_of_tick(v_row.task, p_name, v_row.schedule_id, v_row.next_at)]);
    return v_row;
end
$$;

create function sokka.checked_instant(p_argument text, p_text text) returns timestamptz
language plpgsql as $$
declare
    v_at constant timestamptz := sokka.instant_of(p_argument, p_text);
begin
    if v_at < '1970-01-01 00:00+00' or v_at >= '9999-01-01 00:00+00' then
        perform sokka.refuse_argument(p_argument, 'must lie from 1970 to before 9999-01-01 UTC');
    end if;
    return v_at;
end
$$;

-- schedule_fault: null, or the first rule that a spec breaks, led by the argument.
create function sokka.schedule_fault(p_spec jsonb) returns text
language sql immutable as $$
    select case
        when jsonb_typeof(p_spec) is distinct from 'object' then 'spec: must be a JSON object'
        when p_spec - array['schedule', 'next_at', 'anchor_at', 'task', 'missed', 'max_catch_up',
                'grace', 'serial', 'repeats', 'expires_at', 'source', 'description'] <> '{}'
            then 'spec: must have no other keys than those of a schedule'
        when jsonb_typeof(p_spec -> 'schedule') is distinct from 'string'
             or length(p_spec ->> 'schedule') not between 1 and 500
            then 'schedule: must be a text of 1 to 500 characters'
        when jsonb_typeof(p_spec -> 'next_at') is distinct from 'string'
            then 'next_at: must be the instant of the first tick'
        when jsonb_typeof(p_spec -> 'task') is distinct from 'object'
            then 'task: must be a JSON object, as create_tasks takes it'
        when (p_spec -> 'task') ?| array['run_at', 'expires_at', 'task_id', 'parent_task_id', 'unique_key', 'on_conflict']
            then 'task: must have no run_at, expires_at, task_id, parent_task_id, unique_key or on_conflict'
        when coalesce(p_spec ->> 'missed', 'one') not in ('skip', 'one', 'all')
            then 'missed: must be skip, one or all'
        when coalesce(jsonb_typeof(p_spec -> 'serial'), 'null') not in ('boolean', 'null')
            then 'serial: must be true or false'
        when coalesce(jsonb_typeof(p_spec -> 'repeats'), 'null') not in ('number', 'null')
             or (p_spec -> 'repeats')::text !~ '^([1-9][0-9]{0,9}|null)$'
            then 'repeats: must be a whole number above 0'
        when coalesce(jsonb_typeof(p_spec -> 'max_catch_up'), 'null') not in ('number', 'null')
             or (p_spec -> 'max_catch_up')::text !~ '^([1-9][0-9]{0,3}|10000|null)$'
            then 'max_catch_up: must be a whole number from 1 to 10000'
        when sokka.name_fault(coalesce(p_spec ->> 'source', 'sql')) is not null
            then 'source: ' || sokka.name_fault(p_spec ->> 'source')
        when length(p_spec ->> 'description') > 2000
            then 'description: must have at most 2000 characters'
    end
$$;

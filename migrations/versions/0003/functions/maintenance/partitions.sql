-- Partitions of the append-only tables: one a week, Monday to Monday UTC, made
-- ahead. What finds no partition lands in the default one, so no finish ever fails.

create function sokka.partitioned_tables() returns table (parent text, column_name text)
language sql immutable as $$
    values ('finished_tasks', 'finished_at'), ('past_leases', 'ended_at'), ('payloads', 'created_at'),
           ('task_steps', 'created_at'), ('stream_items', 'created_at'),
           ('schedule_fires', 'fire_at')
$$;

-- week_start: the Monday 00:00 UTC at or before an instant.
create function sokka.week_start(p_at timestamptz) returns timestamptz
language sql immutable as $$
    select date_trunc('week', p_at at time zone 'UTC') at time zone 'UTC'
$$;

create function sokka.partition_name(p_parent text, p_start timestamptz) returns text
language sql stable as $$
    select p_parent || '_' || to_char(p_start at time zone 'UTC', 'YYYYMMDD')
$$;

-- make_partition: create apart, then attach. Attaching takes a lock that does not
-- wait behind readers of the parent; rows of that week that landed in the default
-- partition move along.
create function sokka.make_partition(p_parent text, p_column text, p_start timestamptz) returns void
language plpgsql as $$
declare
    v_name constant text := sokka.partition_name(p_parent, p_start);
    v_from constant text := to_char(p_start at time zone 'UTC', 'YYYY-MM-DD') || ' 00:00:00+00';
    v_to constant text := to_char((p_start at time zone 'UTC') + interval '7 days', 'YYYY-MM-DD')
        || ' 00:00:00+00';
    v_stray boolean;
begin
    execute format('create table sokka.%I (like sokka.%I including defaults including constraints)',
        v_name, p_parent);
    -- Lets ATTACH skip its scan of the new table.
    execute format('alter table sokka.%I add constraint week check (%I >= %L and %I < %L)',
        v_name, p_column, v_from, p_column, v_to);
    execute format('select exists (select from sokka.%I where %I >= %L and %I < %L)',
        p_parent || '_default', p_column, v_from, p_column, v_to) into v_stray;
    if v_stray then
        execute format('alter table sokka.%I disable trigger user', p_parent || '_default');
        execute format('with stray as (delete from sokka.%I where %I >= %L and %I < %L returning *) '
            'insert into sokka.%I select * from stray',
            p_parent || '_default', p_column, v_from, p_column, v_to, v_name);
        execute format('alter table sokka.%I enable trigger user', p_parent || '_default');
    end if;
    execute format('alter table sokka.%I attach partition sokka.%I for values from (%L) to (%L)',
        p_parent, v_name, v_from, v_to);
    execute format('alter table sokka.%I drop constraint week', v_name);
    if p_parent <> 'payloads' then
        execute format('create trigger %I before truncate on sokka.%I '
            'for each statement execute function sokka.refuse_change()', v_name || '_kept', v_name);
    end if;
    execute format('revoke all on sokka.%I from public', v_name);
end
$$;

-- wanted_weeks: this week to three weeks on, and up to ten whose rows lie in the
-- default partition.
create function sokka.wanted_weeks(p_parent text, p_column text) returns setof timestamptz
language plpgsql as $$
begin
    return query select sokka.week_start(sokka.clock() + make_interval(weeks => n))
                   from generate_series(0, 3) n;
    return query execute format('select distinct sokka.week_start(%I) from sokka.%I limit 10',
        p_column, p_parent || '_default');
end
$$;

-- prepare_partitions: make what is missing from this week to three weeks on, and
-- empty the default partitions.
-- Returns how many were made. A partition whose locks are not to be had within
-- 200 ms is left for the next time: whoever queues behind such a wait waits too.
create function sokka.prepare_partitions() returns integer
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '200ms'
as $$
declare
    v_made integer := 0;
    v_missing record;
begin
    -- One maker at a time. Whoever comes second need not look: a default partition
    -- that is being emptied is locked against readers.
    if not pg_try_advisory_xact_lock('sokka.settings'::regclass::oid::integer, 3) then
        return 0;
    end if;
    for v_missing in
        select p.parent, p.column_name, w.start
          from sokka.partitioned_tables() p
         cross join lateral sokka.wanted_weeks(p.parent, p.column_name) w (start)
         where to_regclass('sokka.' || sokka.partition_name(p.parent, w.start)) is null
         order by w.start, p.parent loop
        begin
            continue when to_regclass(
                'sokka.' || sokka.partition_name(v_missing.parent, v_missing.start)) is not null;
            perform sokka.make_partition(v_missing.parent, v_missing.column_name, v_missing.start);
            v_made := v_made + 1;
        exception when lock_not_available or duplicate_table or deadlock_detected then
            null;
        end;
    end loop;
    return v_made;
end
$$;

-- prepare_partitions_if_due: part of the sweep; a glance at the catalogue as long
-- as the partitions of the next two weeks are there, every ten seconds of a session.
create function sokka.prepare_partitions_if_due() returns void
language plpgsql as $$
declare
    v_now constant double precision := date_part('epoch', sokka.clock());
    v_looked constant double precision := sokka.scan_hint('partitions') ->> 'at';
begin
    if v_now - v_looked between 0 and 10 then
        return;
    end if;
    perform sokka.set_scan_hint('partitions', jsonb_build_object('at', v_now));
    if not pg_try_advisory_xact_lock('sokka.settings'::regclass::oid::integer, 3) then
        return;
    end if;
    if exists (
        select from sokka.partitioned_tables() p, generate_series(0, 2) n
         where to_regclass('sokka.' || sokka.partition_name(p.parent,
                   sokka.week_start(sokka.clock() + make_interval(weeks => n)))) is null)
       or exists (select from sokka.finished_tasks_default)
       or exists (select from sokka.past_leases_default)
       or exists (select from sokka.payloads_default)
       or exists (select from sokka.task_steps_default)
       or exists (select from sokka.stream_items_default)
       or exists (select from sokka.schedule_fires_default) then
        perform sokka.prepare_partitions();
    end if;
end
$$;

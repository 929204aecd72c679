-- Retention: finished tasks go when their topic's retention is over, their history
-- and payloads when nothing that is kept refers to them. Whole partitions are
-- dropped; only a topic with a shorter retention than others costs deletes.

-- past_partitions: the weekly partitions, with the end of their week.
create function sokka.past_partitions(p_parent text)
returns table (name text, upper_bound timestamptz)
language sql stable as $$
    select c.relname::text,
           (to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp at time zone 'UTC') + interval '168 hours'
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
     where i.inhparent = to_regclass('sokka.' || p_parent)
       and c.relname ~ '_[0-9]{8}$'
$$;

-- purge_finished: one bounded step on a partition of finished tasks whose week is
-- past the shortest retention: forget the ids that callers gave and drop it whole,
-- or, where another topic's rows are kept longer, delete the rows that are over.
create function sokka.purge_finished(
    p_name text, p_max_rows integer, p_now timestamptz, out action text, out rows bigint
)
language plpgsql as $$
declare
    v_default constant interval := (select s.retention from sokka.settings s);
    v_kept boolean;
begin
    execute format('select exists (select from sokka.%I f left join sokka.topics t on t.topic = f.topic
        where f.finished_at >= $1 - coalesce(t.retention, $2))', p_name)
        into v_kept using p_now, v_default;
    if v_kept then
        execute format('with over as (
                select f.ctid as place, f.task_id
                  from sokka.%1$I f left join sokka.topics t on t.topic = f.topic
                 where f.finished_at < $1 - coalesce(t.retention, $2) limit $3),
            forgotten as (delete from sokka.given_ids g using over o where g.task_id = o.task_id)
            delete from sokka.%1$I f using over o where f.ctid = o.place', p_name)
            using p_now, v_default, p_max_rows;
        get diagnostics rows = row_count;
        action := 'rows deleted';
        return;
    end if;
    execute format('delete from sokka.given_ids where task_id in (
        select g.task_id from sokka.given_ids g join sokka.%I f on f.task_id = g.task_id limit $1)',
        p_name) using p_max_rows;
    get diagnostics rows = row_count;
    action := 'ids forgotten';
    if rows = 0 then
        execute format('drop table sokka.%I', p_name);
        action := 'dropped';
    end if;
end
$$;

-- still_needed: whether a partition holds what a kept task's history or payload is
-- made of.
create function sokka.still_needed(p_name text) returns boolean
language plpgsql as $$
declare
    v_needed boolean;
begin
    execute format('select exists (select from sokka.%1$I p
            where exists (select from sokka.tasks t where t.task_id = p.task_id)
               or exists (select from sokka.finished_tasks f where f.task_id = p.task_id))',
        p_name) into v_needed;
    return v_needed;
end
$$;

-- apply_retention: one bounded step; call it until all it returns is busy, or nothing. A finished
-- task is kept for its topic's retention at least, and until its week is past.
-- Returns what was done to which partition; 'busy': somebody reads it, try later.
--         Nothing while another caller is at it.
-- Raises: 22023.   Locks: a dropped partition and its parent, waiting 200 ms at most.
create function sokka.apply_retention(p_max_rows integer default 10000)
returns table (partition text, action text, rows bigint)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '200ms'
as $$
declare
    v_now constant timestamptz := sokka.clock();
    v_shortest constant interval := (select least(s.retention, min(t.retention))
        from sokka.settings s left join sokka.topics t on true group by s.retention);
    v_past record;
begin
    perform sokka.check_not_null('max_rows', p_max_rows is null);
    if p_max_rows not between 1 and 100000 then
        perform sokka.refuse_argument('max_rows', 'must be from 1 to 100000');
    end if;
    -- One caller at a time: the others would wait for partitions that are gone.
    if not pg_try_advisory_xact_lock('sokka.settings'::regclass::oid::integer, 2) then
        return;
    end if;
    for v_past in
        select o.parent, p.name
          from (values ('finished_tasks'), ('past_leases'), ('payloads'), ('task_steps'),
                       ('stream_items'), ('schedule_fires')) o (parent),
               sokka.past_partitions(o.parent) p
         where p.upper_bound <= v_now - v_shortest
         order by o.parent, p.upper_bound loop
        partition := v_past.name;
        begin
            if v_past.parent = 'finished_tasks' then
                select f.action, f.rows into action, rows
                  from sokka.purge_finished(v_past.name, p_max_rows, v_now) f;
            elsif sokka.still_needed(v_past.name) then
                continue;
            else
                execute format('drop table sokka.%I', v_past.name);
                action := 'dropped';
                rows := 0;
            end if;
        exception when lock_not_available or deadlock_detected then
            action := 'busy';
            rows := 0;
            return next;
            continue;
        end;
        continue when action = 'rows deleted' and rows = 0;
        return next;
        return;
    end loop;
    return query select * from sokka.forget_relations(p_max_rows, v_now - v_shortest);
end
$$;

-- forget_relations: the joins and streams of tasks that are gone, a bounded step.
create function sokka.forget_relations(p_max_rows integer, p_before timestamptz)
returns table (partition text, action text, rows bigint)
language plpgsql as $$
begin
    action := 'rows deleted';
    foreach partition in array array['joins', 'streams'] loop
        execute format('delete from sokka.%1$I where task_id in (
            select r.task_id from sokka.%1$I r
             where r.created_at < $2
               and not exists (select from sokka.tasks t where t.task_id = r.task_id)
               and not exists (select from sokka.finished_tasks f where f.task_id = r.task_id)
             limit $1)', partition) using p_max_rows, p_before;
        get diagnostics rows = row_count;
        if rows > 0 then
            return next;
        end if;
    end loop;
end
$$;

-- Watching: whoever waits for news of a task is notified of its end, its progress and
-- its stream. Only a hint, as with idle workers: the waiter looks again by itself.

-- tell_watchers: notify those who watch any of these tasks, when the transaction commits.
create function sokka.tell_watchers(p_task_ids uuid[]) returns void
language plpgsql as $$
declare
    v_hashes text[];
    v_hash text;
begin
    if not (select s.notify from sokka.settings s) then
        return;
    end if;
    select array_agg(distinct substr(md5(w.task_id::text), 1, 8)) into v_hashes
      from sokka.watched_tasks w
     where w.task_id = any (p_task_ids) and w.watched_until > sokka.clock();
    if cardinality(v_hashes) > 20 then
        v_hashes := array['*'];
    end if;
    foreach v_hash in array coalesce(v_hashes, '{}') loop
        perform pg_notify('sokka', 'd' || v_hash);
    end loop;
end
$$;

-- watch_tasks: the caller wants to be notified of news of these tasks until clock +
-- p_for: on the channel named like the schema, 'd' and the first 8 digits of the id's
-- MD5 hash ('d*': many at once, look everywhere). Commit, look once more, then wait.
-- Returns how many were marked.   Raises: 22023.
create function sokka.watch_tasks(p_watcher text, p_task_ids uuid[], p_for interval) returns integer
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_for constant interval := sokka.checked_lease('for', p_for);
    v_until timestamptz;
    v_marked integer;
begin
    perform sokka.check_name('watcher', p_watcher);
    perform sokka.check_not_null('for', p_for is null);
    perform sokka.check_ids(p_task_ids);
    v_until := sokka.clock() + v_for;
    insert into sokka.watched_tasks as w (task_id, watcher, watched_until)
    select distinct u.id, p_watcher, v_until from unnest(p_task_ids) u (id) order by 1
    on conflict (task_id, watcher) do update set watched_until = excluded.watched_until;
    get diagnostics v_marked = row_count;
    return v_marked;
end
$$;

-- unwatch_tasks: no more news of these (null: of any). Marks that others left behind
-- go with them.   Raises: 22023.
create function sokka.unwatch_tasks(p_watcher text, p_task_ids uuid[] default null) returns void
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
begin
    perform sokka.check_name('watcher', p_watcher);
    if p_task_ids is not null then
        perform sokka.check_ids(p_task_ids);
        delete from sokka.watched_tasks w where w.watcher = p_watcher and w.task_id = any (p_task_ids);
    else
        delete from sokka.watched_tasks w
         where w.watcher = p_watcher or w.watched_until < sokka.clock() - interval '1 day';
    end if;
end
$$;

create function sokka.check_ids(p_task_ids uuid[]) returns void
language plpgsql as $$
begin
    perform sokka.check_not_null('task_ids', p_task_ids is null);
    if array_ndims(p_task_ids) > 1 or cardinality(p_task_ids) > 10000 then
        perform sokka.refuse_argument('task_ids', 'must be a list of at most 10000 ids');
    end if;
    perform sokka.check_not_null('task_ids', array_position(p_task_ids, null) is not null);
end
$$;

-- peek_tasks: how these tasks stand, without their payloads; ids that are unknown are
-- missing. stream_seq and stream_read: the last number written and read, of a stream.
-- Raises: 22023.
create function sokka.peek_tasks(p_task_ids uuid[])
returns table (
    task_id uuid, status text, record_ver bigint, attempt integer, progress jsonb,
    cancel_requested_at timestamptz, updated_at timestamptz, finished_at timestamptz,
    stream_seq bigint, stream_read bigint
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    perform sokka.check_ids(p_task_ids);
    return query
        select a.task_id, a.status, a.record_ver, a.attempt, a.progress, a.cancel_requested_at,
               a.updated_at, a.finished_at, s.last_seq, s.consumed_seq
          from (select t.task_id, t.status, t.record_ver, t.attempt, t.progress,
                       t.cancel_requested_at, t.updated_at, null::timestamptz as finished_at
                  from sokka.tasks t where t.task_id = any (p_task_ids)
                union all
                select f.task_id, f.status, f.record_ver, f.attempt, f.progress,
                       f.cancel_requested_at, f.finished_at, f.finished_at
                  from sokka.finished_tasks f where f.task_id = any (p_task_ids)) a
          left join sokka.streams s on s.task_id = a.task_id;
end
$$;

-- terminate_task: the work is done.
-- Needs:  a live lease (task, pid, token).   Leaves: terminated, with the result.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row.
create function sokka.terminate_task(
    p_task_id uuid, p_pid text, p_token bigint, p_result jsonb default null
) returns setof sokka.task_outcome
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_task sokka.locked_task;
begin
    perform sokka.check_json('result', p_result, (select s.max_data_bytes from sokka.settings s));
    v_task := sokka.lock_for_ending(p_task_id, p_pid, p_token);
    return next sokka.finish_task(v_task, 'terminated', p_result, null, sokka.clock(), true);
end
$$;

-- terminate_batch: as terminate_tasks, for callers that have checked the arguments.
create function sokka.terminate_batch(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_results jsonb[], p_ords bigint[]
) returns setof sokka.verdict
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_now timestamptz;
    v_ended uuid[];
    v_ords bigint[];
    v_expiries timestamptz[];
    v_results jsonb[];
    v_by_id jsonb;
begin
    -- A look-up by key for each pair, in order of ids. As a plain join it was planned
    -- from the running tasks outwards, comparing each with each member: 45 ms at 500
    -- members against 2.
    select array_agg(l.task_id), array_agg(m.ord), array_agg(l.lease_expires_at), array_agg(m.result)
      into v_ended, v_ords, v_expiries, v_results
      from (select u.* from unnest(p_task_ids, p_tokens, p_ords, p_results)
                            u (task_id, token, ord, result)
             order by u.task_id, u.ord) m
     cross join lateral (
        select t.task_id, t.lease_expires_at from sokka.tasks t
         where t.task_id = m.task_id and t.token = m.token
           and t.pid = p_pid and t.status = 'running'
           for update skip locked) l;
    v_now := sokka.clock();
    -- Drop the expired; of a task named twice keep the first.
    select coalesce(array_agg(l.task_id), '{}'), coalesce(array_agg(l.ord), '{}'),
           jsonb_object_agg(l.task_id, l.result) filter (where l.result is not null)
      into v_ended, v_ords, v_by_id
      from (select distinct on (u.task_id) u.task_id, u.ord, u.result
              from unnest(v_ended, v_ords, v_expiries, v_results) u (task_id, ord, expires_at, result)
             where u.expires_at > v_now
             order by u.task_id, u.ord) l;
    perform sokka.finish_tasks(v_ended, 'terminated', v_by_id, null, v_now, true);
    return query select m.ord, m.task_id, 'ok', null::jsonb
                   from unnest(v_ended, v_ords) m (task_id, ord);
    return query select * from sokka.judge_missed(p_pid, p_task_ids, p_tokens, p_ords, v_ords, v_now);
end
$$;

create function sokka.check_results(p_argument text, p_task_ids uuid[], p_results jsonb[]) returns void
language plpgsql as $$
declare
    v_max_bytes constant integer := (select s.max_data_bytes from sokka.settings s);
    v_result jsonb;
begin
    if p_results is null then
        return;
    end if;
    if cardinality(p_results) <> cardinality(p_task_ids) then
        perform sokka.refuse_argument(p_argument, 'must hold one value for each task id');
    end if;
    foreach v_result in array p_results loop
        perform sokka.check_json(p_argument, v_result, v_max_bytes);
    end loop;
end
$$;

-- terminate_tasks: end a batch as terminated.
-- Needs:  one owner, ids, tokens and results of the same length (results null: none).
-- Returns one row for each member: verdict 'ok' or the SQLSTATE of its refusal; of a
--         task named twice the second is SK002.
-- Raises: 22023, 25001.   Locks: the rows, in order of ids, never waiting (55P03).
create function sokka.terminate_tasks(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_results jsonb[] default null
) returns setof sokka.verdict
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
as $$
begin
    perform sokka.check_batch(p_pid, p_task_ids, p_tokens);
    perform sokka.check_results('results', p_task_ids, p_results);
    return query select * from sokka.terminate_batch(p_pid, p_task_ids, p_tokens, p_results,
        array(select o.ord from generate_series(1::bigint, cardinality(p_task_ids)) o (ord)));
end
$$;

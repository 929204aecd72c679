-- terminate_task: the work is done.
-- Needs:  a live lease (task, pid, token).   Leaves: terminated, with the result.
-- Raises: 22023, 25001, SK001-SK006, 55P03.  Locks:  the task's row.
create function sokka.terminate_task(
    p_task_id uuid, p_pid text, p_token bigint, p_result jsonb default null
) returns setof sokka.task_outcome
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
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
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_results jsonb[], p_ords integer[]
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
    v_ords integer[];
    v_expiries timestamptz[];
    v_results jsonb;
begin
    -- A look-up by key for each pair, in order of ids. As a plain join it was planned
    -- from the running tasks outwards, comparing each with each member: 45 ms at 500
    -- members against 2.
    select array_agg(l.task_id), array_agg(m.ord), array_agg(l.lease_expires_at)
      into v_ended, v_ords, v_expiries
      from (select u.* from unnest(p_task_ids, p_tokens, p_ords) u (task_id, token, ord)
             order by u.task_id, u.ord) m
     cross join lateral (
        select t.task_id, t.lease_expires_at from sokka.tasks t
         where t.task_id = m.task_id and t.token = m.token
           and t.pid = p_pid and t.status = 'running'
           for update skip locked) l;
    v_now := sokka.clock();
    -- Drop the expired; of a task named twice keep the first.
    select coalesce(array_agg(l.task_id), '{}'), coalesce(array_agg(l.ord), '{}')
      into v_ended, v_ords
      from (select distinct on (u.task_id) u.task_id, u.ord
              from unnest(v_ended, v_ords, v_expiries) u (task_id, ord, expires_at)
             where u.expires_at > v_now
             order by u.task_id, u.ord) l;
    if p_results is not null then
        select jsonb_object_agg(m.task_id, m.result) into v_results
          from unnest(p_task_ids, p_results, p_ords) m (task_id, result, ord)
         where m.ord = any (v_ords) and m.result is not null;
    end if;
    perform sokka.finish_tasks(v_ended, 'terminated', v_results, null, v_now, true);
    return query
        select m.ord, m.task_id, 'ok', null::jsonb
          from unnest(p_task_ids, p_ords) m (task_id, ord) where m.ord = any (v_ords);
    if cardinality(v_ords) < cardinality(p_task_ids) then
        return query
            select v.* from (
                select array_agg(m.ord) as ords, array_agg(m.task_id) as task_ids,
                       array_agg(m.token) as tokens
                  from unnest(p_task_ids, p_tokens, p_ords) m (task_id, token, ord)
                 where m.ord <> all (v_ords)) n,
                sokka.judge_missed(p_pid, n.task_ids, n.tokens, n.ords, v_now) v;
    end if;
end
$$;

create function sokka.check_results(p_task_ids uuid[], p_results jsonb[]) returns void
language plpgsql as $$
declare
    v_max_bytes constant integer := (select s.max_data_bytes from sokka.settings s);
    v_result jsonb;
begin
    if p_results is null then
        return;
    end if;
    if cardinality(p_results) <> cardinality(p_task_ids) then
        perform sokka.refuse_argument('results', 'must hold one result for each task id');
    end if;
    foreach v_result in array p_results loop
        perform sokka.check_json('results', v_result, v_max_bytes);
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
as $$
begin
    perform sokka.check_batch(p_pid, p_task_ids, p_tokens);
    perform sokka.check_results(p_task_ids, p_results);
    return query select * from sokka.terminate_batch(p_pid, p_task_ids, p_tokens, p_results,
        array(select o.ord from generate_series(1, cardinality(p_task_ids)) o (ord)));
end
$$;

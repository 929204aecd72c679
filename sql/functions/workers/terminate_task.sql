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
    if p_result is not null then
        perform sokka.check_json('result', p_result, (select s.max_data_bytes from sokka.settings s));
    end if;
    v_task := sokka.lock_for_ending(p_task_id, p_pid, p_token);
    return next sokka.finish_task(v_task, 'terminated', p_result, null, sokka.clock(), true);
end
$$;

-- end_leases: terminate those of a batch that this owner holds; which they were.
-- p_ords: their positions (null: from 1).
create function sokka.end_leases(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_results jsonb[], p_ords bigint[],
    out task_ids uuid[], out ords bigint[], out ended_at timestamptz
)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_rows tid[];
    v_expiries timestamptz[];
    v_first_expiry timestamptz;
    v_results jsonb;
    v_related boolean;
begin
    -- A look-up by key for each pair, in order of ids. As a plain join it was planned
    -- from the running tasks outwards, comparing each with each member: 45 ms at 500
    -- members against 2. Of a pair named twice the first counts.
    select coalesce(array_agg(l.task_id), '{}'), coalesce(array_agg(m.ord), '{}'),
           array_agg(l.ctid), array_agg(l.lease_expires_at), min(l.lease_expires_at),
           bool_or(l.related),
           jsonb_object_agg(l.task_id, m.result) filter (where m.result is not null)
      into task_ids, ords, v_rows, v_expiries, v_first_expiry, v_related, v_results
      from (select distinct on (u.task_id, u.token)
                   u.task_id, u.token, u.result, coalesce(u.given, u.place) as ord
              from unnest(p_task_ids, p_tokens, p_results, p_ords)
                   with ordinality u (task_id, token, result, given, place)
             order by u.task_id, u.token, u.given, u.place) m
     cross join lateral (
        select t.task_id, t.ctid, t.lease_expires_at,
               t.is_join or t.parent_task_id is not null as related
          from sokka.tasks t
         where t.task_id = m.task_id and t.token = m.token
           and t.pid = p_pid and t.status = 'running'
           for update skip locked) l;
    ended_at := sokka.clock();
    if v_first_expiry <= ended_at then
        select coalesce(array_agg(u.task_id), '{}'), coalesce(array_agg(u.ord), '{}'),
               array_agg(u.place)
          into task_ids, ords, v_rows
          from unnest(task_ids, ords, v_rows, v_expiries) u (task_id, ord, place, expires_at)
         where u.expires_at > ended_at;
    end if;
    if task_ids <> '{}' then
        perform sokka.finish_rows(task_ids, 'terminated', v_results, null, null, ended_at, true,
            0, true, v_related, v_rows);
    end if;
end
$$;

-- terminate_batch: as terminate_tasks, for callers that have checked the arguments.
create function sokka.terminate_batch(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_results jsonb[], p_ords bigint[] default null
) returns setof sokka.verdict
language plpgsql as $$
declare
    v_ended constant record := sokka.end_leases(p_pid, p_task_ids, p_tokens, p_results, p_ords);
begin
    return query select m.ord, m.task_id, 'ok', null::jsonb
                   from unnest(v_ended.task_ids, v_ended.ords) m (task_id, ord);
    if cardinality(v_ended.ords) < cardinality(p_task_ids) then
        return query select * from sokka.judge_missed(
            p_pid, p_task_ids, p_tokens, p_ords, v_ended.ords, v_ended.ended_at);
    end if;
end
$$;

create function sokka.check_results(p_argument text, p_task_ids uuid[], p_results jsonb[]) returns void
language plpgsql as $$
declare
    v_max_bytes integer;
    v_result jsonb;
begin
    if p_results is null then
        return;
    end if;
    v_max_bytes := (select s.max_data_bytes from sokka.settings s);
    if cardinality(p_results) <> cardinality(p_task_ids) then
        perform sokka.refuse_argument(p_argument, 'must hold one value for each task id');
    end if;
    foreach v_result in array p_results loop
        if octet_length(v_result::text) > v_max_bytes then
            perform sokka.check_json(p_argument, v_result, v_max_bytes);
        end if;
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
    if p_results is not null then
        perform sokka.check_results('results', p_task_ids, p_results);
    end if;
    return query select * from sokka.terminate_batch(p_pid, p_task_ids, p_tokens, p_results);
end
$$;

-- judge_missed: why members of a batch are not among those done: one row for each,
-- with the SQLSTATE of the refusal and how the task stands; 55P03 where only
-- somebody else's lock stood in the way, which is no loss. p_ords: their positions (null:
-- from 1).
create function sokka.judge_missed(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_ords bigint[], p_done bigint[],
    p_now timestamptz
) returns setof sokka.verdict
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
    v_ords bigint[] := p_ords;
    -- By position: searching an array for each member would be quadratic.
    v_done boolean[];
    v_ord bigint;
begin
    if cardinality(p_done) = cardinality(p_task_ids) then
        return;
    end if;
    if v_ords is null then
        v_ords := array(select o from generate_series(1::bigint, cardinality(p_task_ids)) o);
    end if;
    v_done := array_fill(false, array[(select max(o)::integer from unnest(v_ords) o)]);
    foreach v_ord in array p_done loop
        v_done[v_ord] := true;
    end loop;
    return query
        select m.ord, m.task_id,
               case when l.task_id is not null then coalesce(sokka.lease_fault(
                        (l.task).status, (l.task).pid, (l.task).token,
                        (l.task).lease_expires_at, p_pid, m.token, p_now), '55P03')
                    when f.task_id is not null then 'SK002'
                    else 'SK001' end,
               case when l.task_id is not null then sokka.found(l.task, m.expected)
                    else jsonb_build_object('task_id', m.task_id, 'status', f.status,
                        'pid', f.pid, 'token', f.token, 'record_ver', f.record_ver,
                        'error_code', f.error ->> 'code', 'expected', m.expected) end
          from (select u.ord, u.task_id, u.token,
                       jsonb_build_object('pid', p_pid, 'token', u.token) as expected
                  from unnest(v_ords, p_task_ids, p_tokens) u (ord, task_id, token)
                 where not v_done[u.ord::integer]) m
          left join lateral (
            select k.task_id, k as task from sokka.locked_task k
             where k.task_id = m.task_id offset 0) l on true
          left join lateral (
            select g.task_id, g.status, g.pid, g.token, g.record_ver, g.error
              from sokka.finished_tasks g
             where g.task_id = m.task_id and l.task_id is null limit 1) f on true;
end
$$;

create function sokka.check_batch(p_pid text, p_task_ids uuid[], p_tokens bigint[]) returns void
language plpgsql as $$
begin
    if p_pid is null or p_task_ids is null or p_tokens is null then
        perform sokka.check_not_null('pid', p_pid is null);
        perform sokka.check_not_null('task_ids', p_task_ids is null);
        perform sokka.check_not_null('tokens', p_tokens is null);
    end if;
    if coalesce(array_ndims(p_task_ids), 1) <> 1 or coalesce(array_ndims(p_tokens), 1) <> 1
       or cardinality(p_task_ids) > 10000 then
        perform sokka.refuse_argument('task_ids', 'must be a list of at most 10000 ids');
    end if;
    if cardinality(p_task_ids) <> cardinality(p_tokens) then
        perform sokka.refuse_argument('tokens', 'must hold one token for each task id');
    end if;
    if array_position(p_task_ids, null) is not null or array_position(p_tokens, null) is not null then
        perform sokka.refuse_argument('task_ids and tokens', 'must not have null members');
    end if;
    if sokka.old_snapshot() then
        perform sokka.check_isolation();
    end if;
end
$$;

-- extend_leases: extend all leases of one owner in one statement.
-- Returns one row for each member: verdict 'ok', or the SQLSTATE of its refusal
-- (55P03: another call holds the row, try again; never a loss).
-- Raises: 22023, 25001.   Locks: the rows, in order of ids, never waiting.
create function sokka.extend_leases(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_lease interval default null
) returns table (
    ord bigint, task_id uuid, verdict text, lease_expires_at timestamptz, cancel_requested boolean
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_lease constant interval := sokka.checked_lease('lease', p_lease);
    v_now timestamptz;
    v_locked uuid[];
    v_ords bigint[];
begin
    perform sokka.check_batch(p_pid, p_task_ids, p_tokens);
    select array_agg(l.task_id), array_agg(m.ord) into v_locked, v_ords
      from (select u.* from unnest(p_task_ids, p_tokens) with ordinality u (task_id, token, ord)
             order by u.task_id) m
     cross join lateral (
        select t.task_id from sokka.tasks t
         where t.task_id = m.task_id and t.token = m.token
           and t.pid = p_pid and t.status = 'running'
           for no key update skip locked) l;
    v_now := sokka.clock();
    update sokka.tasks t
       set lease_expires_at = greatest(t.lease_expires_at,
               v_now + coalesce(v_lease, sokka.lease_of(t.topic))),
           record_ver = t.record_ver + 1
     where t.task_id = any (v_locked) and t.lease_expires_at > v_now;
    -- The rows are still locked: what is live now was extended above.
    select array_agg(m.ord) into v_ords
      from unnest(v_locked, v_ords) m (task_id, ord)
     cross join lateral (
        select k.lease_expires_at from sokka.tasks k where k.task_id = m.task_id offset 0) t
     where t.lease_expires_at > v_now;
    v_ords := coalesce(v_ords, '{}');
    return query
        select o, t.task_id, 'ok', t.lease_expires_at, t.cancel_requested_at is not null
          from unnest(v_ords) o
         cross join lateral (
            select k.task_id, k.lease_expires_at, k.cancel_requested_at
              from sokka.tasks k where k.task_id = p_task_ids[o::integer] offset 0) t;
    return query
        select v.ord, v.task_id, v.verdict, null::timestamptz, null::boolean
          from sokka.judge_missed(p_pid, p_task_ids, p_tokens, null, v_ords, v_now) v;
end
$$;

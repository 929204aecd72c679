-- exchange_leases: settle_tasks, then reserve_tasks, with one commit for both: what a worker
-- sends. Either half may be empty (null or empty arrays, no tasks).
-- Returns the verdicts (ord from 1; of the task only its id), then one row for each leased
--         task (verdict 'reserved', ord null), its columns those of leased_task.
-- Raises: 22023, 25001: nothing is settled and nothing reserved.
-- Locks:  the rows that it settles and those that it returns, never waiting.
--
-- The leases go from the claim to the caller through as few hands as can be: each function
-- that hands rows on costs 1.5 us a task, and a row as one value in a column, from which the
-- caller takes its fields, another 1.5.
create function sokka.exchange_leases(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[],
    p_topics text[], p_max_tasks integer, p_lease interval default null,
    p_limits integer[] default null
) returns table (
    ord bigint, verdict text, detail jsonb,
    task_id uuid, task_group_id uuid, topic text, sub_topic text, kind text, data jsonb,
    headers jsonb, pid text, token bigint, lease_expires_at timestamptz, attempt integer,
    failures integer, max_attempts integer, timeout interval, checkpoint jsonb,
    record_ver bigint, created_at timestamptz, cancel_requested_at timestamptz,
    priority integer, losses integer, leased_at timestamptz, expires_at timestamptz,
    parent_task_id uuid, candidate integer
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_lease constant interval := case
        when p_lease between interval '1 millisecond' and interval '1 year' then sokka.exact_seconds(p_lease)
        when p_lease is not null then sokka.checked_lease('lease', p_lease) end;
    -- With nothing to reserve there is nothing to check.
    v_want integer := case when cardinality(p_topics) > 0 then p_max_tasks end;
    v_swept boolean := false;
    v_places tid[];
begin
    if p_max_tasks < 0 then
        perform sokka.refuse_argument('max_tasks', 'must not be negative');
    end if;
    -- What a worker sends as a rule is seen to be right in one expression.
    if v_want > 0 and not (
            cardinality(p_topics) = 1 and sokka.plain_name(p_topics[1]) and sokka.plain_name(p_pid)
            and (p_limits is null or cardinality(p_limits) = 1 and p_limits[1] >= 0)
            and v_want <= 10000 and not sokka.old_snapshot()) then
        perform sokka.check_reserve(p_topics, p_limits, p_pid, p_max_tasks);
    end if;
    if p_task_ids is not null then
        perform sokka.check_settle(p_pid, p_task_ids, p_tokens, p_verbs, p_args);
        return query
            select s.ord, s.verdict, s.detail, s.task_id,
                   null::uuid, null::text, null::text, null::text, null::jsonb, null::jsonb,
                   null::text, null::bigint, null::timestamptz, null::integer, null::integer,
                   null::integer, null::interval, null::jsonb, null::bigint, null::timestamptz,
                   null::timestamptz, null::integer, null::integer, null::timestamptz,
                   null::timestamptz, null::uuid, null::integer
              from sokka.settle_batch(p_pid, p_task_ids, p_tokens, p_verbs, p_args) s;
    end if;
    if v_want > 0 and cardinality(p_topics) > 1 then
        return query select null::bigint, 'reserved', null::jsonb, g.*
                       from sokka.reserve_in_turn(p_topics, p_limits, p_pid, v_want, v_lease) g;
        return;
    end if;
    v_want := case when v_want > 0 then least(v_want, p_limits[1]) end;
    while v_want > 0 loop
        v_places := sokka.claim(p_topics[1], v_want);
        if v_places <> '{}' then
            return query select null::bigint, 'reserved', null::jsonb, g.*
                           from sokka.grant_leases(v_places, p_pid,
                                    coalesce(v_lease, sokka.lease_of(p_topics[1])), true) g;
        end if;
        v_want := v_want - cardinality(v_places);
        -- Come out short: a sweep, and once more.
        exit when v_swept or v_want = 0 or not sokka.sweep_if_due();
        v_swept := true;
    end loop;
end
$$;

-- reserve_in_turn: from several topics: each gets an equal share first, and what a topic
-- leaves over goes to the others. Which one begins changes with every call, so that single
-- tasks are taken in turn too. When that comes out short, a sweep, and once more round.
create function sokka.reserve_in_turn(
    p_topics text[], p_limits integer[], p_pid text, p_max_tasks integer, p_lease interval
) returns setof sokka.leased_task
language plpgsql as $$
declare
    v_count constant integer := cardinality(p_topics);
    v_turn constant integer := sokka.next_turn(v_count);
    v_left integer := p_max_tasks;
    v_taken integer[] := array_fill(0, array[v_count]);
    v_want integer;
    v_places tid[];
    v_pos integer;
begin
    for v_round in 1..4 loop
        exit when v_left <= 0 or (v_round = 3 and not sokka.sweep_if_due());
        for v_step in 0..v_count - 1 loop
            v_pos := 1 + (v_turn + v_step) % v_count;
            v_want := case when v_round % 2 = 1
                then (v_left + v_count - v_step - 1) / (v_count - v_step) else v_left end;
            v_want := least(v_want, p_limits[v_pos] - v_taken[v_pos]);
            continue when v_want <= 0;
            v_places := sokka.claim(p_topics[v_pos], v_want);
            continue when v_places = '{}';
            v_taken[v_pos] := v_taken[v_pos] + cardinality(v_places);
            v_left := v_left - cardinality(v_places);
            return query select * from sokka.grant_leases(v_places, p_pid,
                coalesce(p_lease, sokka.lease_of(p_topics[v_pos])), true);
        end loop;
    end loop;
end
$$;

-- reserve_batch: for a call that began before the migration to revision 0004: it goes on in
-- its old body, which calls this. The revision after that may drop it.
create function sokka.reserve_batch(
    p_topics text[], p_limits integer[], p_pid text, p_max integer, p_lease interval
) returns setof sokka.leased_task
language sql as $$
    select e.task_id, e.task_group_id, e.topic, e.sub_topic, e.kind, e.data, e.headers, e.pid,
           e.token, e.lease_expires_at, e.attempt, e.failures, e.max_attempts, e.timeout,
           e.checkpoint, e.record_ver, e.created_at, e.cancel_requested_at, e.priority,
           e.losses, e.leased_at, e.expires_at, e.parent_task_id, e.candidate
      from sokka.exchange_leases(p_pid, null, null, null, null, p_topics, p_max, p_lease, p_limits) e
$$;

-- settle_and_reserve: exchange_leases with each lease as one value.
-- Returns the verdicts (ord from 1, lease null), then one row for each leased task
--         (verdict 'reserved', lease set).
create function sokka.settle_and_reserve(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[],
    p_topics text[], p_max_tasks integer, p_lease interval default null,
    p_limits integer[] default null
) returns table (ord bigint, task_id uuid, verdict text, detail jsonb, lease sokka.leased_task)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
begin
    return query
        select e.ord, e.task_id, e.verdict, e.detail, case when e.verdict = 'reserved' then (
               e.task_id, e.task_group_id, e.topic, e.sub_topic, e.kind, e.data, e.headers,
               e.pid, e.token, e.lease_expires_at, e.attempt, e.failures, e.max_attempts,
               e.timeout, e.checkpoint, e.record_ver, e.created_at, e.cancel_requested_at,
               e.priority, e.losses, e.leased_at, e.expires_at, e.parent_task_id, e.candidate
               )::sokka.leased_task end
          from sokka.exchange_leases(p_pid, p_task_ids, p_tokens, p_verbs, p_args, p_topics,
                   p_max_tasks, p_lease, p_limits) e;
end
$$;

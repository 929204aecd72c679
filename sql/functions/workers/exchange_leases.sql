-- exchange_leases: exchange_work with a row for each settlement.
-- Returns the verdicts (ord from 1; of the task only its id), then one row for each leased
--         task (verdict 'reserved', ord null), its columns those of leased_task.
-- Raises: 22023, 25001: nothing is settled and nothing reserved.
-- Locks:  the rows that it settles and those that it returns, never waiting.
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
begin
    if p_task_ids is not null then
        return query
            select s.ord, s.verdict, s.detail, s.task_id,
                   null::uuid, null::text, null::text, null::text, null::jsonb, null::jsonb,
                   null::text, null::bigint, null::timestamptz, null::integer, null::integer,
                   null::integer, null::interval, null::jsonb, null::bigint, null::timestamptz,
                   null::timestamptz, null::integer, null::integer, null::timestamptz,
                   null::timestamptz, null::uuid, null::integer
              from sokka.settle_tasks(p_pid, p_task_ids, p_tokens, p_verbs, p_args) s;
    end if;
    if cardinality(p_topics) > 0 and p_max_tasks > 0 then
        return query select null::bigint, 'reserved', null::jsonb, r.*
                       from sokka.reserve_tasks(p_topics, p_pid, p_max_tasks, p_lease, p_limits) r;
    else
        -- Nothing to reserve: the arguments are looked at all the same.
        return query select * from sokka.exchange_work(
            p_pid, null, null, null, null, p_topics, p_max_tasks, p_lease, p_limits);
    end if;
end
$$;

-- reserve_batch: for a call that began before the migration to revision 0004: it goes on in
-- its old body, which calls this. A later revision may drop it: no call lasts so long.
create function sokka.reserve_batch(
    p_topics text[], p_limits integer[], p_pid text, p_max integer, p_lease interval
) returns setof sokka.leased_task
language sql as $$
    select * from sokka.reserve_tasks(p_topics, p_pid, p_max, p_lease, p_limits)
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

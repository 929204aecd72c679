-- exchange_work: settle_tasks, then reserve_tasks, with one commit for both: what a worker
-- sends. Either half may be empty (null or empty arrays, no tasks). Left short it sweeps only
-- where it found no task at all: a worker sweeps by itself, and whoever waits for the task
-- that was found would wait for the sweep too (1.3 ms in a session that was idle).
-- Returns of the settlements, if any, one row with the verdict 'settled', whose ord is how
--         many were accepted with nothing more to say of them, and one row for each other
--         one: ord from 1, verdict, detail; then one row for each leased task (verdict
--         'reserved', ord null), its columns those of leased_task.
-- Raises: 22023, 25001: nothing is settled and nothing reserved.
-- Locks:  the rows that it settles and those that it returns, never waiting.
--
-- A row for each accepted settlement cost a ninth of all that a task of a busy worker costs,
-- there and here. The leases go from the claim to the caller through as few hands as can be:
-- each function that hands rows on costs 1.5 us a task, and a row as one value in a column,
-- from which the caller takes its fields, another 1.5.
create function sokka.exchange_work(
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
    v_settled record;
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
        v_settled := sokka.settle_briefly(p_pid, p_task_ids, p_tokens, p_verbs, p_args);
        return query select v_settled.accepted, 'settled', null::jsonb, (null::sokka.leased_task).*;
        if v_settled.others <> '{}' then
            return query select o.ord, o.verdict, o.detail, (null::sokka.leased_task).*
                           from unnest(v_settled.others) o;
        end if;
    end if;
    if v_want > 0 and cardinality(p_topics) > 1 then
        return query select null::bigint, 'reserved', null::jsonb, g.*
                       from sokka.take_in_turn(p_topics, p_limits, p_pid, v_want, v_lease, false) g;
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
        -- Nothing there: a sweep, and once more.
        exit when v_swept or v_places <> '{}' or not sokka.sweep_if_due();
        v_swept := true;
    end loop;
end
$$;

-- settle_briefly: settle_batch, in short: how many were accepted with nothing more to say of
-- them, and the verdicts on the others.
create function sokka.settle_briefly(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[],
    out accepted bigint, out others sokka.verdict[]
)
language plpgsql as $$
declare
    v_ended record;
begin
    others := '{}';
    if 'terminate' = all (p_verbs) then
        v_ended := sokka.end_leases(p_pid, p_task_ids, p_tokens, p_args, null);
        accepted := cardinality(v_ended.ords);
        if accepted < cardinality(p_task_ids) then
            others := array(select v from sokka.judge_missed(p_pid, p_task_ids, p_tokens, null,
                v_ended.ords, v_ended.ended_at) v);
        end if;
    else
        select count(*) filter (where v.verdict = 'ok' and v.detail is null),
               coalesce(array_agg(v) filter (where v.verdict <> 'ok' or v.detail is not null), '{}')
          into accepted, others
          from sokka.settle_batch(p_pid, p_task_ids, p_tokens, p_verbs, p_args) v;
    end if;
end
$$;

-- take_in_turn: from several topics: each gets an equal share first, and what a topic
-- leaves over goes to the others. Which one begins changes with every call, so that single
-- tasks are taken in turn too. Where that finds nothing, or comes out short if p_sweeps, a
-- sweep, and once more round.
create function sokka.take_in_turn(
    p_topics text[], p_limits integer[], p_pid text, p_max_tasks integer, p_lease interval,
    p_sweeps boolean
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
        exit when v_left <= 0;
        exit when v_round = 3
            and not ((p_sweeps or v_left = p_max_tasks) and sokka.sweep_if_due());
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

-- reserve_in_turn: for a call that began before the migration to revision 0006: it goes on in
-- its old body, which calls this. A later revision may drop it.
create function sokka.reserve_in_turn(
    p_topics text[], p_limits integer[], p_pid text, p_max_tasks integer, p_lease interval
) returns setof sokka.leased_task
language sql as $$
    select * from sokka.take_in_turn(p_topics, p_limits, p_pid, p_max_tasks, p_lease, true)
$$;

-- Looking for work without taking any: what idle workers do, about twice a second where
-- there are many, and each every second where there are few. A look takes 80 us of the
-- server, a reserve that finds nothing 165, and a sweep 270 (one session that does nothing
-- else). Of a hundred sessions that look in turn each look takes 300, since their memory is
-- in no cache (a "select 1" takes 110): so one that is like most others goes through few
-- functions, and reads no hint (300 from 410).

-- sees_ready: whether a topic has a ready task that nobody has claimed. Shares the hint of
-- the topic's claims (claim.sql): it looks from the left end as long as that is quick, and
-- else only now and then, where dead entries make it slow; in between it starts where the
-- last look or claim stopped. Where it finds a task the hint stays as it is: the claim that
-- follows is due for a look from the left end too.
create function sokka.sees_ready(p_topic text) returns boolean
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_key constant text := sokka.topic_hash(p_topic);
    v_hint constant jsonb := sokka.scan_hint(v_key);
    v_started constant timestamptz := sokka.clock();
    v_took constant double precision := coalesce((v_hint ->> 'took')::double precision, 0);
    v_end constant bigint := coalesce(pg_sequence_last_value('sokka.queue_pos_seq'), 0);
    v_positions bigint[];
    v_takes double precision;
begin
    if v_took >= 0.002 and extract(epoch from v_started)::double precision
            - coalesce((v_hint ->> 'at')::double precision, 0) between 0 and 20 * v_took then
        v_positions := (v_hint ->> 'p')::bigint[];
        return exists (
            select from generate_series(0, 9) p (priority)
             cross join lateral (
                select from sokka.tasks t
                 where t.topic = p_topic and t.status = 'starting' and t.priority = p.priority
                   and t.queue_pos > coalesce(v_positions[p.priority + 1], 0)
                   and (t.expires_at is null or t.expires_at > v_started)
                 limit 1) s);
    end if;
    perform from sokka.tasks t
      where t.topic = p_topic and t.status = 'starting'
        and (t.expires_at is null or t.expires_at > v_started)
      order by t.priority, t.queue_pos limit 1;
    if found then
        return true;
    end if;
    v_takes := extract(epoch from sokka.clock() - v_started);
    -- Nothing to note of a quick look that was quick before (15 us saved).
    if v_takes >= 0.001 or v_took >= 0.001 then
        -- At most twice what it was, as a claim has it.
        perform sokka.set_scan_hint(v_key, jsonb_build_object(
            'p', array_fill(v_end, array[10])::text,
            'at', extract(epoch from v_started)::double precision,
            'took', least(v_takes, 2 * greatest(v_took, 0.0005))));
    end if;
    return false;
end
$$;

-- snoozed_due: when the next snoozed task is due, of those that came due after p_from
-- (what was due before, the sweep at that time has met) or do so within a second. Such
-- bounds leave few dead entries between them.
create function sokka.snoozed_due(p_from timestamptz) returns timestamptz
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_until constant timestamptz := sokka.clock() + interval '1 second';
begin
    return (
        select t.run_at from sokka.tasks t
         where t.status = 'snoozed' and t.run_at >= p_from and t.run_at <= v_until
         order by t.run_at limit 1);
end
$$;

-- look_around: whether a reserve would find something; takes nothing.
-- Needs:  topics, a READ COMMITTED transaction.
-- Leaves: swept, at most 200 tasks of each sort, where nobody had within p_within or a
--         snoozed task came due since.
-- Returns one row: ready (in one of the topics that are not paused), swept, the sweep's
--         counts, when the next sweep is worth doing (after a sweep what it says, else
--         when a snoozed task is due, if within a second), and how many sleep on these
--         topics and would be notified by a sweep that finds a task for them (0: nobody is
--         notified here).
-- Raises: 22023, 25001.   Locks: as sweep, where it sweeps.
create function sokka.look_around(p_topics text[], p_within interval)
returns table (
    ready boolean, swept boolean, woken integer, taken_back integer, expired integer,
    failed_lost integer, next_due_at timestamptz, sleepers integer
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_within interval := p_within;
    -- Whether a claim's scan of this session was slow lately, and its hint counts. Those of
    -- sweeps have no positions.
    v_slow constant boolean := coalesce(current_setting('skpg_hint.sokka', true)
        ~ '"p": "[^"]*", "at": [^,]*, "took": ([1-9]|0\.[1-9]|0\.0[1-9]|0\.00[2-9])', false);
    v_now timestamptz;
    v_swept_at timestamptz;
    v_topic text;
    v_done record;
begin
    if p_within not between interval '1 millisecond' and interval '1 hour' then
        v_within := sokka.checked_lease('within', p_within);
    end if;
    if array_ndims(p_topics) is distinct from 1 or cardinality(p_topics) > 1000
            or sokka.old_snapshot() then
        perform sokka.check_reserve(p_topics, null, 'look', 1);
    end if;
    if p_within is null then
        perform sokka.check_not_null('within', true);
    end if;
    v_now := sokka.clock();
    v_swept_at := to_timestamp(coalesce(pg_sequence_last_value('sokka.swept_at_seq'), 0) / 1000::double precision);
    -- A clock that was set back must not stop the sweep.
    swept := v_swept_at not between v_now - v_within and v_now + interval '1 millisecond';
    if not swept then
        -- What was due a little before that sweep may have been committed a little after.
        next_due_at := sokka.snoozed_due(v_swept_at - interval '200 milliseconds');
        swept := coalesce(next_due_at <= v_now, false);
    end if;
    woken := 0;
    taken_back := 0;
    expired := 0;
    failed_lost := 0;
    if swept then
        v_done := sokka.sweep_once(200);
        woken := v_done.woken;
        taken_back := v_done.taken_back;
        expired := v_done.expired;
        failed_lost := v_done.failed_lost;
        next_due_at := v_done.next_due_at;
        perform sokka.prepare_partitions_if_due();
        v_now := sokka.clock();
    end if;
    ready := false;
    foreach v_topic in array p_topics loop
        if not sokka.plain_name(v_topic) then
            perform sokka.check_name('topics', v_topic);
        end if;
        continue when ready;
        if v_slow then
            ready := sokka.sees_ready(v_topic);
        else
            -- As sees_ready looks where no hint keeps it from the left end.
            perform from sokka.tasks t
              where t.topic = v_topic and t.status = 'starting'
                and (t.expires_at is null or t.expires_at > v_now)
              order by t.priority, t.queue_pos limit 1;
            ready := found;
        end if;
        ready := ready and not exists (
            select from sokka.topics t where t.topic = v_topic and t.paused_at is not null);
    end loop;
    if not (ready or v_slow) and sokka.clock() - v_now >= interval '1 millisecond' then
        -- Once more, topic by topic: whichever is slow is noted.
        perform sokka.sees_ready(u.topic) from unnest(p_topics) u (topic);
    end if;
    select count(distinct w.pid) into sleepers
      from sokka.idle_workers w, sokka.settings s
     where s.notify and w.topic = any (p_topics) and w.idle_until > v_now;
    return next;
end
$$;

-- look_for_work: look_around without the sleepers, as workers of before revision 0007 ask.
create function sokka.look_for_work(p_topics text[], p_within interval)
returns table (
    ready boolean, swept boolean, woken integer, taken_back integer, expired integer,
    failed_lost integer, next_due_at timestamptz
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
begin
    return query
        select a.ready, a.swept, a.woken, a.taken_back, a.expired, a.failed_lost, a.next_due_at
          from sokka.look_around(p_topics, p_within) a;
end
$$;

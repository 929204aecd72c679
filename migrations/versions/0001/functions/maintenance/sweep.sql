-- The sweep: wakes due tasks, takes back expired leases, ends what is past its
-- deadline. Each part finds its candidates without locks, locks them by key
-- (SKIP LOCKED: an open fence is passed by), reads the clock, and judges the locked
-- rows. The clock stands in a variable: a volatile function in the condition keeps
-- the planner from the index (101 ms against 0.03).

-- wake_due: snoozed tasks whose time has come.
create function sokka.wake_due(p_max integer) returns integer
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_now timestamptz := sokka.clock();
    v_locked uuid[];
    v_topics text[];
    v_count integer;
begin
    select array_agg(l.task_id) into v_locked
      from (select t.task_id from sokka.tasks t
             where t.status = 'snoozed' and t.run_at <= v_now
             order by t.run_at limit p_max for update skip locked) l;
    if v_locked is null then
        return 0;
    end if;
    v_now := sokka.clock();
    with woken as (
        update sokka.tasks t
           set status = 'starting', queue_pos = nextval('sokka.queue_pos_seq'),
               record_ver = t.record_ver + 1, updated_at = v_now
         where t.task_id = any (v_locked) and t.status = 'snoozed' and t.run_at <= v_now
           and (t.expires_at is null or t.expires_at > v_now)
        returning t.topic
    )
    select count(*), array_agg(distinct w.topic order by w.topic) into v_count, v_topics from woken w;
    if v_count > 0 then
        perform sokka.announce(v_topics);
    end if;
    return v_count;
end
$$;

-- take_back_expired: leases whose time is over. Walks the live leases in order of
-- their tokens, beginning at the oldest that was live when this session last
-- looked: what was granted since has a higher token. A grant that was not yet
-- committed then may have a lower one, so every tenth walk, and every walk after
-- ten seconds, starts at the left end.
create function sokka.take_back_expired(
    p_max integer, out taken_back integer, out failed_lost integer, out next_expiry timestamptz
)
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_hint constant jsonb := sokka.claim_hints() -> 'leases';
    v_now timestamptz := sokka.clock();
    v_from bigint := 0;
    v_walks integer := coalesce((v_hint ->> 'walks')::integer, 0);
    v_full_at double precision := coalesce((v_hint ->> 'at')::double precision, 0);
    v_oldest bigint;
    v_expired uuid[];
    v_task sokka.locked_task;
begin
    taken_back := 0;
    failed_lost := 0;
    if v_walks % 10 <> 0 and extract(epoch from v_now) - v_full_at between 0 and 10 then
        v_from := coalesce((v_hint ->> 'from')::bigint, 0);
    else
        v_full_at := extract(epoch from v_now);
    end if;
    select min(r.token), min(r.lease_expires_at) filter (where r.lease_expires_at > v_now),
           (array_agg(r.task_id order by r.task_id)
               filter (where r.lease_expires_at <= v_now))[1:p_max]
      into v_oldest, next_expiry, v_expired
      from sokka.tasks r where r.token >= v_from;
    perform set_config('skpg_hint.sokka', (sokka.claim_hints() || jsonb_build_object('leases',
        jsonb_build_object('from', v_oldest, 'walks', v_walks + 1, 'at', v_full_at)))::text, false);
    for v_task in
        select * from sokka.locked_task t
         where t.task_id = any (v_expired) order by t.task_id for update skip locked loop
        v_now := sokka.clock();
        continue when v_task.status <> 'running' or v_task.lease_expires_at > v_now;
        if (sokka.lease_over(v_task, v_now)).status = 'starting' then
            taken_back := taken_back + 1;
            perform sokka.announce(array[v_task.topic]);
        else
            failed_lost := failed_lost + 1;
        end if;
    end loop;
end
$$;

-- expire_waiting: waiting tasks past their deadline.
create function sokka.expire_waiting(p_max integer) returns integer
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_now timestamptz := sokka.clock();
    v_locked uuid[];
begin
    select array_agg(l.task_id) into v_locked
      from (select t.task_id from sokka.tasks t
             where t.expires_at <= v_now and t.expires_at is not null and t.status <> 'running'
             order by t.expires_at limit p_max for update skip locked) l;
    -- The rows are locked and a deadline never moves: no need to judge again.
    perform sokka.finish_tasks(v_locked, 'failed', null,
        '{"code": "expired", "message": "its deadline passed before it was reserved"}',
        sokka.clock(), false);
    return coalesce(cardinality(v_locked), 0);
end
$$;

-- next_due: when the next sweep is worth doing. Never nearer than 50 ms: a due row
-- that somebody holds would make the sweeper spin.
create function sokka.next_due(p_next_expiry timestamptz) returns timestamptz
language plpgsql
set enable_seqscan = off
set enable_sort = off
as $$
declare
    v_due timestamptz;
begin
    v_due := least(p_next_expiry,
        (select t.run_at from sokka.tasks t where t.status = 'snoozed'
          order by t.run_at limit 1),
        (select t.expires_at from sokka.tasks t
          where t.expires_at is not null and t.status <> 'running'
          order by t.expires_at limit 1));
    return greatest(v_due, sokka.clock() + interval '50 milliseconds');
end
$$;

-- sweep_once: one sweep, unless somebody else is sweeping: then a row of zeros
-- that says when to look again.
create function sokka.sweep_once(
    p_max integer, out woken integer, out taken_back integer, out expired integer,
    out failed_lost integer, out next_due_at timestamptz
)
language plpgsql as $$
declare
    v_leases record;
begin
    woken := 0;
    taken_back := 0;
    expired := 0;
    failed_lost := 0;
    if not pg_try_advisory_xact_lock('sokka.settings'::regclass::oid::integer, 1) then
        next_due_at := sokka.clock() + interval '500 milliseconds';
        return;
    end if;
    perform setval('sokka.swept_at_seq', (extract(epoch from sokka.clock()) * 1000)::bigint);
    expired := sokka.expire_waiting(p_max);
    v_leases := sokka.take_back_expired(p_max);
    taken_back := v_leases.taken_back;
    failed_lost := v_leases.failed_lost;
    woken := sokka.wake_due(p_max);
    next_due_at := sokka.next_due(v_leases.next_expiry);
end
$$;

-- sweep: one sweep of at most p_max_tasks of each sort.
-- Returns one row of counts, and when the next sweep is worth doing (null: nothing
--         waits for the clock).
-- Raises: 22023, 25001.   Locks: the tasks it moves; one sweeper at a time.
create function sokka.sweep(p_max_tasks integer default 1000)
returns table (
    woken integer, taken_back integer, expired integer, failed_lost integer,
    next_due_at timestamptz
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
begin
    perform sokka.check_not_null('max_tasks', p_max_tasks is null);
    if p_max_tasks not between 1 and 10000 then
        perform sokka.refuse_argument('max_tasks', 'must be from 1 to 10000');
    end if;
    perform sokka.check_isolation();
    return query select * from sokka.sweep_once(p_max_tasks);
    perform sokka.prepare_partitions_if_due();
end
$$;

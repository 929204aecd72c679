-- The sweep: wakes due tasks, takes back expired leases, ends what is past its
-- deadline, and advances joins that nobody advanced. Each part finds its candidates without locks, locks them by key
-- (SKIP LOCKED: an open fence is passed by), reads the clock, and judges the locked
-- rows. The clock stands in a variable: a volatile function in the condition keeps
-- the planner from the index (101 ms against 0.03).

-- wake_due: snoozed tasks whose time has come, and when the next one's comes. Begins
-- 200 ms before where this session's last scan stopped: a worker that settles hundreds of
-- retries commits some of them when they are due already (a second's pause in a storm of
-- retries). A task whose transaction committed still later lies before that, so every second
-- (or 20 times a full scan's length, where dead entries make it slow) it begins at the left
-- end.
create function sokka.wake_due(p_max integer, out woken integer, out next_wake timestamptz)
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_hint constant jsonb := sokka.scan_hint('wake');
    v_started constant timestamptz := sokka.clock();
    v_full constant boolean := sokka.full_scan_due(v_hint, v_started);
    v_from timestamptz := case when v_full then '-infinity' else (v_hint ->> 'from')::timestamptz end;
    v_now timestamptz;
    -- Where the rows are: nobody else can move what is locked.
    v_locked tid[];
    v_last timestamptz;
    v_topics text[];
begin
    select array_agg(l.ctid), max(l.run_at) into v_locked, v_last
      from (select t.ctid, t.run_at from sokka.tasks t
             where t.status = 'snoozed' and t.run_at >= v_from and t.run_at <= v_started
             order by t.run_at limit p_max for update skip locked) l;
    woken := 0;
    if v_locked is not null then
        v_now := sokka.clock();
        with woken as (
            update sokka.tasks t
               set status = 'starting', queue_pos = nextval('sokka.queue_pos_seq'),
                   record_ver = t.record_ver + 1, updated_at = v_now
             where t.ctid = any (v_locked)
               and (t.expires_at is null or t.expires_at > v_now)
            returning t.topic
        )
        select count(*), array_agg(distinct w.topic order by w.topic)
          into woken, v_topics from woken w;
    end if;
    v_from := case when cardinality(v_locked) = p_max then v_last else v_started end;
    select t.run_at into next_wake from sokka.tasks t
     where t.status = 'snoozed' and t.run_at >= v_from order by t.run_at limit 1;
    perform sokka.note_scan('wake', v_hint, v_full, v_started,
        jsonb_build_object('from', v_from - interval '200 milliseconds'));
    if woken > 0 then
        perform sokka.announce(v_topics);
    end if;
end
$$;

-- full_scan_due: whether a scan must begin at the left end. Stable, for extract is: as an
-- immutable one it could not be evaluated in place, and was parsed once a transaction.
create function sokka.full_scan_due(p_hint jsonb, p_now timestamptz) returns boolean
language sql stable as $$
    select coalesce(
        extract(epoch from p_now)::double precision - (p_hint ->> 'at')::double precision
            not between 0 and greatest(1, 20 * (p_hint ->> 'took')::double precision),
        true)
$$;

-- note_scan: keep where a scan stopped and, of a full one, when it was and how long
-- it took.
create function sokka.note_scan(
    p_key text, p_hint jsonb, p_full boolean, p_started timestamptz, p_position jsonb
) returns void
language plpgsql as $$
begin
    perform sokka.set_scan_hint(p_key, p_position || case when p_full
        then jsonb_build_object('at', extract(epoch from p_started)::double precision,
            'took', extract(epoch from sokka.clock() - p_started)::double precision)
        else jsonb_build_object('at', p_hint -> 'at', 'took', p_hint -> 'took') end);
end
$$;

-- take_back_expired: leases whose time is over, and when the next one's is. Walks
-- the live leases in order of their tokens, beginning at the oldest that was live
-- when this session last looked: what was granted since has a higher token, save
-- for a grant that was not yet committed then.
create function sokka.take_back_expired(
    p_max integer, out taken_back integer, out failed_lost integer, out next_expiry timestamptz
)
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_hint constant jsonb := sokka.scan_hint('leases');
    v_started constant timestamptz := sokka.clock();
    v_full constant boolean := sokka.full_scan_due(v_hint, v_started);
    v_from constant bigint := case when v_full then 0 else coalesce((v_hint ->> 'from')::bigint, 0) end;
    v_now timestamptz;
    v_leases constant record := sokka.walk_leases(v_from, v_started);
    v_expired uuid[] := v_leases.expired;
    v_id uuid;
    v_task sokka.locked_task;
begin
    taken_back := 0;
    failed_lost := 0;
    next_expiry := v_leases.next_expiry;
    if cardinality(v_expired) > p_max then
        next_expiry := v_started;
        v_expired := v_expired[1:p_max];
    end if;
    perform sokka.note_scan('leases', v_hint, v_full, v_started,
        jsonb_build_object('from', v_leases.oldest));
    -- One by one, each read when it is its turn: the end of one may ask the next to stop,
    -- where both are candidates of one join.
    for v_id in select u.id from unnest(v_expired) u (id) order by 1 loop
        select * into v_task from sokka.locked_task t where t.task_id = v_id for update skip locked;
        continue when not found;
        v_now := sokka.clock();
        continue when v_task.status <> 'running' or v_task.lease_expires_at > v_now;
        if (sokka.lease_over(v_task, v_now)).status = 'starting' then
            taken_back := taken_back + 1;
            perform sokka.announce(array[v_task.topic]);
        else
            failed_lost := failed_lost + 1;
        end if;
    end loop;
    -- One that an open fence or another call holds is looked at again soon.
    if taken_back + failed_lost < cardinality(v_expired) then
        next_expiry := least(next_expiry, v_started + interval '500 milliseconds');
    end if;
end
$$;

-- walk_leases: of the live leases with these tokens the oldest, when the next one is over,
-- and the tasks of those that are. Read page by page: where leases come and go quickly nearly
-- all entries are of some that have ended, and in the order of the index each of those takes
-- 1.6 us, in this one 0.3.
create function sokka.walk_leases(
    p_from bigint, p_now timestamptz, out oldest bigint, out next_expiry timestamptz,
    out expired uuid[]
)
language plpgsql
set enable_seqscan = off
set enable_indexscan = off
set enable_indexonlyscan = off
set jit = off
as $$
begin
    select min(r.token), min(r.lease_expires_at) filter (where r.lease_expires_at > p_now),
           array_agg(r.task_id order by r.task_id) filter (where r.lease_expires_at <= p_now)
      into oldest, next_expiry, expired
      from sokka.tasks r where r.token >= p_from;
end
$$;

-- expire_waiting: waiting tasks past their deadline, and when the next one's comes.
-- A new task may have an earlier deadline than the one at which the last scan
-- stopped; a full scan, every second at the latest, finds it.
create function sokka.expire_waiting(p_max integer, out expired integer, out next_deadline timestamptz)
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_hint constant jsonb := sokka.scan_hint('deadline');
    v_started constant timestamptz := sokka.clock();
    v_full constant boolean := sokka.full_scan_due(v_hint, v_started);
    v_from timestamptz := case when v_full then '-infinity' else (v_hint ->> 'from')::timestamptz end;
    v_locked uuid[];
begin
    select array_agg(l.task_id) into v_locked
      from (select t.task_id from sokka.tasks t
             where t.expires_at >= v_from and t.expires_at <= v_started
               and t.expires_at is not null and t.status <> 'running'
             order by t.expires_at limit p_max for update skip locked) l;
    if v_locked is not null then
        -- The rows are locked and a deadline never moves: no need to judge again.
        perform sokka.finish_tasks(v_locked, 'failed', null,
            '{"code": "expired", "message": "its deadline passed before it was reserved"}',
            sokka.clock(), false);
    end if;
    expired := coalesce(cardinality(v_locked), 0);
    select t.expires_at into next_deadline from sokka.tasks t
     where t.expires_at >= v_from and t.expires_at is not null and t.status <> 'running'
     order by t.expires_at limit 1;
    perform sokka.note_scan('deadline', v_hint, v_full, v_started,
        jsonb_build_object('from', coalesce(next_deadline, v_started)));
end
$$;

-- sweep_parts: the parts of one sweep, and what they add up to.
create function sokka.sweep_parts(
    p_max integer, out woken integer, out taken_back integer, out expired integer,
    out failed_lost integer, out next_due_at timestamptz
)
language plpgsql as $$
declare
    v_leases record;
    v_waiting record;
    v_snoozed record;
    v_next_look timestamptz;
begin
    v_waiting := sokka.expire_waiting(p_max);
    v_leases := sokka.take_back_expired(p_max);
    v_snoozed := sokka.wake_due(p_max);
    v_next_look := sokka.advance_joins_due(p_max);
    expired := v_waiting.expired;
    taken_back := v_leases.taken_back;
    failed_lost := v_leases.failed_lost;
    woken := v_snoozed.woken;
    next_due_at := least(v_waiting.next_deadline, v_leases.next_expiry,
        nullif(v_snoozed.next_wake, sokka.until_told()), v_next_look);
    -- Never nearer than 50 ms: a due row that somebody holds would make it spin.
    next_due_at := case when next_due_at is not null
        then greatest(next_due_at, sokka.clock() + interval '50 milliseconds') end;
end
$$;

-- tell_sleepers: notify who sleeps on a topic in which a task is ready: its notification was
-- lost, or went to one who has died since. So of many who sleep few need to look. Stops
-- after 20 ms; the next call of this session goes on behind the topic that it came to.
create function sokka.tell_sleepers() returns void
language plpgsql as $$
declare
    v_started constant timestamptz := sokka.clock();
    v_after constant text := coalesce(sokka.scan_hint('sleepers') ->> 'after', '');
    v_topic text;
    v_left text;
begin
    for v_topic in
        select distinct w.topic from sokka.idle_workers w
         where w.topic > v_after and w.idle_until > v_started
         order by w.topic
    loop
        if sokka.sees_ready(v_topic) and not exists (
                select from sokka.topics t where t.topic = v_topic and t.paused_at is not null) then
            perform sokka.tell_idle(v_topic);
        end if;
        if sokka.clock() - v_started > interval '20 milliseconds' then
            v_left := v_topic;
            exit;
        end if;
    end loop;
    if coalesce(v_left, '') <> v_after then
        perform sokka.set_scan_hint('sleepers', jsonb_build_object('after', v_left));
    end if;
end
$$;

-- sweep_once: one sweep, unless somebody else is sweeping: then a row of zeros that
-- says when to look again. The lock is the session's and given back here: the
-- transaction of a reserve that sweeps may stay open for long.
create function sokka.sweep_once(
    p_max integer, out woken integer, out taken_back integer, out expired integer,
    out failed_lost integer, out next_due_at timestamptz
)
language plpgsql as $$
declare
    v_class constant integer := 'sokka.settings'::regclass::oid::integer;
    v_now constant bigint := date_part('epoch', sokka.clock()) * 1000;
    v_noted boolean;
    v_done record;
begin
    if not pg_try_advisory_lock(v_class, 1) then
        woken := 0;
        taken_back := 0;
        expired := 0;
        failed_lost := 0;
        next_due_at := sokka.clock() + interval '500 milliseconds';
        return;
    end if;
    begin
        -- Noted, and sleepers looked for, ten times a second at most: the one makes a
        -- transaction that changes nothing else wait for the disk, and what the other may
        -- say holds up all commits.
        v_noted := v_now - coalesce(pg_sequence_last_value('sokka.swept_at_seq'), 0) not between 0 and 99;
        if v_noted then
            perform setval('sokka.swept_at_seq', v_now);
        end if;
        v_done := sokka.sweep_parts(p_max);
        if v_noted then
            perform sokka.tell_sleepers();
        end if;
    exception when others or query_canceled then
        perform pg_advisory_unlock(v_class, 1);
        raise;
    end;
    perform pg_advisory_unlock(v_class, 1);
    woken := v_done.woken;
    taken_back := v_done.taken_back;
    expired := v_done.expired;
    failed_lost := v_done.failed_lost;
    next_due_at := v_done.next_due_at;
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
set plan_cache_mode = force_generic_plan
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

-- Finding the next ready tasks of a topic.
--
-- While another session holds an old snapshot, the index entries of tasks that
-- have left 'starting' stay, and a claim that begins at the left end walks every
-- one of them (seen: 30 k tasks/s falling to 9.7 k/s over 100,000 tasks). So where a
-- claim left tasks behind, or its scan was slow, the session remembers, per topic and
-- priority, where it stopped, and the next one starts after that (flat at 34 k/s). This
-- is only a hint, kept in a setting of the session: losing it costs time, never a task.
-- A topic that is served as fast as it fills has none: one scan, and nothing to note.
--
-- A task can become ready to the left of a hint: its transaction committed late.
-- Therefore the scan starts from the left end again
--   when it found too few, unless the last full scan was slow and 20 times its
--     length have not passed,
--   and at least every second, or 20 times the last full scan's length.
-- A full scan sets the hint to where it stopped, downwards too, so that a crowd of
-- late tasks is served at full speed.

-- A topic's hint: {"p": positions by priority, "at": last full scan, "took": its
-- seconds}, under the hash of the topic.

-- claim: lock the next ready tasks of a topic that is not paused; where their rows are, in
-- order. SKIP LOCKED passes by those that others are claiming.
create function sokka.claim(p_topic text, p_max integer) returns tid[]
language plpgsql
set enable_seqscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_started constant timestamptz := sokka.clock();
    v_places tid[];
begin
    if strpos(current_setting('skpg_hint.sokka', true), sokka.topic_hash(p_topic)) > 0 then
        return sokka.claim_by_hint(p_topic, p_max);
    end if;
    select coalesce(array_agg(r.ctid), '{}') into v_places
      from (select t.ctid from sokka.tasks t
             where t.topic = p_topic and t.status = 'starting'
               and (t.expires_at is null or t.expires_at > v_started)
               and not exists (select from sokka.topics q
                                where q.topic = p_topic and q.paused_at is not null)
             order by t.priority, t.queue_pos
             limit p_max
               for update of t skip locked) r;
    if cardinality(v_places) = p_max
       or sokka.clock() - v_started >= interval '0.5 milliseconds' then
        perform sokka.note_first_claim(p_topic, v_started, v_places[p_max]);
    end if;
    return v_places;
end
$$;

-- note_first_claim: the hint after a claim that had none. p_last: where its last task is,
-- if there may be more. Other priorities begin at the left end once more.
create function sokka.note_first_claim(p_topic text, p_started timestamptz, p_last tid) returns void
language plpgsql as $$
declare
    v_took constant interval := sokka.clock() - p_started;
    v_positions bigint[] := array_fill(0::bigint, array[10]);
    v_last record;
begin
    if p_last is not null then
        select t.priority, t.queue_pos into v_last from sokka.tasks t where t.ctid = p_last;
        v_positions[v_last.priority + 1] := v_last.queue_pos;
    end if;
    perform sokka.set_scan_hint(sokka.topic_hash(p_topic), jsonb_build_object(
        'p', v_positions::text, 'at', date_part('epoch', p_started),
        'took', sokka.noted_seconds(v_took, 0)));
end
$$;

-- noted_seconds: how long a full scan took; at most twice what it was, so that one scan
-- held up by a busy machine does not put off the next ones.
create function sokka.noted_seconds(p_took interval, p_before double precision)
returns double precision
language sql immutable as $$
    select least(date_part('epoch', p_took), 2 * greatest(p_before, 0.0005))
$$;

-- claim_by_hint: as claim, beginning where the hint says.
create function sokka.claim_by_hint(p_topic text, p_max integer) returns tid[]
language plpgsql as $$
declare
    v_key constant text := sokka.topic_hash(p_topic);
    v_hint constant jsonb := sokka.scan_hint(v_key);
    v_from_left constant bigint[] := array_fill(0::bigint, array[10]);
    v_started timestamptz := sokka.clock();
    v_now constant double precision := date_part('epoch', v_started);
    v_full_at double precision := coalesce((v_hint ->> 'at')::double precision, 0);
    v_took double precision := coalesce((v_hint ->> 'took')::double precision, 0);
    v_positions bigint[] := coalesce((v_hint ->> 'p')::bigint[], v_from_left);
    v_ready record;
    v_places tid[] := '{}';
    v_full boolean := v_now - v_full_at >= greatest(1, 20 * v_took) or v_now < v_full_at;
begin
    if exists (select from sokka.topics q where q.topic = p_topic and q.paused_at is not null) then
        return v_places;
    end if;
    if not v_full then
        v_ready := sokka.lock_ready(p_topic, p_max, v_positions);
        v_positions := v_ready.p_positions;
        v_places := v_ready.places;
        v_full := cardinality(v_places) < p_max
            and (v_took < 0.002 or v_now - v_full_at >= 20 * v_took);
    end if;
    if v_full then
        v_started := sokka.clock();
        v_full_at := date_part('epoch', v_started);
        v_ready := sokka.lock_ready(p_topic, p_max, v_from_left);
        v_positions := v_ready.p_positions;
        v_places := v_ready.places;
        v_took := sokka.noted_seconds(sokka.clock() - v_started, v_took);
        if cardinality(v_places) < p_max and v_took < 0.0005 then
            perform sokka.drop_scan_hint(v_key);
            return v_places;
        end if;
    end if;
    perform sokka.set_scan_hint(v_key, jsonb_build_object(
        'p', v_positions::text, 'at', v_full_at, 'took', v_took));
    return v_places;
end
$$;

-- lock_ready: lock up to p_max ready tasks after the given positions; where their rows
-- are, in order, and the positions to start after next time.
create function sokka.lock_ready(
    p_topic text, p_max integer, inout p_positions bigint[], out places tid[]
)
language plpgsql
set enable_seqscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_now constant timestamptz := sokka.clock();
    v_end constant bigint := coalesce(pg_sequence_last_value('sokka.queue_pos_seq'), 0);
    v_found bigint[];
    v_last integer;
begin
    select array_agg(r.ctid), max(r.priority), array_agg(r.queue_pos)
      into places, v_last, v_found
      from (select s.ctid, s.priority, s.queue_pos
              from generate_series(0, 9) p (priority)
             cross join lateral (
                select t.ctid, t.priority, t.queue_pos
                  from sokka.tasks t
                 where t.topic = p_topic and t.status = 'starting' and t.priority = p.priority
                   and t.queue_pos > p_positions[p.priority + 1]
                   and (t.expires_at is null or t.expires_at > v_now)
                 order by t.queue_pos
                 limit p_max
                   for update skip locked) s
             limit p_max) r;
    places := coalesce(places, '{}');
    -- Priorities before the last one touched were read to their end; all of them
    -- were when fewer than wanted came.
    v_last := case when cardinality(places) < p_max then 10 else v_last end;
    p_positions := array_fill(v_end, array[v_last]) || p_positions[v_last + 1 : 10];
    if v_last < 10 then
        p_positions[v_last + 1] := v_found[cardinality(v_found)];
    end if;
end
$$;

-- payload_of: a payload that stands apart. A function, so that a grant without any
-- does not open the partitions first (40 us a call).
create function sokka.payload_of(p_task_id uuid, p_created_at timestamptz) returns jsonb
language plpgsql stable as $$
begin
    return (select p.data from sokka.payloads p
             where p.task_id = p_task_id and p.created_at = p_created_at);
end
$$;

-- grant_leases: hand locked ready tasks to their owner, each under a new token.
-- p_places: where their rows are. Nobody else can move them, and a look-up by key is
-- saved for each (1 us). They are handed out in this order, and returned so: what joins
-- them are the rows' places, and the only other plan for that reads the whole table and
-- is forbidden here. A sort would copy each row twice (0.8 us).
-- p_in_time: only those whose deadline for waiting has not passed, judged after
-- the lock with the time of the grant.
create function sokka.grant_leases(
    p_places tid[], p_pid text, p_lease interval, p_in_time boolean
) returns setof sokka.leased_task
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_now timestamptz;
begin
    if not sokka.tokens_stand() then
        perform sokka.lift_tokens(false);
    end if;
    v_now := sokka.clock();
    return query
        update sokka.tasks t
           set status = 'running', pid = p_pid, token = nextval('sokka.token_seq'),
               leased_at = v_now, lease_expires_at = v_now + p_lease,
               attempt = sokka.capped(t.attempt, 1),
               event_seq = t.event_seq + 1, reserved_seq = t.event_seq + 1,
               record_ver = t.record_ver + 1, updated_at = v_now
          from unnest(p_places) u (place)
         where t.ctid = u.place
           and (not p_in_time or t.expires_at is null or t.expires_at > v_now)
        returning t.task_id, t.task_group_id, t.topic, t.sub_topic, t.kind,
            case when t.data_aside then sokka.payload_of(t.task_id, t.created_at)
                 else t.data end,
            t.headers, t.pid, t.token, t.lease_expires_at, t.attempt, t.failures,
            t.max_attempts, t.timeout, t.checkpoint, t.record_ver, t.created_at,
            t.cancel_requested_at, t.priority, t.losses, t.leased_at, t.expires_at,
            t.parent_task_id, t.candidate;
end
$$;

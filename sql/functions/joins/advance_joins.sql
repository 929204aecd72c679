-- Joins: counting children that are final, letting the next ones go, deciding.
--
--   a child ends -> inbox -> counted -> decided? -> the join's task ends, or is ready
--                                    -> the next ones that were held back are let go
--
-- Nothing here waits. Whoever ends a child advances its join in the same transaction,
-- if nobody else holds it; what was missed so (two last children at one instant) is in
-- the inbox, and the sweep comes back to it. The order of locks is: the child, the
-- join, the join's task; the last two with SKIP LOCKED.

-- advance_joins: each of these that is to be had. p_from: where the inbox stood before.
create function sokka.advance_joins(p_ids uuid[], p_from bigint) returns void
language plpgsql as $$
declare
    v_id uuid;
begin
    -- Under an old snapshot the counts of others cannot be seen: the sweep will do it.
    if sokka.old_snapshot() then
        return;
    end if;
    for v_id in select distinct u.id from unnest(p_ids) u (id) where u.id is not null order by 1 loop
        perform sokka.advance_join(v_id, p_from);
    end loop;
end
$$;

-- advance_join: count what is new; decide it while it is open; once it is decided, cancel
-- what is left of it. The row is written before its task is ended, for that end looks
-- at the join again.
create function sokka.advance_join(p_id uuid, p_from bigint) returns void
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
    v_join sokka.joins;
    v_task sokka.locked_task;
    v_news record;
begin
    select * into v_join from sokka.joins j where j.task_id = p_id for update skip locked;
    if not found then
        perform sokka.look_after_orphans(p_id);
        return;
    end if;
    v_news := sokka.take_news(v_join, p_from);
    v_join := v_news.p_join;
    if v_join.state <> 'open' then
        perform sokka.cancel_the_rest(v_join, p_from);
        return;
    end if;
    select * into v_task from sokka.locked_task t where t.task_id = p_id for update skip locked;
    v_join := sokka.decide_join(v_join, v_task.task_id is not null, v_news.first);
    if v_join.state = 'open' then
        perform sokka.write_join(sokka.let_children_go(v_join));
        return;
    end if;
    perform sokka.write_join(v_join);
    if v_task.task_id is null or not sokka.fire_join(v_join, v_task) then
        -- No end of the task has looked at the join again.
        perform sokka.advance_join(p_id, p_from);
    end if;
end
$$;

-- take_news: count what lies in a join's inbox. first: whether the first answer of those
-- was a success.
create function sokka.take_news(inout p_join sokka.joins, p_from bigint, out first boolean)
language plpgsql as $$
declare
    v_news constant record := sokka.read_inbox(p_join.task_id, least(p_from, p_join.inbox_pos));
begin
    first := v_news.first_succeeded;
    p_join.inbox_pos := greatest(p_join.inbox_pos, v_news.last_pos);
    p_join.done := p_join.done + v_news.done;
    if p_join.state = 'open' then
        p_join.succeeded := p_join.succeeded + v_news.succeeded;
        p_join.failed := p_join.failed + v_news.done - v_news.succeeded;
        p_join.in_flight := p_join.in_flight - v_news.let_go;
    else
        p_join.late := p_join.late + v_news.answered;
    end if;
end
$$;

-- cancel_the_rest: the candidates that a decided join still has; and whatever stands below
-- one whose own task was cancelled, its reducer's tasks too. Closed when all candidates
-- are final.
create function sokka.cancel_the_rest(p_join sokka.joins, p_from bigint) returns void
language plpgsql as $$
declare
    v_cancelled constant boolean := sokka.was_cancelled(p_join.task_id);
begin
    if v_cancelled or p_join.state = 'decided' and p_join.done < p_join.total then
        perform sokka.cancel_children(p_join.task_id, case
            when v_cancelled or p_join.outcome = 'cancelled' then 'what it belonged to was cancelled'
            when p_join.outcome = 'deadline' then 'the deadline of its join passed'
            else 'its join was decided' end, 1000, not v_cancelled);
        p_join := (sokka.take_news(p_join, p_from)).p_join;
        perform sokka.note_the_rest(p_join.task_id, not v_cancelled);
    end if;
    if p_join.done >= p_join.total then
        p_join.state := 'closed';
    end if;
    perform sokka.write_join(p_join);
    -- Its reducer may sleep for a child of its own.
    if not sokka.wake_sleeper(p_join.task_id) then
        insert into sokka.join_inbox (join_id, task_id) values (p_join.task_id, p_join.task_id);
    end if;
end
$$;

create function sokka.was_cancelled(p_task_id uuid) returns boolean
language sql stable as $$
    select exists (select from sokka.finished_tasks f
                    where f.task_id = p_task_id and f.error ->> 'code' = 'cancelled')
$$;

create function sokka.write_join(p_join sokka.joins) returns void
language sql as $$
    update sokka.joins j
       set inbox_pos = p_join.inbox_pos, done = p_join.done, succeeded = p_join.succeeded,
           failed = p_join.failed, late = p_join.late, in_flight = greatest(p_join.in_flight, 0),
           released = p_join.released, outcome = p_join.outcome, decided_at = p_join.decided_at,
           state = p_join.state
     where j.task_id = p_join.task_id
$$;

-- wake_sleeper: wake a task that still sleeps for a child which has ended. False if it has
-- to be tried again: somebody holds its row.
create function sokka.wake_sleeper(p_id uuid) returns boolean
language plpgsql as $$
declare
    v_waits_for uuid;
begin
    select t.waits_for into v_waits_for from sokka.tasks t
     where t.task_id = p_id and t.status = 'snoozed';
    if v_waits_for is null or exists (select from sokka.tasks c where c.task_id = v_waits_for) then
        return true;
    end if;
    perform from sokka.tasks t
      where t.task_id = p_id and t.waits_for = v_waits_for for update skip locked;
    if not found then
        return false;
    end if;
    perform sokka.let_go(array[p_id], sokka.clock());
    return true;
end
$$;

-- look_after_orphans: news of a task that is no join. It sleeps for a child that has ended;
-- or it was cancelled, and so is what is live below it. A join that another session holds
-- is no such task, and a sleeper that is held stays in the inbox.
create function sokka.look_after_orphans(p_id uuid) returns void
language plpgsql as $$
begin
    if exists (select from sokka.joins j where j.task_id = p_id) or not sokka.wake_sleeper(p_id) then
        return;
    end if;
    delete from sokka.join_inbox i where i.join_id = p_id;
    if found and sokka.was_cancelled(p_id) then
        perform sokka.cancel_children(p_id, 'its parent was cancelled', 1000, false);
        perform sokka.note_the_rest(p_id, false);
    end if;
end
$$;

-- read_inbox: take what lies there for a join; how its children ended is looked up by
-- their keys. answered: those that ended by their own word, not by a cancellation.
create function sokka.read_inbox(
    p_id uuid, p_from bigint, out last_pos bigint, out done integer, out let_go integer,
    out succeeded integer, out answered integer, out first_succeeded boolean
)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
begin
    with news as (
        delete from sokka.join_inbox i where i.join_id = p_id and i.pos > p_from
        returning i.pos, i.task_id, i.candidate, i.held
    ), ends as (
        select n.pos, n.candidate, n.held, coalesce(f.status = 'terminated', false) as ok,
               f.finished_at, coalesce(f.code <> 'cancelled', false) as by_itself
          from news n
          left join lateral (
            select f.status, f.finished_at, coalesce(f.error ->> 'code', '') as code
              from sokka.finished_tasks f where f.task_id = n.task_id limit 1) f
            on n.candidate is not null
    )
    select max(e.pos), count(e.candidate), count(e.candidate) filter (where not e.held),
           count(e.candidate) filter (where e.ok),
           count(e.candidate) filter (where e.by_itself),
           (array_agg(e.ok order by e.finished_at, e.candidate) filter (where e.candidate is not null))[1]
      into last_pos, done, let_go, succeeded, answered, first_succeeded
      from ends e;
end
$$;

-- outcome_of_join: null while it is open. p_first: whether the first answer of those
-- that just came was a success; where any is the policy there are no earlier ones.
create function sokka.outcome_of_join(p_join sokka.joins, p_first boolean, p_now timestamptz) returns text
language sql immutable as $$
    select case
        when p_join.policy = 'settled' and p_join.done >= p_join.total then 'satisfied'
        when p_join.policy = 'any' and p_join.done > 0
            then case when p_first then 'satisfied' else 'unmet' end
        when p_join.policy = 'any' and p_join.total = 0 then 'unmet'
        when p_join.policy in ('all', 'first_success', 'quorum') and p_join.succeeded >= p_join.needed
            then 'satisfied'
        when p_join.policy in ('all', 'first_success', 'quorum')
             and p_join.total - p_join.failed < p_join.needed then 'unmet'
        when p_join.deadline_at <= p_now then 'deadline'
    end
$$;

-- decide_join: whether the policy is decided. Its task may be held by somebody else at
-- this moment (not p_held): then the outcome is kept, and the sweep comes back to it.
create function sokka.decide_join(p_join sokka.joins, p_held boolean, p_first boolean) returns sokka.joins
language plpgsql as $$
declare
    v_now constant timestamptz := sokka.clock();
begin
    if not p_held and not exists (select from sokka.tasks t where t.task_id = p_join.task_id) then
        p_join.outcome := 'cancelled';
    else
        p_join.outcome := coalesce(p_join.outcome, sokka.outcome_of_join(p_join, p_first, v_now));
        if p_join.outcome is null then
            return p_join;
        elsif not p_held then
            insert into sokka.join_inbox (join_id, task_id) values (p_join.task_id, p_join.task_id);
            return p_join;
        end if;
    end if;
    p_join.state := 'decided';
    p_join.decided_at := v_now;
    return p_join;
end
$$;

-- let_children_go: as many as have room under max_running, in order. One whose row is
-- held stops them: it would be left behind, and held back for ever.
create function sokka.let_children_go(p_join sokka.joins) returns sokka.joins
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    -- Null without a limit: then all have been let go already.
    v_room constant integer := p_join.max_running - p_join.in_flight;
    v_next uuid[];
    v_places integer[];
    v_locked integer[];
    v_stop integer;
begin
    if v_room is null or v_room <= 0 or p_join.released >= p_join.total then
        return p_join;
    end if;
    select array_agg(n.task_id), array_agg(n.candidate) into v_next, v_places
      from (select t.task_id, t.candidate from sokka.tasks t
             where t.parent_task_id = p_join.task_id and t.candidate > p_join.released
               and t.status = 'snoozed' and t.run_at = sokka.until_told()
             -- As the index of children is ordered: by the index of run_at every held
             -- task of every join was read (450 buffers at 9,900 of them).
             order by t.parent_task_id, t.candidate limit v_room) n;
    if v_next is null then
        p_join.released := p_join.total;
        return p_join;
    end if;
    select array_agg(l.candidate) into v_locked
      from (select t.candidate from sokka.tasks t
             where t.task_id = any (v_next) for update skip locked) l;
    select min(c) into v_stop from unnest(v_places) c where c <> all (coalesce(v_locked, '{}'));
    perform sokka.let_go(array(
        select n.task_id from unnest(v_next, v_places) n (task_id, place)
         where v_stop is null or n.place < v_stop), sokka.clock());
    p_join.in_flight := p_join.in_flight
        + (select count(*) from unnest(v_places) c where v_stop is null or c < v_stop);
    p_join.released := coalesce(v_stop - 1, v_places[cardinality(v_places)]);
    if v_stop is not null then
        insert into sokka.join_inbox (join_id, task_id) values (p_join.task_id, p_join.task_id);
    end if;
    return p_join;
end
$$;

-- join_summary: what a join came to.
create function sokka.join_summary(p_join sokka.joins) returns jsonb
language sql stable as $$
    select jsonb_build_object('policy', p_join.policy, 'needed', p_join.needed,
        'total', p_join.total, 'succeeded', p_join.succeeded, 'failed', p_join.failed,
        'pending', p_join.total - p_join.done, 'deadline_passed', p_join.outcome = 'deadline')
$$;

-- fire_join: the join's locked task ends; or is ready, where it has a reducer and
-- something to reduce. Exactly once: it is called by whoever takes the join from open.
-- True if the task has ended.
create function sokka.fire_join(p_join sokka.joins, p_task sokka.locked_task) returns boolean
language plpgsql as $$
declare
    v_summary constant jsonb := sokka.join_summary(p_join);
    v_fulfilled constant boolean := p_join.outcome = 'satisfied'
        or p_join.outcome = 'deadline' and p_join.policy = 'settled';
    v_error jsonb;
begin
    if v_fulfilled and p_join.reduces then
        perform sokka.let_go(array[p_task.task_id], sokka.clock());
        return false;
    elsif v_fulfilled then
        perform sokka.finish_task(p_task, 'terminated', v_summary, null, sokka.clock(), false);
        return true;
    end if;
    v_error := case p_join.outcome
        when 'deadline' then jsonb_build_object('code', 'deadline',
            'message', 'the deadline passed before the policy was satisfied')
        else jsonb_build_object('code', 'policy_unmet',
            'message', format('%s of %s candidates succeeded, %s failed: %s cannot be satisfied',
                p_join.succeeded, p_join.total, p_join.failed, p_join.policy)) end;
    perform sokka.finish_task(p_task, 'failed', null,
        v_error || jsonb_build_object('join', v_summary), sokka.clock(), false);
    return true;
end
$$;

-- unread_joins: up to p_max joins with something in their inbox, after p_after in order
-- of ids. One probe of the index for each, however much lies there.
create function sokka.unread_joins(p_after uuid, p_max integer) returns setof uuid
language sql stable as $$
    with recursive found as (
        (select i.join_id from sokka.join_inbox i
          where i.join_id > p_after order by i.join_id limit 1)
        union all
        (select n.join_id from found f
          cross join lateral (
            select i.join_id from sokka.join_inbox i
             where i.join_id > f.join_id order by i.join_id limit 1) n)
    )
    select f.join_id from found f limit p_max
$$;

-- advance_joins_due: the sweep's part: joins with something in their inbox that nobody
-- has taken yet, and those whose deadline has passed. When the next one is worth a look.
-- Nothing was written since the last look of this session, and nothing was left: then
-- the inbox is not read, save every second for what was committed late.
create function sokka.advance_joins_due(p_max integer, out next_look timestamptz)
language plpgsql
set enable_seqscan = off
set enable_sort = off
set jit = off
as $$
declare
    v_hint constant jsonb := sokka.scan_hint('joins');
    v_started constant timestamptz := sokka.clock();
    v_full constant boolean := sokka.full_scan_due(v_hint, v_started);
    v_written constant bigint := (select s.last_value from sokka.join_inbox_pos_seq s);
    -- Where the last look stopped, if it stopped before the end.
    v_after uuid := (v_hint ->> 'after')::uuid;
    v_left boolean := coalesce((v_hint ->> 'left')::boolean, false);
    v_ids uuid[] := '{}';
    v_id uuid;
begin
    if v_full or v_left or v_written is distinct from (v_hint ->> 'written')::bigint then
        v_ids := array(select u from sokka.unread_joins(
            coalesce(v_after, '00000000-0000-0000-0000-000000000000'), p_max) u);
        -- Round and round, so that many that are held do not hold up the others.
        v_after := case when cardinality(v_ids) = p_max then v_ids[p_max] end;
    end if;
    for v_id in
        select u.id from unnest(v_ids || array(
            select j.task_id from sokka.joins j
             where j.state = 'open' and j.deadline_at is not null and j.deadline_at <= v_started
             order by j.deadline_at limit p_max)) u (id) group by u.id loop
        perform sokka.advance_join(v_id, 0);
    end loop;
    select case when min(j.deadline_at) is not null
                then greatest(min(j.deadline_at), v_started + interval '100 milliseconds') end
      into next_look
      from sokka.joins j where j.state = 'open' and j.deadline_at is not null;
    v_left := v_after is not null
        or cardinality(v_ids) > 0 and exists (select from sokka.join_inbox i where i.join_id = any (v_ids));
    if v_left then
        next_look := least(next_look, v_started + interval '100 milliseconds');
    end if;
    perform sokka.note_scan('joins', v_hint, v_full, v_started,
        jsonb_build_object('written', v_written, 'left', v_left, 'after', v_after));
end
$$;

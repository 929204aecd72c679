-- What tells a join that there is something to look at. A trigger, so that a row which
-- an owner deletes by hand is missed by its join too, and counts as failed.

-- note_departure: a child or a join has left the live tasks.
create function sokka.note_departure() returns trigger
language plpgsql as $$
begin
    if old.candidate is not null then
        insert into sokka.join_inbox (join_id, task_id, candidate, held)
        values (old.parent_task_id, old.task_id, old.candidate,
            old.status = 'snoozed' and old.run_at = sokka.until_told());
    end if;
    if old.is_join then
        insert into sokka.join_inbox (join_id, task_id) values (old.task_id, old.task_id);
    end if;
    return null;
end
$$;


-- leave_orphans: of cancelled tasks, those that have children, which are to be cancelled
-- too. Noted in the inbox, so that the sweep goes on where this call stops. Under an old
-- snapshot children made since cannot be seen: then all of them are noted.
create function sokka.leave_orphans(p_task_ids uuid[]) returns uuid[]
language plpgsql as $$
declare
    v_parents uuid[];
begin
    with parents as (
        insert into sokka.join_inbox (join_id, task_id)
        select u.id, u.id from unnest(p_task_ids) u (id)
         where sokka.old_snapshot()
            or exists (select from sokka.tasks c where c.parent_task_id = u.id)
        returning join_id
    )
    select array_agg(p.join_id) into v_parents from parents p;
    return v_parents;
end
$$;

-- let_go: tasks that waited for others are ready now. Their rows are locked.
create function sokka.let_go(p_task_ids uuid[], p_now timestamptz) returns void
language plpgsql as $$
declare
    v_topics text[];
begin
    with ready as (
        update sokka.tasks t
           set status = 'starting', queue_pos = nextval('sokka.queue_pos_seq'), run_at = p_now,
               waits_for = null, record_ver = t.record_ver + 1, updated_at = p_now
         where t.task_id = any (p_task_ids) and t.status = 'snoozed'
        returning t.topic
    )
    select array_agg(distinct r.topic order by r.topic) into v_topics from ready r;
    if v_topics is not null then
        perform sokka.announce(v_topics);
    end if;
end
$$;

-- wake_waiting: parents that sleep for one of these children. Whose row somebody holds at
-- this moment gets a note in the inbox, unless that is wait_for_task: it is not asleep
-- yet, and looks at the child when this end is through.
create function sokka.wake_waiting(p_parents uuid[], p_children uuid[], p_now timestamptz) returns void
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
    v_woken uuid[];
begin
    if sokka.old_snapshot() then
        -- One that fell asleep since cannot be seen: the sweep finds out.
        insert into sokka.join_inbox (join_id, task_id)
        select m.parent, m.child from unnest(p_parents, p_children) m (parent, child);
        return;
    end if;
    select array_agg(l.task_id) into v_woken
      from (select u.* from unnest(p_parents, p_children) u (parent, child) order by u.parent) m
     cross join lateral (
        select t.task_id from sokka.tasks t
         where t.task_id = m.parent and t.waits_for = m.child and t.status = 'snoozed'
           for update skip locked) l;
    if v_woken is not null then
        perform sokka.let_go(v_woken, p_now);
    end if;
    insert into sokka.join_inbox (join_id, task_id)
    select t.task_id, m.child
      from unnest(p_parents, p_children) m (parent, child)
     cross join lateral (
        select t.task_id from sokka.tasks t
         where t.task_id = m.parent and t.waits_for = m.child and t.status = 'snoozed') t;
end
$$;

-- mark_idle: the caller is about to sleep and wants a notification for these
-- topics until clock + p_for. True: marked; commit, poll once more, then sleep.
-- False: producers are in the middle of enqueueing; poll again shortly.
-- The exclusive lock orders it against announce: without it a producer sees no
-- mark, the worker sees no task, and both go on.
create function sokka.mark_idle(p_topics text[], p_pid text, p_for interval)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_for constant interval := sokka.checked_lease('for', p_for);
    v_slot integer;
begin
    perform sokka.check_reserve(p_topics, null, p_pid, 1);
    perform sokka.check_not_null('for', p_for is null);
    foreach v_slot in array array(
        select distinct sokka.wake_slot(t) from unnest(p_topics) t order by 1) loop
        if not pg_try_advisory_xact_lock(
            'sokka.idle_workers'::regclass::oid::integer, v_slot) then
            return false;
        end if;
    end loop;
    insert into sokka.idle_workers as w (topic, pid, idle_until)
    select distinct t, p_pid, sokka.clock() + v_for from unnest(p_topics) t order by 1
    on conflict (topic, pid) do update set idle_until = excluded.idle_until;
    return true;
end
$$;

-- clear_idle: the caller is busy or gone; nobody need notify it. Marks that were
-- left behind go with it.
create function sokka.clear_idle(p_pid text) returns void
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
as $$
begin
    delete from sokka.idle_workers w
     where w.pid = p_pid or w.idle_until < sokka.clock() - interval '1 day';
end
$$;

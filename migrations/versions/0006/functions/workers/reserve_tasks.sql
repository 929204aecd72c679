-- sweep_if_due: a bounded sweep on behalf of a reserve that came out short; at
-- most one per half second in the installation. True when it may have made tasks
-- ready.
create function sokka.sweep_if_due() returns boolean
language plpgsql as $$
declare
    v_now constant bigint := (extract(epoch from sokka.clock()) * 1000)::bigint;
    v_swept_at constant bigint := pg_sequence_last_value('sokka.swept_at_seq');
    v_done record;
begin
    -- A clock that was set back must not stop the sweep.
    if v_now - v_swept_at between 0 and 499 then
        return false;
    end if;
    select * into v_done from sokka.sweep_once(200);
    return v_done.woken > 0 or v_done.taken_back > 0;
end
$$;

create function sokka.check_reserve(
    p_topics text[], p_limits integer[], p_pid text, p_max_tasks integer
) returns void
language plpgsql as $$
declare
    v_topic text;
begin
    if p_topics is null then
        perform sokka.check_not_null('topics', true);
    end if;
    if array_ndims(p_topics) is distinct from 1 or cardinality(p_topics) > 1000 then
        perform sokka.refuse_argument('topics', 'must be a list of 1 to 1000 topics');
    end if;
    foreach v_topic in array p_topics loop
        if not sokka.plain_name(v_topic) then
            perform sokka.check_name('topics', v_topic);
        end if;
    end loop;
    if not sokka.plain_name(p_pid) then
        perform sokka.check_name('pid', p_pid);
    end if;
    if p_max_tasks is null or p_max_tasks not between 1 and 10000 then
        perform sokka.refuse_argument('max_tasks', 'must be from 1 to 10000');
    end if;
    if p_limits is not null and
       (cardinality(p_limits) <> cardinality(p_topics) or 0 > any (p_limits)) then
        perform sokka.refuse_argument('limits', 'must hold one count for each topic, none negative');
    end if;
    if sokka.old_snapshot() then
        perform sokka.check_isolation();
    end if;
end
$$;

-- next_turn: counts this session's calls; where several topics begin.
create function sokka.next_turn(p_topics integer) returns integer
language plpgsql as $$
declare
    v_turn integer;
begin
    if p_topics = 1 then
        return 0;
    end if;
    v_turn := coalesce(substring(current_setting('skpg_turn.sokka', true) from '^[0-9]{1,6}$'), '0');
    perform set_config('skpg_turn.sokka', ((v_turn + 1) % 1000000)::text, false);
    return v_turn;
end
$$;

-- reserve_tasks: lease up to p_max_tasks ready tasks.
-- Needs:  topics, the caller's identity, a READ COMMITTED transaction.
-- Leaves: running, each under a new token, until clock + p_lease (null: the
--         topic's lease, else the installation's). Within a topic by priority,
--         then arrival; over the topics in turn; of each at most its p_limits.
-- Raises: 22023, 25001.   Locks: the tasks it returns (SKIP LOCKED: never waits).
create function sokka.reserve_tasks(
    p_topics text[], p_pid text, p_max_tasks integer, p_lease interval default null,
    p_limits integer[] default null
) returns setof sokka.leased_task
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_taken integer := 0;
    v_found integer;
begin
    -- An exchange may reserve nothing; here that is refused. Several topics take turns.
    if coalesce(cardinality(p_topics), 0) <> 1 or coalesce(p_max_tasks, 0) <= 0 then
        perform sokka.check_reserve(p_topics, p_limits, p_pid, p_max_tasks);
        return query select * from sokka.take_in_turn(
            p_topics, p_limits, p_pid, p_max_tasks, sokka.checked_lease('lease', p_lease), true);
        return;
    end if;
    loop
        return query
            select e.task_id, e.task_group_id, e.topic, e.sub_topic, e.kind, e.data, e.headers,
                   e.pid, e.token, e.lease_expires_at, e.attempt, e.failures, e.max_attempts,
                   e.timeout, e.checkpoint, e.record_ver, e.created_at, e.cancel_requested_at,
                   e.priority, e.losses, e.leased_at, e.expires_at, e.parent_task_id, e.candidate
              from sokka.exchange_work(p_pid, null, null, null, null, p_topics, p_max_tasks - v_taken, p_lease,
                       case when v_taken = 0 or p_limits is null then p_limits
                            else array[p_limits[1] - v_taken] end) e;
        get diagnostics v_found = row_count;
        -- An exchange that found something has not swept.
        exit when v_found = 0 or v_found >= least(p_max_tasks, p_limits[1]) or v_taken > 0
            or not sokka.sweep_if_due();
        v_taken := v_found;
    end loop;
end
$$;

-- capped: a counter, and no error at the end of its range.
create function sokka.capped(p_count integer, p_more integer) returns integer
language sql immutable as $$
    select least(p_count::bigint + p_more, 2147483647)::integer
$$;

-- The moves that verbs share. The rows are locked FOR UPDATE and judged before.

-- finish_rows: move tasks to their final record. p_results and p_errors map ids to results
-- and errors; p_error is that of all. p_owned: the lease stays on the record, as the one
-- under which it ended.
-- p_failures: how many the end adds to the task's failures. p_advance: also see to the
-- joins and children of those tasks; otherwise the inbox has it. p_related: whether there
-- may be a join among them, or a task that stands below another. p_rows: where the rows
-- are, if they have not been changed since they were locked: nobody else can move them,
-- and a look-up by key is saved for each (1 us), twice.
--
-- First the record, then the delete: as one statement all columns went through a
-- temporary store on their way (1 us a row).
create function sokka.finish_rows(
    p_task_ids uuid[], p_status text, p_results jsonb, p_error jsonb, p_errors jsonb,
    p_now timestamptz, p_owned boolean, p_failures integer, p_advance boolean,
    p_related boolean, p_rows tid[]
) returns void
language plpgsql
-- A session that planned the look at watched_tasks while that was empty would read all
-- of it for ever. What is forbidden counts as so dear that all is compiled: 60 ms a call.
set enable_seqscan = off
set jit = off
as $$
declare
    v_rows constant tid[] := coalesce(p_rows,
        array(select t.ctid from sokka.tasks t where t.task_id = any (p_task_ids)));
    v_inbox_pos bigint;
    v_joins uuid[];
    v_parents uuid[];
    v_children uuid[];
begin
    if p_related then
        -- Where the inbox of the joins stands: what this end tells them lies after it.
        v_inbox_pos := coalesce(pg_sequence_last_value('sokka.join_inbox_pos_seq'), 0);
        select array_agg(case when t.is_join then t.task_id else t.parent_task_id end)
                   filter (where t.is_join or t.candidate is not null),
               array_agg(t.parent_task_id)
                   filter (where t.candidate is null and t.parent_task_id is not null),
               array_agg(t.task_id)
                   filter (where t.candidate is null and t.parent_task_id is not null)
          into v_joins, v_parents, v_children
          from sokka.tasks t
         where t.ctid = any (v_rows) and (t.is_join or t.parent_task_id is not null);
    end if;
    insert into sokka.finished_tasks (
        task_id, task_group_id, created_at, finished_at, run_at, record_ver, event_seq, priority,
        attempt, failures, losses, max_attempts, max_losses, depth, data_aside, is_join, status, topic,
        sub_topic, kind, token, reserved_seq, leased_at, lease_expires_at, pid, expires_at, timeout,
        cancel_requested_at, cancel_seq, checkpoint_seq, checkpoint_at, resubmit_of,
        parent_task_id, candidate, unique_key, cancel_reason, retry, headers, error, progress, data, checkpoint, result)
    select
        task_id, task_group_id, created_at, p_now, run_at, record_ver + 1, event_seq + 1, priority,
        attempt, sokka.capped(failures, p_failures), losses, max_attempts, max_losses, depth,
        data_aside, is_join, p_status, topic, sub_topic, kind, case when p_owned then token end,
        case when p_owned then reserved_seq end, leased_at, lease_expires_at, case when p_owned then pid end, expires_at, timeout,
        cancel_requested_at, cancel_seq, checkpoint_seq, checkpoint_at, resubmit_of, parent_task_id,
        candidate, unique_key, cancel_reason, retry, headers,
        coalesce(p_error, p_errors -> task_id::text), progress, data, checkpoint,
        case when p_results is not null then p_results -> task_id::text end
      from sokka.tasks t where t.ctid = any (v_rows);
    delete from sokka.tasks t where t.ctid = any (v_rows);
    if v_parents is not null then
        perform sokka.wake_waiting(v_parents, v_children, p_now);
    end if;
    if p_advance and p_error ->> 'code' = 'cancelled' then
        v_joins := v_joins || sokka.leave_orphans(p_task_ids);
    end if;
    if p_advance and v_joins is not null then
        perform sokka.advance_joins(v_joins, v_inbox_pos);
    end if;
    if exists (select from sokka.watched_tasks w where w.task_id = any (p_task_ids)) then
        perform sokka.tell_watchers(p_task_ids);
    end if;
end
$$;

-- finish_tasks: as finish_rows, with one error for all of them.
create function sokka.finish_tasks(
    p_task_ids uuid[], p_status text, p_results jsonb, p_error jsonb, p_now timestamptz,
    p_owned boolean, p_failures integer default 0, p_advance boolean default true,
    p_related boolean default true, p_rows tid[] default null
) returns void
language plpgsql as $$
begin
    perform sokka.finish_rows(p_task_ids, p_status, p_results, p_error, null, p_now, p_owned,
        p_failures, p_advance, p_related, p_rows);
end
$$;

-- finish_task: finish one task; says what became of it.
create function sokka.finish_task(
    p_task sokka.locked_task, p_status text, p_result jsonb, p_error jsonb, p_now timestamptz,
    p_owned boolean, p_failures integer default 0
) returns sokka.task_outcome
language plpgsql as $$
begin
    perform sokka.finish_tasks(array[p_task.task_id], p_status,
        case when p_result is not null then jsonb_build_object(p_task.task_id, p_result) end,
        p_error, p_now, p_owned, p_failures,
        p_related => p_task.is_join or p_task.parent_task_id is not null);
    return (p_status, p_task.record_ver + 1, p_task.run_at)::sokka.task_outcome;
end
$$;

create function sokka.cancelled_error(p_reason text) returns jsonb
language sql stable as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'code', 'cancelled', 'message', 'the task was cancelled', 'reason', p_reason))
$$;

-- record_past_lease: keep what the row is about to forget.
create function sokka.record_past_lease(
    p_task sokka.locked_task, p_event text, p_now timestamptz, p_detail jsonb
) returns void
language plpgsql as $$
begin
    insert into sokka.past_leases (
        task_id, ended_at, leased_at, lease_expires_at, reserved_seq, ended_seq, token, attempt,
        topic, event, pid, detail)
    values (
        p_task.task_id, p_now, p_task.leased_at, p_task.lease_expires_at, p_task.reserved_seq,
        p_task.event_seq + 1, p_task.token, p_task.attempt, p_task.topic, p_event, p_task.pid,
        p_detail);
end
$$;

-- return_to_starting: the task may be reserved again at once. The attempt is
-- given back, or the loss counted, by the numbers passed.
create function sokka.return_to_starting(
    p_task sokka.locked_task, p_event text, p_now timestamptz, p_detail jsonb,
    p_attempt integer, p_losses integer
) returns sokka.task_outcome
language plpgsql as $$
declare
    v_outcome sokka.task_outcome;
begin
    perform sokka.record_past_lease(p_task, p_event, p_now, p_detail);
    update sokka.tasks t
       set status = 'starting', queue_pos = nextval('sokka.queue_pos_seq'), run_at = p_now,
           pid = null, token = null, leased_at = null, lease_expires_at = null,
           reserved_seq = null, attempt = p_attempt, losses = p_losses,
           event_seq = t.event_seq + 1, record_ver = t.record_ver + 1, updated_at = p_now
     where t.task_id = p_task.task_id
    returning t.status, t.record_ver, t.run_at into v_outcome;
    return v_outcome;
end
$$;

-- put_to_sleep: snoozed until p_wait has passed, or the child p_waits_for is final;
-- with no wait it passes on to starting at once. Losses start anew.
create function sokka.put_to_sleep(
    p_task sokka.locked_task, p_event text, p_now timestamptz, p_wait interval, p_error jsonb,
    p_attempt integer, p_failures integer, p_detail jsonb, p_waits_for uuid default null
) returns sokka.task_outcome
language plpgsql as $$
declare
    v_outcome sokka.task_outcome;
begin
    perform sokka.record_past_lease(p_task, p_event, p_now, p_detail);
    update sokka.tasks t
       set status = 'snoozed', run_at = p_now + p_wait, waits_for = p_waits_for,
           pid = null, token = null, leased_at = null, lease_expires_at = null,
           reserved_seq = null, attempt = p_attempt, failures = p_failures, losses = 0,
           error = coalesce(p_error, t.error),
           event_seq = t.event_seq + 1, record_ver = t.record_ver + 1, updated_at = p_now
     where t.task_id = p_task.task_id
    returning t.status, t.record_ver, t.run_at into v_outcome;
    if p_wait = interval '0' then
        v_outcome := sokka.wake_task(p_task.task_id, p_now);
        perform sokka.announce(array[p_task.topic]);
    end if;
    return v_outcome;
end
$$;

-- wake_task: snoozed -> starting.
create function sokka.wake_task(p_task_id uuid, p_now timestamptz) returns sokka.task_outcome
language plpgsql as $$
declare
    v_outcome sokka.task_outcome;
begin
    update sokka.tasks t
       set status = 'starting', queue_pos = nextval('sokka.queue_pos_seq'),
           record_ver = t.record_ver + 1, updated_at = p_now
     where t.task_id = p_task_id
    returning t.status, t.record_ver, t.run_at into v_outcome;
    return v_outcome;
end
$$;

-- lease_over: take back a lease whose time is over: starting again, or the end
-- where a cancel request stands or the losses are spent.
create function sokka.lease_over(p_task sokka.locked_task, p_now timestamptz)
returns sokka.task_outcome
language plpgsql as $$
declare
    v_losses constant integer := sokka.capped(p_task.losses, 1);
    v_outcome sokka.task_outcome;
    v_error jsonb;
begin
    v_outcome := sokka.return_to_starting(p_task, 'lease_lost', p_now,
        jsonb_build_object('losses', v_losses), p_task.attempt, v_losses);
    if p_task.cancel_requested_at is not null then
        v_error := sokka.cancelled_error(p_task.cancel_reason);
    elsif p_task.losses >= p_task.max_losses then
        v_error := jsonb_build_object('code', 'lease_lost',
            'message', format('its lease ran out %s times', v_losses),
            'pid', p_task.pid, 'token', p_task.token);
    else
        return v_outcome;
    end if;
    p_task.record_ver := v_outcome.record_ver;
    return sokka.finish_task(p_task, 'failed', null, v_error, p_now, false);
end
$$;

-- retry_wait: initial * multiplier ^ (failures - 1), at most max, spread by
-- jitter. Compared as logarithms: 2 ^ 1024 is beyond a double.
create function sokka.retry_wait(p_retry jsonb, p_failures integer) returns interval
language plpgsql as $$
declare
    v_initial constant double precision := coalesce((p_retry ->> 'initial')::double precision, 1);
    v_max constant double precision := coalesce((p_retry ->> 'max')::double precision, 30);
    v_multiplier constant double precision := coalesce((p_retry ->> 'multiplier')::double precision, 2);
    v_jitter constant double precision := coalesce((p_retry ->> 'jitter')::double precision, 0);
    v_wait double precision := least(v_initial, v_max);
begin
    if v_wait > 0 and p_failures > 1 then
        if ln(v_initial) + (p_failures - 1) * ln(v_multiplier) >= ln(v_max) then
            v_wait := v_max;
        else
            v_wait := v_initial * power(v_multiplier, p_failures - 1);
        end if;
    end if;
    return make_interval(secs => greatest(0, v_wait * (1 + v_jitter * (2 * random() - 1))));
end
$$;

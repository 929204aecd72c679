-- Ends of a batch by retry, snooze and fail, as they come where a service that many tasks
-- call has gone: one statement locks them, one writes each move (30 us a task where one
-- call for each took 110 to 150).

-- plain_error: whether error_object surely takes it, and it ends no task but its own (a
-- cancelled one takes its children along).
create function sokka.plain_error(p_error jsonb) returns boolean
language sql immutable as $$
    select case when jsonb_typeof(p_error) = 'object' then
        coalesce(jsonb_typeof(p_error -> 'code'), 'string') = 'string'
            and p_error ->> 'code' is distinct from 'cancelled'
            and octet_length(p_error::text) <= 65536
        else false end
$$;

-- plain_wait: whether it is surely a delay, in seconds.
create function sokka.plain_wait(p_seconds jsonb) returns boolean
language sql immutable as $$
    select case when jsonb_typeof(p_seconds) = 'number'
        then p_seconds::numeric between 0 and 315576000 else false end
$$;

-- settle_together: end those members of a batch that retry, snooze or fail, hold their
-- lease, and change no row but their own; what became of them. The others are left to
-- settle_others: a refusal, a cancel request, a wait of nothing, the failure of a task that
-- stands above or below another.
create function sokka.settle_together(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[], p_ords bigint[]
) returns setof sokka.verdict
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
    v_rows tid[];
    v_ords bigint[];
    v_errors jsonb[];
    v_waits interval[];
    v_now timestamptz;
    v_failed record;
begin
    -- As end_leases locks its own. With no wait a task fails.
    select array_agg(s.ctid), array_agg(s.ord), array_agg(s.error), array_agg(s.wait)
      into v_rows, v_ords, v_errors, v_waits
      from (select l.ctid, m.ord, m.error, l.related,
                   case when m.verb = 'snooze' then m.wait
                        when m.verb = 'retry' and sokka.capped(l.failures, 1) < l.max_attempts
                        then coalesce(m.wait, sokka.retry_wait(l.retry, sokka.capped(l.failures, 1)))
                   end as wait
              from (select distinct on (u.task_id, u.token) u.ord, u.task_id, u.token, u.verb,
                           jsonb_build_object('code', 'error')
                               || case u.verb when 'fail' then u.arg when 'retry' then u.arg -> 'error' end as error,
                           make_interval(secs => case when u.verb = 'snooze' then u.arg::double precision
                               when jsonb_typeof(u.arg -> 'delay') = 'number'
                               then (u.arg -> 'delay')::double precision end) as wait
                      from unnest(p_ords, p_task_ids, p_tokens, p_verbs, p_args) u (ord, task_id, token, verb, arg)
                     where case u.verb
                               when 'snooze' then sokka.plain_wait(u.arg)
                               when 'fail' then sokka.plain_error(u.arg)
                               when 'retry' then sokka.plain_error(u.arg -> 'error')
                                   and (coalesce(jsonb_typeof(u.arg -> 'delay'), 'null') = 'null'
                                        or sokka.plain_wait(u.arg -> 'delay'))
                           end
                     order by u.task_id, u.token, u.ord) m
             cross join lateral (
                select t.ctid, t.failures, t.max_attempts, t.retry, t.cancel_requested_at,
                       t.is_join or t.parent_task_id is not null as related
                  from sokka.tasks t
                 where t.task_id = m.task_id and t.token = m.token
                   and t.pid = p_pid and t.status = 'running'
                   for update skip locked) l
             where m.verb = 'fail' or l.cancel_requested_at is null) s
     where s.wait > interval '0' or (s.wait is null and not s.related);
    v_now := sokka.clock();
    insert into sokka.past_leases (
        task_id, ended_at, leased_at, lease_expires_at, reserved_seq, ended_seq, token, attempt,
        topic, event, pid, detail)
    select t.task_id, v_now, t.leased_at, t.lease_expires_at, t.reserved_seq, t.event_seq + 1,
           t.token, t.attempt, t.topic, case when u.error is null then 'snoozed' else 'retried' end, t.pid,
           case when u.error is null then jsonb_build_object('seconds', extract(epoch from u.wait))
                else jsonb_build_object('error', u.error, 'failures', sokka.capped(t.failures, 1)) end
      from unnest(v_rows, v_errors, v_waits) u (place, error, wait)
      join sokka.tasks t on t.ctid = u.place
     where u.wait is not null and t.lease_expires_at > v_now;
    return query
        update sokka.tasks t
           set status = 'snoozed', run_at = v_now + u.wait, waits_for = null,
               pid = null, token = null, leased_at = null, lease_expires_at = null,
               reserved_seq = null, losses = 0, error = coalesce(u.error, t.error),
               attempt = case when u.error is null then greatest(t.attempt - 1, 0) else t.attempt end,
               failures = case when u.error is null then t.failures else sokka.capped(t.failures, 1) end,
               event_seq = t.event_seq + 1, record_ver = t.record_ver + 1, updated_at = v_now
          from unnest(v_rows, v_ords, v_errors, v_waits) u (place, ord, error, wait)
         where t.ctid = u.place and u.wait is not null and t.lease_expires_at > v_now
        returning u.ord, t.task_id, 'ok'::text,
            to_jsonb((t.status, t.record_ver, t.run_at)::sokka.task_outcome);
    if array_position(v_waits, null) is null then
        return;
    end if;
    select array_agg(t.task_id) as task_ids, array_agg(u.place) as places, array_agg(u.ord) as ords,
           array_agg(to_jsonb(('failed', t.record_ver + 1, t.run_at)::sokka.task_outcome)) as outcomes,
           jsonb_object_agg(t.task_id, u.error) as errors
      into v_failed
      from unnest(v_rows, v_ords, v_errors, v_waits) u (place, ord, error, wait)
      join sokka.tasks t on t.ctid = u.place
     where u.wait is null and t.lease_expires_at > v_now;
    if v_failed.task_ids is not null then
        perform sokka.finish_rows(v_failed.task_ids, 'failed', null, null, v_failed.errors, v_now, true,
            1, true, false, v_failed.places);
        return query select f.ord, f.task_id, 'ok', f.outcome
                       from unnest(v_failed.task_ids, v_failed.ords, v_failed.outcomes) f (task_id, ord, outcome);
    end if;
end
$$;

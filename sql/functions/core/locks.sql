-- Lock a task's row by its key alone; then, in a later statement, read the
-- clock and judge the caller's proof. A condition on the clock or the token
-- inside the locking statement would be judged before the wait, not after it.
--
-- Three strengths (the order of locks is: topics, tasks by id, fences):
--   fence    FOR KEY SHARE      heartbeats pass, take-overs wait
--   keeping  FOR NO KEY UPDATE  passes a held fence, meets other writers
--   ending   FOR UPDATE         waits for a held fence

-- What the verbs need of a row, without its payloads: passing those along would
-- fetch a large checkpoint from its TOAST table at every heartbeat.
create view sokka.locked_task as
select task_id, topic, status, pid, token, leased_at, lease_expires_at, record_ver,
       attempt, failures, losses, max_attempts, max_losses, retry, run_at, expires_at,
       cancel_requested_at, cancel_reason, event_seq, reserved_seq, created_at, is_join, candidate,
       parent_task_id
  from sokka.tasks;

-- found: how a row stands, for the detail of a refusal.
create function sokka.found(p_task sokka.locked_task, p_expected jsonb) returns jsonb
language sql stable as $$
    select jsonb_build_object(
        'task_id', p_task.task_id, 'status', p_task.status, 'pid', p_task.pid,
        'token', p_task.token, 'record_ver', p_task.record_ver,
        'lease_expires_at', p_task.lease_expires_at, 'expected', p_expected)
$$;

-- refuse_missing: the live row is not there: finished (SK002) or unknown (SK001).
-- Called after the locking statement, so it sees a finish that was waited for.
create function sokka.refuse_missing(p_task_id uuid, p_expected jsonb) returns void
language plpgsql as $$
declare
    v_detail jsonb;
begin
    select jsonb_build_object('task_id', f.task_id, 'status', f.status, 'pid', f.pid,
               'token', f.token, 'record_ver', f.record_ver, 'error_code', f.error ->> 'code',
               'expected', p_expected)
      into v_detail from sokka.finished_tasks f where f.task_id = p_task_id;
    if found then
        perform sokka.refuse('SK002',
            format('task %s is already %s', p_task_id, v_detail ->> 'status'), v_detail);
    end if;
    perform sokka.refuse('SK001', format('there is no task %s', p_task_id),
        jsonb_build_object('task_id', p_task_id, 'expected', p_expected));
end
$$;

-- unfit_proof: whether check_proof would refuse. Both this and lease_holds are
-- evaluated in place; the functions that say why are called only to refuse.
create function sokka.unfit_proof(p_task_id uuid, p_pid text, p_token bigint) returns boolean
language sql stable as $$
    select p_task_id is null or p_pid is null or p_token is null
        or current_setting('transaction_isolation') in ('repeatable read', 'serializable')
$$;

-- check_proof: refuse a proof with a null in it, or the wrong isolation.
create function sokka.check_proof(p_task_id uuid, p_pid text, p_token bigint) returns void
language plpgsql as $$
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    perform sokka.check_not_null('pid', p_pid is null);
    perform sokka.check_not_null('token', p_token is null);
    perform sokka.check_isolation();
end
$$;

-- lease_fault: null, or the SQLSTATE of the first rule that a proof breaks.
create function sokka.lease_fault(
    p_status text, p_pid text, p_token bigint, p_lease_expires_at timestamptz,
    p_claimed_pid text, p_claimed_token bigint, p_now timestamptz
) returns text
language sql immutable as $$
    select case
        when p_status <> 'running' then 'SK006'
        when p_pid <> p_claimed_pid then 'SK003'
        when p_token <> p_claimed_token then 'SK005'
        when p_lease_expires_at <= p_now then 'SK004'
    end
$$;

-- lease_holds: whether a row carries this lease, live. A null anywhere is a no.
create function sokka.lease_holds(
    p_status text, p_pid text, p_token bigint, p_lease_expires_at timestamptz,
    p_claimed_pid text, p_claimed_token bigint, p_now timestamptz
) returns boolean
language sql immutable as $$
    select coalesce(p_status = 'running' and p_pid = p_claimed_pid
        and p_token = p_claimed_token and p_lease_expires_at > p_now, false)
$$;

-- judge_lease: refuse unless the locked row's lease is this one, and live.
create function sokka.judge_lease(
    p_task sokka.locked_task, p_task_id uuid, p_pid text, p_token bigint, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_expected constant jsonb := jsonb_build_object('pid', p_pid, 'token', p_token);
    v_fault text;
begin
    if p_task.task_id is null then
        perform sokka.refuse_missing(p_task_id, v_expected);
    end if;
    v_fault := sokka.lease_fault(p_task.status, p_task.pid, p_task.token,
        p_task.lease_expires_at, p_pid, p_token, p_now);
    case v_fault
    when 'SK006' then
        perform sokka.refuse(v_fault, format('task %s is %s, not running', p_task_id, p_task.status),
            sokka.found(p_task, v_expected || '{"status": ["running"]}'));
    when 'SK003' then
        perform sokka.refuse(v_fault, format('task %s is held by another owner', p_task_id),
            sokka.found(p_task, v_expected));
    when 'SK005' then
        perform sokka.refuse(v_fault, format('token %s of task %s is not the current one', p_token, p_task_id),
            sokka.found(p_task, v_expected));
    when 'SK004' then
        perform sokka.refuse(v_fault, format('the lease on task %s is over', p_task_id),
            sokka.found(p_task, v_expected || jsonb_build_object('clock', p_now)));
    else
        null;
    end case;
end
$$;

create function sokka.lock_for_fence(p_task_id uuid, p_pid text, p_token bigint)
returns sokka.locked_task
language plpgsql as $$
declare
    v_task sokka.locked_task;
begin
    if sokka.unfit_proof(p_task_id, p_pid, p_token) then
        perform sokka.check_proof(p_task_id, p_pid, p_token);
    end if;
    select * into v_task from sokka.locked_task t where t.task_id = p_task_id for key share;
    if not sokka.lease_holds(v_task.status, v_task.pid, v_task.token,
            v_task.lease_expires_at, p_pid, p_token, sokka.clock()) then
        perform sokka.judge_lease(v_task, p_task_id, p_pid, p_token, sokka.clock());
    end if;
    return v_task;
end
$$;

create function sokka.lock_for_keeping(p_task_id uuid, p_pid text, p_token bigint)
returns sokka.locked_task
language plpgsql as $$
declare
    v_task sokka.locked_task;
begin
    if sokka.unfit_proof(p_task_id, p_pid, p_token) then
        perform sokka.check_proof(p_task_id, p_pid, p_token);
    end if;
    select * into v_task from sokka.locked_task t where t.task_id = p_task_id for no key update;
    if not sokka.lease_holds(v_task.status, v_task.pid, v_task.token,
            v_task.lease_expires_at, p_pid, p_token, sokka.clock()) then
        perform sokka.judge_lease(v_task, p_task_id, p_pid, p_token, sokka.clock());
    end if;
    return v_task;
end
$$;

create function sokka.lock_for_ending(p_task_id uuid, p_pid text, p_token bigint)
returns sokka.locked_task
language plpgsql as $$
declare
    v_task sokka.locked_task;
begin
    if sokka.unfit_proof(p_task_id, p_pid, p_token) then
        perform sokka.check_proof(p_task_id, p_pid, p_token);
    end if;
    select * into v_task from sokka.locked_task t where t.task_id = p_task_id for update;
    if not sokka.lease_holds(v_task.status, v_task.pid, v_task.token,
            v_task.lease_expires_at, p_pid, p_token, sokka.clock()) then
        perform sokka.judge_lease(v_task, p_task_id, p_pid, p_token, sokka.clock());
    end if;
    return v_task;
end
$$;

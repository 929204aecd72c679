-- settle_others: end members of a batch by other verbs than terminate, one by one,
-- in order of ids. A row that somebody else holds is passed by (55P03).
create function sokka.settle_others(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[], p_ords bigint[]
) returns setof sokka.verdict
language plpgsql as $$
declare
    v_member record;
    v_detail text;
begin
    for v_member in
        select m.* from unnest(p_ords, p_task_ids, p_tokens, p_verbs, p_args)
                        m (ord, task_id, token, verb, arg) order by m.task_id, m.ord loop
        begin
            if exists (select from sokka.tasks t where t.task_id = v_member.task_id) then
                perform from sokka.tasks t where t.task_id = v_member.task_id for update skip locked;
                if not found then
                    perform sokka.refuse('55P03', format('task %s is busy', v_member.task_id),
                        jsonb_build_object('task_id', v_member.task_id));
                end if;
            end if;
            return next (v_member.ord, v_member.task_id, 'ok', to_jsonb(sokka.settle_one(
                p_pid, v_member.task_id, v_member.token, v_member.verb, v_member.arg)))::sokka.verdict;
        exception when others then
            -- Refusals become verdicts; anything else is nobody's verdict.
            get stacked diagnostics v_detail = pg_exception_detail;
            if sqlstate not like 'SK%' and sqlstate not in ('55P03', '22023') then
                raise;
            end if;
            return next (v_member.ord, v_member.task_id, sqlstate,
                nullif(v_detail, '')::jsonb)::sokka.verdict;
        end;
    end loop;
end
$$;

create function sokka.settle_one(
    p_pid text, p_task_id uuid, p_token bigint, p_verb text, p_arg jsonb
) returns sokka.task_outcome
language plpgsql as $$
declare
    v_outcome sokka.task_outcome;
begin
    case p_verb
    when 'fail' then
        select * into v_outcome from sokka.fail_task(p_task_id, p_pid, p_token, p_arg);
    when 'retry' then
        select * into v_outcome from sokka.retry_task(p_task_id, p_pid, p_token, p_arg -> 'error',
            sokka.duration_of('delay', p_arg -> 'delay'));
    when 'snooze' then
        select * into v_outcome from sokka.snooze_task(p_task_id, p_pid, p_token,
            sokka.duration_of('snooze', p_arg));
    when 'release' then
        select * into v_outcome from sokka.release_lease(p_task_id, p_pid, p_token);
    when 'wait' then
        perform sokka.take_child(sokka.uuid_of('waits_for', p_arg));
        select * into v_outcome from sokka.wait_for_task(p_task_id, p_pid, p_token,
            sokka.uuid_of('waits_for', p_arg));
    end case;
    return v_outcome;
end
$$;

-- take_child: the lock of wait_for_task, not waited for: two batches that end each
-- other's children would wait in a ring.
create function sokka.take_child(p_task_id uuid) returns void
language plpgsql as $$
begin
    perform from sokka.tasks t where t.task_id = p_task_id for key share skip locked;
    if not found and exists (select from sokka.tasks t where t.task_id = p_task_id) then
        perform sokka.refuse('55P03', format('task %s is busy', p_task_id),
            jsonb_build_object('task_id', p_task_id));
    end if;
end
$$;

create function sokka.check_settle(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[]
) returns void
language plpgsql as $$
begin
    perform sokka.check_batch(p_pid, p_task_ids, p_tokens);
    if p_verbs is null or array_position(p_verbs, null) is not null then
        perform sokka.check_not_null('verbs', true);
    end if;
    if cardinality(p_verbs) <> cardinality(p_task_ids) then
        perform sokka.refuse_argument('verbs', 'must hold one verb for each task id');
    end if;
    if 'terminate' <> any (p_verbs) and not p_verbs <@ array['terminate', 'fail', 'retry', 'snooze', 'release', 'wait'] then
        perform sokka.refuse_argument('verbs',
            'must be terminate, fail, retry, snooze, release or wait');
    end if;
    if p_args is not null then
        perform sokka.check_results('args', p_task_ids, p_args);
    end if;
end
$$;

-- settle_failures: end members of a batch by other verbs than terminate: together what can
-- be, the rest one by one.
create function sokka.settle_failures(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[], p_ords bigint[]
) returns setof sokka.verdict
language plpgsql as $$
declare
    v_verdict sokka.verdict;
    -- By position: searching an array for each member would be quadratic.
    v_done boolean[] := array_fill(false, array[(select max(o)::integer from unnest(p_ords) o)]);
    v_left record;
begin
    for v_verdict in select * from sokka.settle_together(
            p_pid, p_task_ids, p_tokens, p_verbs, p_args, p_ords) loop
        v_done[v_verdict.ord] := true;
        return next v_verdict;
    end loop;
    select array_agg(m.task_id) as task_ids, array_agg(m.token) as tokens, array_agg(m.verb) as verbs,
           array_agg(m.arg) as args, array_agg(m.ord) as ords
      into v_left
      from unnest(p_ords, p_task_ids, p_tokens, p_verbs, p_args) m (ord, task_id, token, verb, arg)
     where not v_done[m.ord::integer];
    if v_left.ords is not null then
        return query select * from sokka.settle_others(p_pid, v_left.task_ids, v_left.tokens,
            v_left.verbs, v_left.args, v_left.ords);
    end if;
end
$$;

create function sokka.settle_batch(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[]
) returns setof sokka.verdict
language plpgsql as $$
declare
    v_part record;
begin
    if 'terminate' = all (p_verbs) then
        return query select * from sokka.terminate_batch(p_pid, p_task_ids, p_tokens, p_args);
        return;
    end if;
    for v_part in
        select m.verb = 'terminate' as terminate, array_agg(m.task_id) as task_ids,
               array_agg(m.token) as tokens, array_agg(m.verb) as verbs,
               array_agg(m.arg) as args, array_agg(m.ord) as ords
          from unnest(p_task_ids, p_tokens, p_verbs, p_args)
               with ordinality m (task_id, token, verb, arg, ord)
         group by 1 order by 1 desc loop
        if v_part.terminate then
            return query select * from sokka.terminate_batch(
                p_pid, v_part.task_ids, v_part.tokens, v_part.args, v_part.ords);
        else
            return query select * from sokka.settle_failures(p_pid, v_part.task_ids,
                v_part.tokens, v_part.verbs, v_part.args, v_part.ords);
        end if;
    end loop;
end
$$;

-- settle_tasks: end a batch, each member by its own verb.
-- Needs:  one owner; ids, tokens, verbs and args of the same length (args null:
--         none). A verb is terminate (arg: the result), fail (the error), retry
--         ({"error", "delay"}), snooze (seconds or ISO 8601), release or wait (the id
--         of a child).
-- Returns one row for each member: verdict 'ok' with what became of the task (no
--         detail for terminate), or the SQLSTATE of its refusal with its detail.
-- Raises: 22023, 25001.   Locks: the rows, never waiting (55P03).
create function sokka.settle_tasks(
    p_pid text, p_task_ids uuid[], p_tokens bigint[], p_verbs text[], p_args jsonb[] default null
) returns setof sokka.verdict
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
as $$
begin
    perform sokka.check_settle(p_pid, p_task_ids, p_tokens, p_verbs, p_args);
    return query select * from sokka.settle_batch(p_pid, p_task_ids, p_tokens, p_verbs, p_args);
end
$$;

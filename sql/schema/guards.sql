-- What no caller may do to the tables, whatever its role. The conditions stand
-- in the triggers' WHEN clauses, so a legal change calls no function. The server reads
-- them from their text in each statement, 2 ns a character: they are short, and looked
-- at only where a column is assigned that they speak of.

create function sokka.refuse_change() returns trigger
language plpgsql as $$
begin
    if tg_op = 'TRUNCATE' then
        perform sokka.refuse('42501', format('%I cannot be truncated', tg_table_name),
            jsonb_build_object('table', tg_table_name, 'rule', 'truncate'));
    elsif tg_table_name = 'tasks' and tg_op = 'INSERT' then
        perform sokka.refuse('SK006', 'a task begins as starting or snoozed',
            jsonb_build_object('task_id', new.task_id, 'status', null,
                'expected', jsonb_build_object('status', jsonb_build_array('starting', 'snoozed'))));
    elsif tg_table_name = 'tasks' then
        perform sokka.refuse('SK006',
            format('no way leads from %s to %s', old.status, new.status),
            jsonb_build_object('task_id', old.task_id, 'status', old.status,
                'pid', old.pid, 'token', old.token, 'record_ver', old.record_ver,
                'expected', jsonb_build_object('status', sokka.next_statuses(old.status))));
    else
        perform sokka.refuse('42501', format('%I is append-only', tg_table_name),
            jsonb_build_object('table', tg_table_name, 'rule', 'append-only'));
    end if;
    return null;
end
$$;

create trigger tasks_begin before insert on sokka.tasks
    for each row when (new.status not in ('starting', 'snoozed'))
    execute function sokka.refuse_change();

create trigger tasks_move before update of status, task_id, token on sokka.tasks
    for each row when (
        old.status <> new.status and old.status || new.status not in (
            'startingrunning', 'runningsnoozed', 'runningstarting', 'snoozedstarting')
        or old.task_id <> new.task_id
        -- A lease passes from one token to the next only through starting.
        or old.token <> new.token
    )
    execute function sokka.refuse_change();

-- Every change of a row raises its version, also one made by hand.
create function sokka.raise_record_ver() returns trigger
language plpgsql as $$
begin
    new.record_ver := old.record_ver + 1;
    return new;
end
$$;
create trigger tasks_version before update on sokka.tasks
    for each row when (new.record_ver is distinct from old.record_ver + 1)
    execute function sokka.raise_record_ver();

create trigger tasks_kept before truncate on sokka.tasks
    for each statement execute function sokka.refuse_change();

-- A finished record changes never, and goes only when its retention is over.
create function sokka.refuse_early_purge() returns trigger
language plpgsql as $$
begin
    if old.finished_at >= sokka.clock() - sokka.retention_of(old.topic) then
        perform sokka.refuse('42501', 'a finished task is kept until its retention is over',
            jsonb_build_object('task_id', old.task_id, 'status', old.status,
                'finished_at', old.finished_at));
    end if;
    return old;
end
$$;
create trigger finished_tasks_final before update on sokka.finished_tasks
    for each row execute function sokka.refuse_change();
create trigger finished_tasks_retained before delete on sokka.finished_tasks
    for each row execute function sokka.refuse_early_purge();
create trigger finished_tasks_kept before truncate on sokka.finished_tasks
    for each statement execute function sokka.refuse_change();
create trigger finished_tasks_default_kept before truncate on sokka.finished_tasks_default
    for each statement execute function sokka.refuse_change();

create trigger past_leases_final before update or delete on sokka.past_leases
    for each row execute function sokka.refuse_change();
create trigger past_leases_kept before truncate on sokka.past_leases
    for each statement execute function sokka.refuse_change();
create trigger past_leases_default_kept before truncate on sokka.past_leases_default
    for each statement execute function sokka.refuse_change();

create trigger task_steps_final before update or delete on sokka.task_steps
    for each row execute function sokka.refuse_change();
create trigger task_steps_kept before truncate on sokka.task_steps
    for each statement execute function sokka.refuse_change();
create trigger task_steps_default_kept before truncate on sokka.task_steps_default
    for each statement execute function sokka.refuse_change();

create trigger stream_items_final before update or delete on sokka.stream_items
    for each row execute function sokka.refuse_change();
create trigger stream_items_kept before truncate on sokka.stream_items
    for each statement execute function sokka.refuse_change();
create trigger stream_items_default_kept before truncate on sokka.stream_items_default
    for each statement execute function sokka.refuse_change();

create trigger audit_entries_final before update or delete on sokka.audit_entries
    for each row execute function sokka.refuse_change();
create trigger audit_entries_kept before truncate on sokka.audit_entries
    for each statement execute function sokka.refuse_change();

create trigger schedule_fires_final before update or delete on sokka.schedule_fires
    for each row execute function sokka.refuse_change();
create trigger schedule_fires_kept before truncate on sokka.schedule_fires
    for each statement execute function sokka.refuse_change();
create trigger schedule_fires_default_kept before truncate on sokka.schedule_fires_default
    for each statement execute function sokka.refuse_change();

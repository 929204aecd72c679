-- Each statement that writes a task reads the conditions of its triggers from their text.
create or replace trigger tasks_move before update of status, task_id, token on sokka.tasks
    for each row when (
        old.status <> new.status and old.status || new.status not in (
            'startingrunning', 'runningsnoozed', 'runningstarting', 'snoozedstarting')
        or old.task_id <> new.task_id
        -- A lease passes from one token to the next only through starting.
        or old.token <> new.token
    )
    execute function sokka.refuse_change();

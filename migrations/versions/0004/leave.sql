-- Back to the revision below.
drop function
    sokka.exchange_leases, sokka.create_tasks_like, sokka.look_at_payloads, sokka.insert_like,
    sokka.may_look_for_idle, sokka.seldom_plain, sokka.fits_settings;
create or replace trigger tasks_move before update on sokka.tasks
    for each row when (
        old.status is distinct from new.status
        and not (old.status = 'starting' and new.status = 'running')
        and not (old.status = 'running' and new.status in ('snoozed', 'starting'))
        and not (old.status = 'snoozed' and new.status = 'starting')
        or old.task_id is distinct from new.task_id
        -- A lease passes from one token to the next only through starting.
        or old.token is not null and new.token is not null and old.token <> new.token
    )
    execute function sokka.refuse_change();

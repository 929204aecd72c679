-- Back to the revision below: the same verbs by more statements. Views keep the column
-- that was added, for they only expand.
drop function
    sokka.finish_tasks, sokka.lock_ready, sokka.claim, sokka.grant_leases,
    sokka.terminate_batch, sokka.end_leases, sokka.somebody_idle, sokka.plain_name,
    sokka.plain_options, sokka.create_checked_task, sokka.spec_fields, sokka.look_at_specs,
    sokka.insert_plain_specs;
drop trigger tasks_departed on sokka.tasks;
alter table sokka.tasks set (fillfactor = 70);

-- Back to the revision below: the same verbs by more statements. Views keep the column
-- that was added, for they only expand.
drop function
    sokka.finish_tasks, sokka.lock_ready, sokka.claim, sokka.grant_leases,
    sokka.terminate_batch, sokka.end_leases, sokka.somebody_idle, sokka.plain_name,
    sokka.plain_options, sokka.create_checked_task, sokka.spec_fields, sokka.look_at_specs,
    sokka.insert_plain_specs, sokka.look_for_work, sokka.sees_ready, sokka.snoozed_due;
drop trigger tasks_departed on sokka.tasks;
-- In the order in which they were set there.
alter table sokka.tasks reset (
    fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold,
    autovacuum_vacuum_insert_scale_factor, autovacuum_analyze_scale_factor,
    autovacuum_analyze_threshold, autovacuum_vacuum_cost_delay);
alter table sokka.tasks set (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 1000000,
    autovacuum_vacuum_cost_delay = 0);

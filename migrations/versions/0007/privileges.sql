-- PUBLIC gets nothing: EXECUTE on functions and USAGE on types are granted to it
-- by default. In the same transaction as their making.
revoke all on schema sokka from public;
revoke all on all tables in schema sokka from public;
revoke all on all sequences in schema sokka from public;
revoke all on all routines in schema sokka from public;
revoke usage on type sokka.leased_task, sokka.task_outcome, sokka.lease_state, sokka.verdict,
    sokka.task_spec, sokka.listed_task, sokka.stream_state,
    sokka.schedule_fire from public;

-- Grants for roles that exist already. Optional: sokka migrate makes no roles,
-- since those belong to the whole server. For psql, run by the schema's owner:
--
--   psql -X -v ON_ERROR_STOP=1 -v producer=NAME -v worker=NAME -v viewer=NAME \
--        -v operator=NAME -f roles.sql DATABASE
--
-- A role that is not named is left as it is. Add -v schema=NAME for a queue in
-- another schema than sokka. Run it again after every migration: it may bring
-- functions that a role needs.
\if :{?schema}
\else
\set schema sokka
\endif

begin;

-- producer: enqueue, and cancel what turns out not to be wanted.
\if :{?producer}
grant usage on schema :"schema" to :"producer";
grant execute on function
    :"schema".create_task, :"schema".create_tasks, :"schema".cancel_task,
    :"schema".clock, :"schema".topic_hash, :"schema".schema_version
    to :"producer";
\endif

-- worker: all verbs on leases. It reads a task by its id (a handler's commit whose
-- answer was lost is looked up so), but no table and no listing.
\if :{?worker}
grant usage on schema :"schema" to :"worker";
grant execute on function
    :"schema".reserve_task, :"schema".reserve_tasks, :"schema".acquire_lease,
    :"schema".extend_lease, :"schema".renew_lease, :"schema".extend_leases,
    :"schema".release_lease, :"schema".terminate_task, :"schema".terminate_tasks,
    :"schema".fail_task, :"schema".retry_task, :"schema".snooze_task,
    :"schema".settle_tasks, :"schema".settle_and_reserve,
    :"schema".report_progress, :"schema".save_checkpoint,
    :"schema".assert_lease, :"schema".advance_fence, :"schema".get_task,
    :"schema".mark_idle, :"schema".clear_idle,
    :"schema".sweep, :"schema".prepare_partitions, :"schema".apply_retention,
    :"schema".clock, :"schema".topic_hash, :"schema".schema_version
    to :"worker";
\endif

-- viewer: how the queue stands, without payloads, results and checkpoints.
\if :{?viewer}
grant usage on schema :"schema" to :"viewer";
grant select on :"schema".task_history, :"schema".topic_stats, :"schema".live_leases,
    :"schema".open_fences, :"schema".audit_log
    to :"viewer";
-- A view's reader needs the functions that the view calls: open_fences asks the clock.
grant execute on function
    :"schema".list_tasks, :"schema".list_leased_tasks,
    :"schema".clock, :"schema".topic_hash, :"schema".schema_version
    to :"viewer";
\endif

-- operator: sees everything, payloads too, and steers.
\if :{?operator}
grant usage on schema :"schema" to :"operator";
grant select on :"schema".all_tasks, :"schema".task_history, :"schema".topic_stats,
    :"schema".live_leases, :"schema".open_fences, :"schema".audit_log
    to :"operator";
grant select, update on :"schema".settings to :"operator";
grant execute on function
    :"schema".get_task, :"schema".list_group, :"schema".list_tasks,
    :"schema".list_leased_tasks, :"schema".cancel_task, :"schema".revoke_lease,
    :"schema".resubmit_task, :"schema".pause_topic, :"schema".resume_topic,
    :"schema".set_topic, :"schema".raise_token_epoch, :"schema".sweep,
    :"schema".prepare_partitions, :"schema".apply_retention,
    :"schema".clock, :"schema".topic_hash, :"schema".schema_version
    to :"operator";
\endif

commit;

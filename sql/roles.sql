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

-- producer: enqueue, now or by a schedule, cancel what turns out not to be wanted, and
-- see how far it is.
\if :{?producer}
grant usage on schema :"schema" to :"producer";
grant execute on function
    :"schema".create_task, :"schema".create_tasks, :"schema".create_tasks_like,
    :"schema".cancel_task, :"schema".fan_out, :"schema".open_stream,
    :"schema".put_schedule, :"schema".get_schedule, :"schema".delete_schedule,
    :"schema".trigger_schedule,
    :"schema".watch_tasks, :"schema".unwatch_tasks, :"schema".peek_tasks,
    :"schema".clock, :"schema".topic_hash, :"schema".schema_version
    to :"producer";
\endif

-- worker: all verbs on leases. It reads a task by its id (a handler's commit whose
-- answer was lost is looked up so), what came of its fan-outs and steps, and streams,
-- but no table and no listing. Fanning out is enqueueing, too: no lease is asked for
-- where a fan-out stands below no task. It puts the schedules that its program declares,
-- fires whatever is due, and may be the one that acts for a key.
\if :{?worker}
grant usage on schema :"schema" to :"worker";
grant execute on function
    :"schema".reserve_task, :"schema".reserve_tasks, :"schema".acquire_lease,
    :"schema".extend_lease, :"schema".renew_lease, :"schema".extend_leases,
    :"schema".release_lease, :"schema".terminate_task, :"schema".terminate_tasks,
    :"schema".fail_task, :"schema".retry_task, :"schema".snooze_task,
    :"schema".settle_tasks, :"schema".settle_and_reserve, :"schema".exchange_leases, :"schema".exchange_work,
    :"schema".report_progress, :"schema".save_checkpoint,
    :"schema".fan_out, :"schema".get_join, :"schema".join_results, :"schema".wait_for_task,
    :"schema".record_step, :"schema".list_steps,
    :"schema".open_stream, :"schema".append_stream, :"schema".read_stream, :"schema".get_stream,
    :"schema".watch_tasks, :"schema".unwatch_tasks, :"schema".peek_tasks,
    :"schema".assert_lease, :"schema".advance_fence, :"schema".get_task,
    :"schema".try_lock, :"schema".renew_lock, :"schema".release_lock, :"schema".assert_lock,
    :"schema".put_schedule, :"schema".get_schedule, :"schema".next_schedule_at,
    :"schema".due_schedules, :"schema".fire_schedules,
    :"schema".look_for_work, :"schema".look_around, :"schema".mark_idle, :"schema".clear_idle,
    :"schema".sweep, :"schema".prepare_partitions, :"schema".apply_retention,
    :"schema".clock, :"schema".topic_hash, :"schema".schema_version
    to :"worker";
\endif

-- viewer: how the queue stands, without payloads, results and checkpoints.
\if :{?viewer}
grant usage on schema :"schema" to :"viewer";
grant select on :"schema".task_history, :"schema".topic_stats, :"schema".live_leases,
    :"schema".open_fences, :"schema".audit_log, :"schema".fan_outs,
    :"schema".fired_ticks, :"schema".held_locks
    to :"viewer";
-- Of the schedules all but the tasks that they make.
grant select (name, schedule_id, generation, state, schedule, next_at, last_fire_at,
    last_task_id, runs, skipped, repeats, expires_at, missed, max_catch_up, grace, serial,
    source, description, topic, kind, anchor_at, paused_at, failing_since, error,
    created_at, updated_at, finished_at) on :"schema".all_schedules
    to :"viewer";
-- A view's reader needs the functions that the view calls: open_fences and held_locks
-- ask the clock, topic_stats what is no time to wait for.
grant execute on function
    :"schema".list_tasks, :"schema".list_leased_tasks, :"schema".get_join, :"schema".task_tree,
    :"schema".next_schedule_at,
    :"schema".clock, :"schema".until_told, :"schema".topic_hash, :"schema".schema_version
    to :"viewer";
\endif

-- operator: sees everything, payloads too, and steers.
\if :{?operator}
grant usage on schema :"schema" to :"operator";
grant select on :"schema".all_tasks, :"schema".task_history, :"schema".topic_stats,
    :"schema".live_leases, :"schema".open_fences, :"schema".audit_log, :"schema".fan_outs,
    :"schema".all_schedules, :"schema".fired_ticks, :"schema".held_locks
    to :"operator";
grant select, update on :"schema".settings to :"operator";
grant execute on function
    :"schema".get_task, :"schema".list_group, :"schema".list_tasks,
    :"schema".list_leased_tasks, :"schema".get_join, :"schema".join_results,
    :"schema".task_tree, :"schema".list_steps, :"schema".get_stream, :"schema".peek_tasks,
    :"schema".cancel_task, :"schema".revoke_lease,
    :"schema".resubmit_task, :"schema".pause_topic, :"schema".resume_topic,
    :"schema".set_topic, :"schema".raise_token_epoch, :"schema".sweep,
    :"schema".put_schedule, :"schema".get_schedule, :"schema".list_schedules,
    :"schema".pause_schedule, :"schema".resume_schedule, :"schema".trigger_schedule,
    :"schema".delete_schedule, :"schema".next_schedule_at, :"schema".due_schedules,
    :"schema".fire_schedules,
    :"schema".prepare_partitions, :"schema".apply_retention,
    :"schema".clock, :"schema".until_told, :"schema".topic_hash, :"schema".schema_version
    to :"operator";
\endif

commit;

-- Back to the revision below. Streams, steps, joins, locks and schedules go; the columns
-- that were added stay, for tables only expand. A task that waits for others would wait for ever: those
-- that are left over make this fail.
do $$
begin
    if exists (select from sokka.tasks t where t.run_at = sokka.until_told()) then
        raise exception 'tasks still wait for others: let their joins end, or cancel them'
            using errcode = 'object_not_in_prerequisite_state';
    end if;
end
$$;
create temporary table sokka_grants on commit drop as
select p.proname, a.grantee::regrole::text as grantee, a.is_grantable
  from pg_proc p, aclexplode(p.proacl) a
 where p.pronamespace = 'sokka'::regnamespace and p.proname in ('create_task', 'resubmit_task')
   and a.grantee not in (0, p.proowner);
drop trigger tasks_departed on sokka.tasks;
drop function
    sokka.acknowledge, sokka.advance_join, sokka.advance_joins, sokka.advance_joins_due,
    sokka.append_stream, sokka.ask_children, sokka.cancel_children, sokka.cancel_the_rest,
    sokka.check_fan_out, sokka.check_ids, sokka.check_items, sokka.count_children,
    sokka.create_task, sokka.decide_join, sokka.depth_below, sokka.fan_out, sokka.find_join,
    sokka.finish_tasks, sokka.fire_join, sokka.forget_relations, sokka.get_join,
    sokka.get_stream, sokka.insert_children, sokka.join_results, sokka.join_summary,
    sokka.leave_orphans, sokka.let_children_go, sokka.let_go, sokka.list_steps,
    sokka.look_after_orphans, sokka.needed_of, sokka.note_departure,
    sokka.note_new_children, sokka.note_the_rest, sokka.old_snapshot, sokka.open_stream,
    sokka.outcome_of_join, sokka.peek_tasks, sokka.put_to_sleep, sokka.read_inbox,
    sokka.read_specs, sokka.read_stream, sokka.record_step, sokka.resubmit_task,
    sokka.stream_of, sokka.take_child, sokka.take_news, sokka.task_tree,
    sokka.tell_watchers, sokka.unread_joins, sokka.unwatch_tasks, sokka.uuid_of,
    sokka.wait_for_task, sokka.wake_sleeper, sokka.wake_waiting, sokka.was_cancelled,
    sokka.watch_tasks, sokka.write_items, sokka.write_join;
drop function
    sokka.assert_lock, sokka.change_schedule, sokka.check_lock, sokka.checked_instant,
    sokka.delete_schedule, sokka.due_schedules, sokka.fire_schedules, sokka.fire_together,
    sokka.get_schedule, sokka.judge_lock, sokka.list_schedules, sokka.next_schedule_at,
    sokka.pause_schedule, sokka.put_off, sokka.put_schedule, sokka.read_fires,
    sokka.read_schedule, sokka.release_lock, sokka.renew_lock, sokka.resume_schedule,
    sokka.schedule_fault, sokka.schedule_named, sokka.spec_of_tick, sokka.trigger_schedule,
    sokka.try_lock;
drop view sokka.all_schedules, sokka.fired_ticks, sokka.held_locks;
drop view sokka.fan_outs, sokka.related_tasks, sokka.created_task;
drop table sokka.joins, sokka.join_inbox, sokka.task_steps, sokka.streams, sokka.stream_items,
    sokka.watched_tasks, sokka.locks, sokka.schedules, sokka.schedule_fires;
drop function sokka.refuse_forgetting;
drop sequence sokka.join_inbox_pos_seq;
drop type sokka.stream_state, sokka.schedule_fire;
alter type sokka.task_spec drop attribute parent_task_id, drop attribute candidate,
    drop attribute depth, drop attribute is_join;
-- As it is below, of all the columns that are there.
create view sokka.created_task as
select l.*, null::boolean as created from sokka.live_tasks l where false;

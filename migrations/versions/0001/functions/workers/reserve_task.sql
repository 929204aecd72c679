-- reserve_task: lease the next ready task of one topic; no row when there is none.
-- As reserve_tasks with one topic and one task.
create function sokka.reserve_task(p_topic text, p_pid text, p_lease interval default null)
returns setof sokka.leased_task
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
begin
    perform sokka.check_name('topic', p_topic);
    return query select * from sokka.reserve_tasks(array[p_topic], p_pid, 1, p_lease);
end
$$;

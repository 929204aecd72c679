-- get_task: one task, live or finished; no row when there is none.   Raises: 22023.
create function sokka.get_task(p_task_id uuid) returns setof sokka.all_tasks
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    return query select a.* from sokka.all_tasks a where a.task_id = p_task_id limit 1;
end
$$;

-- list_group: all tasks of a group, oldest first; no cap.   Raises: 22023.
create function sokka.list_group(p_task_group_id uuid) returns setof sokka.all_tasks
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
begin
    perform sokka.check_not_null('task_group_id', p_task_group_id is null);
    -- A task that is its own group stands in no group index: it is found by its key.
    return query
        select g.* from (
            select a.* from sokka.all_tasks a
             where a.task_group_id = p_task_group_id and a.task_group_id <> a.task_id
            union all
            select a.* from sokka.all_tasks a
             where a.task_id = p_task_group_id and a.task_group_id = a.task_id) g
         order by g.created_at, g.task_id;
end
$$;

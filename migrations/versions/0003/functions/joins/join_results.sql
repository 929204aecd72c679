-- get_join: how far a join is; no row when there is none.   Raises: 22023.
create function sokka.get_join(p_task_id uuid) returns setof sokka.fan_outs
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    return query select f.* from sokka.fan_outs f where f.task_id = p_task_id;
end
$$;

-- join_results: the candidates of a join in their order, each with what became of it so
-- far. A page of them: those after p_after. One that retention has taken is missing.
-- Raises: 22023, SK001 (no such join).
create function sokka.join_results(
    p_task_id uuid, p_after integer default 0, p_limit integer default 1000
) returns table (
    candidate integer, task_id uuid, status text, result jsonb, error jsonb, attempt integer,
    finished_at timestamptz
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    perform sokka.check_not_null('after', p_after is null);
    if p_limit is null or p_limit not between 1 and 10000 then
        perform sokka.refuse_argument('limit', 'must be from 1 to 10000');
    end if;
    if not exists (select from sokka.joins j where j.task_id = p_task_id) then
        perform sokka.refuse('SK001', format('there is no join %s', p_task_id),
            jsonb_build_object('task_id', p_task_id));
    end if;
    return query
        select c.candidate, c.task_id, c.status, c.result, c.error, c.attempt, c.finished_at
          from (select t.candidate, t.task_id, t.status, null::jsonb as result, t.error, t.attempt,
                       null::timestamptz as finished_at
                  from sokka.tasks t
                 where t.parent_task_id = p_task_id and t.candidate > p_after
                union all
                select f.candidate, f.task_id, f.status, f.result, f.error, f.attempt, f.finished_at
                  from sokka.finished_tasks f
                 where f.parent_task_id = p_task_id and f.candidate > p_after) c
         order by c.candidate limit p_limit;
end
$$;

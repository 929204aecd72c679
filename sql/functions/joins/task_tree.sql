-- task_tree: a task and what is below it, a parent before its children, candidates in
-- their order. At most p_max_rows in all and p_max_children of each; children says how
-- many there are. Levels near the root come first when there are too many.
-- Raises: 22023, SK001.
create function sokka.task_tree(
    p_task_id uuid, p_max_rows integer default 1000, p_max_children integer default 100
) returns table (
    level integer, task_id uuid, parent_task_id uuid, candidate integer, topic text, kind text,
    status text, attempt integer, policy text, error_code text, created_at timestamptz,
    finished_at timestamptz, children bigint
)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    if p_max_rows is null or p_max_rows not between 1 and 10000 then
        perform sokka.refuse_argument('max_rows', 'must be from 1 to 10000');
    elsif p_max_children is null or p_max_children not between 1 and 10000 then
        perform sokka.refuse_argument('max_children', 'must be from 1 to 10000');
    end if;
    return query
        with recursive found as (
            select 0 as level, array[]::bigint[] as place, r.*
              from sokka.related_tasks r where r.task_id = p_task_id
            union all
            select f.level + 1, f.place || c.n, c.task_id, c.parent_task_id, c.candidate, c.topic,
                   c.kind, c.status, c.attempt, c.error_code, c.created_at, c.finished_at
              from found f
             cross join lateral (
                select r.*, row_number() over (order by r.candidate, r.created_at, r.task_id) as n
                  from sokka.related_tasks r where r.parent_task_id = f.task_id
                 order by n limit p_max_children) c
        )
        select f.level, f.task_id, f.parent_task_id, f.candidate, f.topic, f.kind, f.status,
               f.attempt, j.policy, f.error_code, f.created_at, f.finished_at,
               coalesce(j.total, sokka.count_children(f.task_id))
          from (select * from found limit p_max_rows) f
          left join sokka.joins j on j.task_id = f.task_id
         order by f.place;
    if not found then
        perform sokka.refuse_missing(p_task_id, '{}');
    end if;
end
$$;

-- related_tasks: what a tree shows of each task.
create view sokka.related_tasks as
select t.task_id, t.parent_task_id, t.candidate, t.topic, t.kind, t.status, t.attempt,
       t.error ->> 'code' as error_code, t.created_at, null::timestamptz as finished_at
  from sokka.tasks t
union all
select f.task_id, f.parent_task_id, f.candidate, f.topic, f.kind, f.status, f.attempt,
       f.error ->> 'code', f.created_at, f.finished_at
  from sokka.finished_tasks f;

create function sokka.count_children(p_task_id uuid) returns bigint
language sql stable as $$
    select count(*) from sokka.related_tasks r where r.parent_task_id = p_task_id
$$;

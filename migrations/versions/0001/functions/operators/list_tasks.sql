-- Listings page by keyset: each row carries the cursor that goes on after it.

create function sokka.check_limit(p_limit integer) returns void
language plpgsql as $$
begin
    perform sokka.check_not_null('limit', p_limit is null);
    if p_limit not between 1 and 10000 then
        perform sokka.refuse_argument('limit', 'must be from 1 to 10000');
    end if;
end
$$;

-- A cursor is an instant in microseconds and an id, hex-encoded so that nobody
-- builds one by hand.
create function sokka.cursor_of(p_at timestamptz, p_task_id uuid) returns text
language sql immutable as $$
    select encode(convert_to(
        (extract(epoch from p_at) * 1000000)::bigint || ' ' || p_task_id, 'UTF8'), 'hex')
$$;

-- listable_tasks: the columns of a listing; the payloads are never touched. The
-- cursor is not among them: it would be made for every row before the LIMIT (3.5 s
-- over 600,000 live tasks, against 0.5).
create view sokka.listable_tasks as
select t.task_id, t.task_group_id, t.topic, t.sub_topic, t.kind, t.status, t.priority, t.run_at,
       t.pid, t.token, t.lease_expires_at, t.attempt, t.failures, t.losses, t.max_attempts,
       t.record_ver, t.cancel_requested_at, t.created_at, t.updated_at,
       null::timestamptz as finished_at, t.error
  from sokka.tasks t
union all
select f.task_id, f.task_group_id, f.topic, f.sub_topic, f.kind, f.status, f.priority, f.run_at,
       f.pid, f.token, f.lease_expires_at, f.attempt, f.failures, f.losses, f.max_attempts,
       f.record_ver, f.cancel_requested_at, f.created_at, f.finished_at, f.finished_at, f.error
  from sokka.finished_tasks f;

create function sokka.read_cursor(p_cursor text, out at timestamptz, out task_id uuid)
language plpgsql immutable as $$
declare
    v_parts text[];
begin
    if p_cursor is null then
        return;
    end if;
    v_parts := string_to_array(convert_from(decode(p_cursor, 'hex'), 'UTF8'), ' ');
    at := timestamptz 'epoch' + v_parts[1]::bigint * interval '1 microsecond';
    task_id := v_parts[2]::uuid;
    if at is null or task_id is null then
        perform sokka.refuse_argument('cursor', 'must come from an earlier listing');
    end if;
exception when data_exception then
    perform sokka.refuse_argument('cursor', 'must come from an earlier listing');
end
$$;

-- read_filters: the filters of list_tasks, each of its own type.
create function sokka.read_filters(
    p_filters jsonb, out topic text, out sub_topic text, out kind text, out statuses text[],
    out task_group_id uuid, out since timestamptz, out until timestamptz
)
language plpgsql as $$
begin
    if jsonb_typeof(p_filters) <> 'object'
       or p_filters - array['topic', 'sub_topic', 'kind', 'status', 'task_group_id', 'from', 'to'] <> '{}' then
        perform sokka.refuse_argument('filters',
            'must be an object of topic, sub_topic, kind, status, task_group_id, from and to');
    end if;
    topic := p_filters ->> 'topic';
    sub_topic := p_filters ->> 'sub_topic';
    kind := p_filters ->> 'kind';
    if jsonb_typeof(p_filters -> 'status') in ('string', 'array') then
        statuses := array(select jsonb_array_elements_text(
            case jsonb_typeof(p_filters -> 'status') when 'array' then p_filters -> 'status'
                 else jsonb_build_array(p_filters -> 'status') end));
    end if;
    if not statuses <@ array['starting', 'running', 'snoozed', 'failed', 'terminated']
       or jsonb_typeof(p_filters -> 'status') not in ('string', 'array', 'null') then
        perform sokka.refuse_argument('filters.status', 'must be a status or a list of them');
    end if;
    since := sokka.instant_of('filters.from', p_filters ->> 'from');
    until := sokka.instant_of('filters.to', p_filters ->> 'to');
    task_group_id := (p_filters ->> 'task_group_id')::uuid;
exception when invalid_text_representation then
    perform sokka.refuse_argument('filters.task_group_id', 'must be a UUID');
end
$$;

-- filtered_tasks: what the filters leave. Inlined, so that the order's index and the
-- limit reach into it.
create function sokka.filtered_tasks(
    p_topic text, p_sub_topic text, p_kind text, p_statuses text[], p_task_group_id uuid,
    p_since timestamptz, p_until timestamptz
) returns setof sokka.listable_tasks
language sql stable as $$
    select * from sokka.listable_tasks a
     where (p_topic is null or a.topic = p_topic)
       and (p_sub_topic is null or a.sub_topic = p_sub_topic)
       and (p_kind is null or a.kind = p_kind)
       and (p_statuses is null or a.status = any (p_statuses))
       and (p_task_group_id is null or a.task_group_id = p_task_group_id)
       and a.updated_at >= coalesce(p_since, '-infinity')
       and a.updated_at <= coalesce(p_until, 'infinity')
$$;

-- list_tasks: tasks by (updated_at, task_id), without their payloads.
-- Needs:  filters (topic, sub_topic, kind, status or a list of them, task_group_id,
--         from and to: bounds of updated_at, inclusive); a cursor of an earlier row,
--         or null for the start; 1 to 10,000 rows.
-- Going up, a task that changes while being paged is met again further on.
-- Raises: 22023.
create function sokka.list_tasks(
    p_filters jsonb default '{}', p_cursor text default null, p_limit integer default 100,
    p_descending boolean default false
) returns setof sokka.listed_task
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
declare
    f record;
    v_after record;
begin
    perform sokka.check_limit(p_limit);
    f := sokka.read_filters(coalesce(p_filters, '{}'));
    v_after := sokka.read_cursor(p_cursor);
    if coalesce(p_descending, false) then
        return query
            select l.*, sokka.cursor_of(l.updated_at, l.task_id)
              from (select * from sokka.filtered_tasks(f.topic, f.sub_topic, f.kind, f.statuses,
                                      f.task_group_id, f.since, f.until) a
                     where v_after.task_id is null
                        or (a.updated_at, a.task_id) < (v_after.at, v_after.task_id)
                     order by a.updated_at desc, a.task_id desc limit p_limit) l
             order by l.updated_at desc, l.task_id desc;
    else
        return query
            select l.*, sokka.cursor_of(l.updated_at, l.task_id)
              from (select * from sokka.filtered_tasks(f.topic, f.sub_topic, f.kind, f.statuses,
                                      f.task_group_id, f.since, f.until) a
                     where v_after.task_id is null
                        or (a.updated_at, a.task_id) > (v_after.at, v_after.task_id)
                     order by a.updated_at, a.task_id limit p_limit) l
             order by l.updated_at, l.task_id;
    end if;
end
$$;

-- list_leased_tasks: the running and snoozed tasks of a topic, by id.
-- Raises: 22023.
create function sokka.list_leased_tasks(
    p_topic text, p_cursor text default null, p_limit integer default 100
) returns setof sokka.listed_task
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
declare
    v_after record;
begin
    perform sokka.check_name('topic', p_topic);
    perform sokka.check_limit(p_limit);
    v_after := sokka.read_cursor(p_cursor);
    return query
        select l.*, sokka.cursor_of(l.updated_at, l.task_id)
          from (select * from sokka.listable_tasks a
                 where a.topic = p_topic and a.status in ('running', 'snoozed')
                   and (v_after.task_id is null or a.task_id > v_after.task_id)
                 order by a.task_id limit p_limit) l
         order by l.task_id;
end
$$;

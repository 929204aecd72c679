-- How a task is made: one road for create_task, create_tasks and resubmit_task.

-- new_task_id: UUID version 7: milliseconds, then a fraction of them, then chance. One
-- number has both, in 48 bits and 12, and the version goes between them. A single
-- expression, so that it is evaluated in place.
create function sokka.new_task_id() returns uuid
language sql volatile as $$
    select (overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint), 15, '0')
            placing '7' from 13 for 0) || substr(gen_random_uuid()::text, 20))::uuid
$$;

create function sokka.headers_fault(p_headers jsonb) returns text
language plpgsql immutable as $$
begin
    if jsonb_typeof(p_headers) <> 'object' then
        return 'headers: must be a JSON object of strings';
    end if;
    if exists (select from jsonb_each(p_headers) h where jsonb_typeof(h.value) <> 'string') then
        return 'headers: must be a JSON object of strings';
    end if;
    if octet_length(p_headers::text) > 65536 then
        return 'headers: must have at most 65536 bytes of JSON text';
    end if;
    return null;
end
$$;

-- plain_options: whether these surely break no rule of spec_fault, by the fewest steps;
-- null stands for the default. The payload's size is another matter.
create function sokka.plain_options(
    p_topic text, p_kind text, p_sub_topic text, p_priority integer, p_run_at timestamptz,
    p_max_attempts integer, p_timeout interval, p_expires_at timestamptz, p_headers jsonb,
    p_max_losses integer, p_on_conflict text
) returns boolean
language sql stable as $$
    select sokka.plain_name(p_topic)
       and (p_kind is null or p_kind = 'default' or sokka.plain_name(p_kind))
       and (p_sub_topic is null or p_sub_topic = 'default' or sokka.plain_name(p_sub_topic))
       and (p_priority is null or p_priority between 0 and 9)
       and (p_max_attempts is null or p_max_attempts >= 0)
       and (p_max_losses is null or p_max_losses >= 0)
       and (p_run_at is null or p_run_at >= '1970-01-01 00:00+00' and p_run_at < '9999-01-01 00:00+00')
       and (p_expires_at is null
            or p_expires_at >= '1970-01-01 00:00+00' and p_expires_at < '9999-01-01 00:00+00')
       and (p_timeout is null or extract(epoch from p_timeout) between 0.001 and 31557600)
       and (p_headers is null or sokka.headers_fault(p_headers) is null)
       and (p_on_conflict is null or p_on_conflict in ('existing', 'error'))
$$;

-- seldom_plain: plain_options by a call, where most callers do not come.
create function sokka.seldom_plain(
    p_topic text, p_kind text, p_sub_topic text, p_priority integer, p_run_at timestamptz,
    p_max_attempts integer, p_timeout interval, p_expires_at timestamptz, p_headers jsonb,
    p_max_losses integer, p_on_conflict text
) returns boolean
language plpgsql stable as $$
begin
    return sokka.plain_options(p_topic, p_kind, p_sub_topic, p_priority, p_run_at,
        p_max_attempts, p_timeout, p_expires_at, p_headers, p_max_losses, p_on_conflict);
end
$$;

-- fits_settings: whether a payload is as small as the settings want it.
create function sokka.fits_settings(p_data jsonb) returns boolean
language plpgsql as $$
begin
    return octet_length(p_data::text) <= (select s.max_data_bytes from sokka.settings s);
end
$$;

-- spec_fault: null, or the first rule that a spec breaks, led by the argument.
create function sokka.spec_fault(p_spec sokka.task_spec, p_max_bytes integer) returns text
language sql stable as $$
    select case
        when sokka.name_fault(p_spec.topic) is not null
            then 'topic: ' || sokka.name_fault(p_spec.topic)
        when sokka.name_fault(p_spec.kind) is not null
            then 'kind: ' || sokka.name_fault(p_spec.kind)
        when sokka.name_fault(p_spec.sub_topic) is not null
            then 'sub_topic: ' || sokka.name_fault(p_spec.sub_topic)
        when p_spec.priority not between 0 and 9
            then 'priority: must be from 0 (first) to 9'
        when p_spec.max_attempts < 0
            then 'max_attempts: must not be negative'
        when p_spec.max_losses < 0
            then 'max_losses: must not be negative'
        when p_spec.run_at is not null and
             (p_spec.run_at < '1970-01-01 00:00+00' or p_spec.run_at >= '9999-01-01 00:00+00')
            then 'run_at: must lie from 1970 to before 9999-01-01 UTC'
        when p_spec.expires_at is not null and
             (p_spec.expires_at < '1970-01-01 00:00+00' or p_spec.expires_at >= '9999-01-01 00:00+00')
            then 'expires_at: must lie from 1970 to before 9999-01-01 UTC'
        when extract(epoch from p_spec.timeout) < 0.001
             or extract(epoch from p_spec.timeout) > 31557600
            then 'timeout: must be from 1 millisecond to 1 year'
        when octet_length(p_spec.unique_key) not between 1 and 500
            then 'unique_key: must have 1 to 500 bytes'
        when p_spec.on_conflict not in ('existing', 'error')
            then 'on_conflict: must be existing or error'
        when octet_length(p_spec.data::text) > p_max_bytes
            then format('data: must have at most %s bytes of JSON text', p_max_bytes)
        when p_spec.headers is not null then sokka.headers_fault(p_spec.headers)
    end
$$;

-- checked_retry: a retry policy with its durations in seconds; max_attempts has
-- a column of its own.
create function sokka.checked_retry(p_retry jsonb) returns jsonb
language plpgsql as $$
declare
    v_initial double precision;
    v_max double precision;
    v_multiplier double precision;
    v_jitter double precision;
begin
    if jsonb_typeof(p_retry) <> 'object'
       or p_retry - array['max_attempts', 'initial', 'max', 'multiplier', 'jitter'] <> '{}' then
        perform sokka.refuse_argument('retry',
            'must be an object of max_attempts, initial, max, multiplier and jitter');
    end if;
    if coalesce(jsonb_typeof(p_retry -> 'multiplier'), 'number') <> 'number'
       or coalesce(jsonb_typeof(p_retry -> 'jitter'), 'number') <> 'number'
       or coalesce(jsonb_typeof(p_retry -> 'max_attempts'), 'number') <> 'number' then
        perform sokka.refuse_argument('retry',
            'must have numbers for max_attempts, multiplier and jitter');
    end if;
    if (p_retry -> 'max_attempts')::numeric not between 0 and 2147483647
       or (p_retry -> 'max_attempts')::numeric % 1 <> 0 then
        perform sokka.refuse_argument('retry.max_attempts', 'must be a whole number, not negative');
    end if;
    v_initial := coalesce(extract(epoch from sokka.checked_delay('retry.initial',
        sokka.duration_of('retry.initial', p_retry -> 'initial'))), 1);
    v_max := coalesce(extract(epoch from sokka.checked_delay('retry.max',
        sokka.duration_of('retry.max', p_retry -> 'max'))), greatest(30, v_initial));
    v_multiplier := coalesce((p_retry ->> 'multiplier')::double precision, 2);
    v_jitter := coalesce((p_retry ->> 'jitter')::double precision, 0);
    if v_initial > v_max then
        perform sokka.refuse_argument('retry.max', 'must not be less than retry.initial');
    end if;
    if v_multiplier not between 1 and 1000 then
        perform sokka.refuse_argument('retry.multiplier', 'must be from 1 to 1000');
    end if;
    if v_jitter not between 0 and 1 then
        perform sokka.refuse_argument('retry.jitter', 'must be from 0 to 1');
    end if;
    return jsonb_build_object('initial', v_initial, 'max', v_max,
        'multiplier', v_multiplier, 'jitter', v_jitter);
exception when numeric_value_out_of_range then
    perform sokka.refuse_argument('retry', 'must have numbers within reach of a double');
end
$$;

-- refuse_spec: refuse one spec; in a bulk call by its position.
create function sokka.refuse_spec(p_ord bigint, p_argument text, p_rule text) returns void
language plpgsql as $$
begin
    if p_ord is null then
        perform sokka.refuse_argument(p_argument, p_rule);
    end if;
    perform sokka.refuse('22023', format('specs[%s]: %s %s', p_ord, p_argument, p_rule),
        jsonb_build_object('argument', p_argument, 'rule', p_rule, 'position', p_ord));
end
$$;

-- refuse_task_id: say who has the id. p_inserted: this call has put a task under it
-- meanwhile, which is not the one.
create function sokka.refuse_task_id(p_task_id uuid, p_ord bigint, p_inserted boolean) returns void
language plpgsql as $$
declare
    v_detail jsonb;
begin
    select jsonb_build_object('task_id', a.task_id, 'status', a.status, 'pid', a.pid,
               'token', a.token, 'record_ver', a.record_ver)
      into v_detail from sokka.all_tasks a
     where a.task_id = p_task_id and (a.finished_at is not null or not p_inserted);
    perform sokka.refuse('SK008', format('task id %s is in use', p_task_id),
        coalesce(v_detail, jsonb_build_object('task_id', p_task_id))
        || jsonb_strip_nulls(jsonb_build_object('position', p_ord)));
end
$$;

-- claim_given_ids: make the ids that callers chose theirs, for ever unique over
-- live and finished tasks. A concurrent call with the same id waits here.
create function sokka.claim_given_ids(p_specs sokka.task_spec[], p_now timestamptz) returns void
language plpgsql as $$
declare
    v_claimed integer;
    v_taken record;
begin
    with claimed as (
        insert into sokka.given_ids (task_id, created_at)
        select s.task_id, p_now from unnest(p_specs) s where s.given order by s.task_id
        on conflict do nothing returning task_id
    )
    select count(*) into v_claimed from claimed c;
    if v_claimed = (select count(*) from unnest(p_specs) s where s.given) then
        return;
    end if;
    -- Those claimed here carry this call's time; a twin in the call is the later one.
    select s.task_id, s.ord into v_taken
      from (select u.task_id, u.ord,
                   row_number() over (partition by u.task_id order by u.ord) as n
              from unnest(p_specs) u where u.given) s
     where s.n > 1 or not exists (
        select from sokka.given_ids g
         where g.task_id = s.task_id and g.created_at = p_now)
     order by s.ord limit 1;
    perform sokka.refuse_task_id(v_taken.task_id, v_taken.ord, false);
end
$$;

-- insert_new_tasks: insert those that meet no conflict; their ids.
create function sokka.insert_new_tasks(p_specs sokka.task_spec[], p_now timestamptz) returns uuid[]
language plpgsql as $$
declare
    v_made uuid[];
begin
    with made as (
        insert into sokka.tasks (
            task_id, task_group_id, created_at, updated_at, run_at, queue_pos, priority,
            max_attempts, max_losses, depth, data_aside, is_join, status, topic, sub_topic, kind, expires_at,
            timeout, resubmit_of, parent_task_id, candidate, unique_key, retry, headers, data)
        select s.task_id, coalesce(s.task_group_id, s.task_id), p_now, p_now,
               coalesce(s.run_at, p_now), s.queue_pos, s.priority, s.max_attempts, s.max_losses,
               coalesce(s.depth, 0), s.aside, coalesce(s.is_join, false),
               case when s.run_at > p_now then 'snoozed' else 'starting' end, s.topic,
               s.sub_topic, s.kind, s.expires_at, sokka.exact_seconds(s.timeout), s.resubmit_of,
               s.parent_task_id, s.candidate, s.unique_key, s.retry, s.headers,
               case when not s.aside then s.data end
          from (select u.*, nextval('sokka.queue_pos_seq') as queue_pos,
                       sokka.travels_badly(u.data) as aside
                  from unnest(p_specs) u) s
         -- One order for everybody, so that two bulk calls with the same keys wait
         -- for each other instead of deadlocking.
         order by s.topic, s.unique_key, s.ord
        on conflict do nothing
        returning task_id
    )
    select coalesce(array_agg(m.task_id), '{}') into v_made from made m;
    insert into sokka.payloads (task_id, created_at, data)
    select u.task_id, p_now, u.data from unnest(p_specs) u
     where sokka.travels_badly(u.data)
       and (cardinality(v_made) = cardinality(p_specs) or u.task_id = any (v_made));
    return v_made;
end
$$;

-- depth_below: how deep a child of this task stands. The parent is only looked at: a
-- lock on it would stop its heartbeats until the caller's transaction ends.
create function sokka.depth_below(p_parent_task_id uuid) returns integer
language plpgsql as $$
declare
    v_max constant integer := (select s.max_depth from sokka.settings s);
    v_depth integer;
begin
    if p_parent_task_id is null then
        return 0;
    end if;
    select t.depth + 1 into v_depth from sokka.tasks t where t.task_id = p_parent_task_id;
    if not found then
        perform sokka.refuse_missing(p_parent_task_id, '{"status": ["starting", "running", "snoozed"]}');
    elsif v_depth > v_max then
        perform sokka.refuse_argument('parent_task_id',
            format('must stand at most %s tasks deep (settings.max_depth)', v_max - 1));
    end if;
    return v_depth;
end
$$;

-- travels_badly: too large to be written again when its task finishes.
create function sokka.travels_badly(p_data jsonb) returns boolean
language sql stable as $$
    select coalesce(pg_column_size(p_data) > 1600, false)
$$;

-- holder_of: the unfinished task that stands in a spec's way; refuses where the
-- spec asks for that. Null when it has just finished: insert again.
create function sokka.holder_of(p_spec sokka.task_spec) returns uuid
language plpgsql as $$
declare
    v_holder record;
begin
    if exists (select from sokka.tasks t where t.task_id = p_spec.task_id) then
        perform sokka.refuse_task_id(p_spec.task_id, p_spec.ord, false);
    end if;
    select t.task_id, t.status, t.pid, t.token, t.record_ver into v_holder from sokka.tasks t
     where t.topic = p_spec.topic and t.unique_key = p_spec.unique_key;
    if found and p_spec.on_conflict = 'error' then
        perform sokka.refuse('SK012',
            format('unique key %s of topic %s is held by task %s',
                quote_literal(p_spec.unique_key), quote_literal(p_spec.topic), v_holder.task_id),
            to_jsonb(v_holder) || jsonb_strip_nulls(jsonb_build_object(
                'unique_key', p_spec.unique_key, 'topic', p_spec.topic, 'position', p_spec.ord)));
    end if;
    return v_holder.task_id;
end
$$;

-- check_specs: refuse the whole call for the first spec that breaks a rule.
create function sokka.check_specs(p_specs sokka.task_spec[]) returns void
language plpgsql as $$
declare
    v_max_bytes constant integer := (select g.max_data_bytes from sokka.settings g);
    v_fault record;
begin
    select u.ord, sokka.spec_fault(u, v_max_bytes) as rule into v_fault
      from unnest(p_specs) u where sokka.spec_fault(u, v_max_bytes) is not null limit 1;
    if found then
        perform sokka.refuse_spec(v_fault.ord,
            split_part(v_fault.rule, ': ', 1), split_part(v_fault.rule, ': ', 2));
    end if;
end
$$;

-- specs_by_id: the specs whose ids are among these, or are not. By a hash: comparing
-- each with each takes a third of a second for 5,000.
create function sokka.specs_by_id(p_specs sokka.task_spec[], p_ids uuid[], p_among boolean)
returns setof sokka.task_spec
language plpgsql
set enable_nestloop = off
set jit = off
as $$
begin
    return query
        select u.* from unnest(p_specs) u left join unnest(p_ids) i (task_id) on i.task_id = u.task_id
         where (i.task_id is not null) = p_among;
end
$$;

-- insert_tasks: create the tasks of these specs, or find those that hold their
-- unique keys.
create function sokka.insert_tasks(p_specs sokka.task_spec[])
returns table (ord bigint, task_id uuid, created boolean)
language plpgsql as $$
#variable_conflict use_column
declare
    v_any_given boolean;
    v_any_child boolean;
    v_now timestamptz;
    v_left sokka.task_spec[] := p_specs;
    v_met sokka.task_spec[];
    v_made uuid[];
    v_spec sokka.task_spec;
    v_holder uuid;
begin
    perform sokka.check_specs(p_specs);
    select bool_or(u.given), bool_or(u.parent_task_id is not null and u.candidate is null)
      into v_any_given, v_any_child from unnest(p_specs) u;
    v_now := sokka.clock();
    if v_any_given then
        perform sokka.claim_given_ids(p_specs, v_now);
    end if;
    -- A holder that finishes between the insert and the look-up leads to another
    -- round; ten of those in a row are not chance.
    for v_round in 1..10 loop
        v_made := sokka.insert_new_tasks(v_left, v_now);
        if cardinality(v_made) = cardinality(v_left) then
            return query select u.ord, u.task_id, true from unnest(v_left) u;
            exit;
        end if;
        return query select u.ord, u.task_id, true from sokka.specs_by_id(v_left, v_made, true) u;
        v_met := array(select u from sokka.specs_by_id(v_left, v_made, false) u);
        v_left := '{}';
        foreach v_spec in array v_met loop
            v_holder := sokka.holder_of(v_spec);
            if v_holder is null then
                v_left := v_left || v_spec;
                continue;
            end if;
            ord := v_spec.ord;
            task_id := v_holder;
            created := false;
            return next;
            delete from sokka.given_ids g where g.task_id = v_spec.task_id and v_spec.given;
        end loop;
        exit when v_left = '{}';
        if v_round = 10 then
            perform sokka.refuse('55P03', 'a unique key changes hands too quickly', '{}');
        end if;
    end loop;
    if v_any_given then
        perform sokka.refuse_finished_ids(p_specs);
    end if;
    if v_any_child then
        perform sokka.note_new_children(p_specs);
    end if;
    perform sokka.announce(array(select distinct u.topic from unnest(p_specs) u order by 1));
end
$$;

-- refuse_finished_ids: an id made here for a task that has finished since, or one
-- that a forgotten task left in the history. Looked up after the insert, which waits
-- for such a finish.
create function sokka.refuse_finished_ids(p_specs sokka.task_spec[]) returns void
language plpgsql as $$
declare
    v_taken record;
begin
    select u.task_id, u.ord into v_taken from unnest(p_specs) u
     where u.given
       and (exists (select from sokka.finished_tasks f where f.task_id = u.task_id)
            or exists (select from sokka.past_leases p where p.task_id = u.task_id))
     limit 1;
    if found then
        perform sokka.refuse_task_id(v_taken.task_id, v_taken.ord, true);
    end if;
end
$$;

-- note_new_children: their parents were only looked at, so one may have been cancelled
-- before this is committed. The sweep sees it then, and takes the children along. A
-- fan-out has asserted its parent's lease instead.
create function sokka.note_new_children(p_specs sokka.task_spec[]) returns void
language sql as $$
    insert into sokka.join_inbox (join_id, task_id)
    select distinct u.parent_task_id, u.parent_task_id from unnest(p_specs) u
     where u.parent_task_id is not null and u.candidate is null and not u.is_join
$$;

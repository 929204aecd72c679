-- pause_topic: reserve takes nothing from this topic until it is resumed. Running
-- tasks go on; acquire_lease still works.   Raises: 22023.
create function sokka.pause_topic(p_topic text, p_reason text default null)
returns table (topic text, paused_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
#variable_conflict use_column
begin
    perform sokka.check_name('topic', p_topic);
    perform sokka.check_reason(p_reason);
    perform sokka.record_act('pause', null, p_topic, p_reason, null);
    return query
        insert into sokka.topics as t (topic, paused_at) values (p_topic, sokka.clock())
        on conflict (topic) do update set paused_at = coalesce(t.paused_at, excluded.paused_at)
        returning t.topic, t.paused_at;
end
$$;

-- resume_topic: lift the pause.   Raises: 22023.
create function sokka.resume_topic(p_topic text, p_reason text default null)
returns table (topic text, paused_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
#variable_conflict use_column
begin
    perform sokka.check_name('topic', p_topic);
    perform sokka.check_reason(p_reason);
    perform sokka.record_act('resume', null, p_topic, p_reason, null);
    update sokka.topics t set paused_at = null where t.topic = p_topic;
    perform sokka.announce(array[p_topic]);
    return query select p_topic, null::timestamptz;
end
$$;

-- set_topic: a topic's own lease and retention; null is the installation's.
-- Raises: 22023.
create function sokka.set_topic(
    p_topic text, p_lease interval default null, p_retention interval default null
) returns table (topic text, lease interval, retention interval)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_retention interval;
begin
    perform sokka.check_name('topic', p_topic);
    if extract(epoch from p_retention) not between 3600 and 3153600000 then
        perform sokka.refuse_argument('retention', 'must be from 1 hour to 36500 days');
    end if;
    v_retention := sokka.exact_seconds(p_retention);
    perform sokka.record_act('set', null, p_topic, null, jsonb_strip_nulls(
        jsonb_build_object('lease', p_lease, 'retention', v_retention)));
    return query
        insert into sokka.topics as t (topic, lease, retention)
        values (p_topic, sokka.checked_lease('lease', p_lease), v_retention)
        on conflict (topic) do update set lease = excluded.lease, retention = excluded.retention
        returning t.topic, t.lease, t.retention;
end
$$;

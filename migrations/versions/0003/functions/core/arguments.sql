-- Rules for arguments. Each refuses with 22023 and names argument and rule.

create function sokka.refuse_argument(p_argument text, p_rule text) returns void
language plpgsql as $$
begin
    perform sokka.refuse('22023', format('%s %s', p_argument, p_rule),
        jsonb_build_object('argument', p_argument, 'rule', p_rule));
end
$$;

-- A name as people write it: a topic, a kind, a worker's identity.
create function sokka.name_fault(p_name text) returns text
language sql immutable as $$
    select case
        when p_name is null then 'must not be null'
        when length(p_name) > 200 then 'must have at most 200 characters'
        when btrim(p_name) = '' then 'must not be blank'
        when p_name ~ '[[:cntrl:]]' then 'must not hold control characters'
    end
$$;

-- plain_name: whether it is surely a name, by the fewest steps; of what is not,
-- name_fault says why.
create function sokka.plain_name(p_name text) returns boolean
language sql immutable as $$
    select coalesce(octet_length(p_name) <= 200 and p_name !~ '^ *$|[[:cntrl:]]', false)
$$;

create function sokka.check_name(p_argument text, p_name text) returns void
language plpgsql as $$
begin
    if sokka.name_fault(p_name) is not null then
        perform sokka.refuse_argument(p_argument, sokka.name_fault(p_name));
    end if;
end
$$;

create function sokka.check_not_null(p_argument text, p_missing boolean) returns void
language plpgsql as $$
begin
    if p_missing then
        perform sokka.refuse_argument(p_argument, 'must not be null');
    end if;
end
$$;

-- A duration in exact seconds: a month is 30 days and a day 24 hours, always.
create function sokka.exact_seconds(p_duration interval) returns interval
language sql immutable as $$
    select make_interval(secs => extract(epoch from p_duration)::double precision)
$$;

-- checked_lease: a lease or ttl between 1 ms and 1 year, in exact seconds.
create function sokka.checked_lease(p_argument text, p_lease interval) returns interval
language plpgsql as $$
declare
    v_seconds constant numeric := extract(epoch from p_lease);
begin
    if v_seconds < 0.001 or v_seconds > 31557600 or v_seconds = 'NaN' then
        perform sokka.refuse_argument(p_argument, 'must be from 1 millisecond to 1 year');
    end if;
    return sokka.exact_seconds(p_lease);
end
$$;

-- checked_delay: a snooze or delay from 0 to 10 years, in exact seconds.
create function sokka.checked_delay(p_argument text, p_delay interval) returns interval
language plpgsql as $$
declare
    v_seconds constant numeric := extract(epoch from p_delay);
begin
    if v_seconds < 0 or v_seconds > 315576000 or v_seconds = 'NaN' then
        perform sokka.refuse_argument(p_argument, 'must be from 0 to 10 years');
    end if;
    return sokka.exact_seconds(p_delay);
end
$$;

-- check_json: a JSON text no longer than allowed. The text counts, not the binary
-- form: a number of six characters can be written out as a hundred thousand.
create function sokka.check_json(p_argument text, p_value jsonb, p_max_bytes integer) returns void
language plpgsql as $$
begin
    if octet_length(p_value::text) > p_max_bytes then
        perform sokka.refuse_argument(p_argument,
            format('must have at most %s bytes of JSON text', p_max_bytes));
    end if;
end
$$;

-- error_object: an error as it is stored: an object with a code.
create function sokka.error_object(p_error jsonb) returns jsonb
language plpgsql as $$
begin
    perform sokka.check_not_null('error', p_error is null);
    if jsonb_typeof(p_error) <> 'object' then
        perform sokka.refuse_argument('error', 'must be a JSON object with code and message');
    end if;
    if coalesce(jsonb_typeof(p_error -> 'code'), 'string') <> 'string' then
        perform sokka.refuse_argument('error', 'must have a string as its code');
    end if;
    perform sokka.check_json('error', p_error, 65536);
    return jsonb_build_object('code', 'error') || p_error;
end
$$;

-- duration_of: a duration in JSON: seconds as a number, or ISO 8601 text.
create function sokka.duration_of(p_argument text, p_value jsonb) returns interval
language plpgsql as $$
begin
    case jsonb_typeof(p_value)
    when 'number' then
        return make_interval(secs => p_value::double precision);
    when 'string' then
        return sokka.exact_seconds((p_value #>> '{}')::interval);
    when 'null' then
        return null;
    else
        if p_value is null then
            return null;
        end if;
    end case;
    perform sokka.refuse_argument(p_argument, 'must be seconds or an ISO 8601 duration');
exception when data_exception then
    perform sokka.refuse_argument(p_argument, 'must be seconds or an ISO 8601 duration');
end
$$;

-- instant_of: an instant in JSON. Text without an offset is refused: it would be
-- read in whatever time zone the session happens to have.
create function sokka.instant_of(p_argument text, p_text text) returns timestamptz
language plpgsql as $$
begin
    if p_text is null then
        return null;
    end if;
    -- Minutes must stand before the offset: the -01 of 2030-01-01 is none.
    if p_text !~* ':[0-9]{2}([.,][0-9]+)? ?(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' then
        perform sokka.refuse_argument(p_argument, 'must be an ISO 8601 instant with an offset');
    end if;
    return p_text::timestamptz;
exception when data_exception then
    perform sokka.refuse_argument(p_argument, 'must be an ISO 8601 instant with an offset');
end
$$;

-- uuid_of: an id in JSON.
create function sokka.uuid_of(p_argument text, p_value jsonb) returns uuid
language plpgsql as $$
begin
    if jsonb_typeof(p_value) = 'string' then
        return (p_value #>> '{}')::uuid;
    end if;
    perform sokka.refuse_argument(p_argument, 'must be a UUID');
    return null;
exception when data_exception then
    perform sokka.refuse_argument(p_argument, 'must be a UUID');
end
$$;

-- old_snapshot: whether this transaction does not see what others commit meanwhile.
create function sokka.old_snapshot() returns boolean
language sql stable as $$
    select current_setting('transaction_isolation') in ('repeatable read', 'serializable')
$$;

-- check_isolation: lease verbs need READ COMMITTED: under an older snapshot a
-- fence accepts a dead lease.
create function sokka.check_isolation() returns void
language plpgsql as $$
begin
    if sokka.old_snapshot() then
        perform sokka.refuse('25001',
            'a lease verb needs a READ COMMITTED transaction',
            jsonb_build_object('isolation', current_setting('transaction_isolation'),
                'expected', jsonb_build_object('isolation', 'read committed')));
    end if;
end
$$;

create function sokka.next_statuses(p_status text) returns jsonb
language sql immutable as $$
    select case p_status
        when 'starting' then '["running", "failed", "terminated"]'
        when 'running' then '["failed", "snoozed", "terminated", "starting"]'
        when 'snoozed' then '["starting", "failed", "terminated"]'
        else '[]'
    end::jsonb
$$;

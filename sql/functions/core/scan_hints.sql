-- Where a session's scans stopped: hints in a setting of the session, of at most 32
-- scans. A pooled connection may share them; a lost or wrong one costs time only.

create function sokka.scan_hints() returns jsonb
language plpgsql as $$
declare
    v_hints jsonb;
begin
    v_hints := coalesce(nullif(current_setting('skpg_hint.sokka', true), ''), '{}');
    return case jsonb_typeof(v_hints) when 'object' then v_hints else '{}' end;
exception when data_exception then
    return '{}';
end
$$;

create function sokka.scan_hint(p_key text) returns jsonb
language plpgsql as $$
begin
    return sokka.scan_hints() -> p_key;
end
$$;

create function sokka.set_scan_hint(p_key text, p_hint jsonb) returns void
language plpgsql as $$
declare
    v_hints jsonb := sokka.scan_hints();
begin
    -- Nested, so that the count is no part of an expression that is evaluated in place.
    if not v_hints ? p_key then
        if (select count(*) from jsonb_object_keys(v_hints)) >= 32 then
            v_hints := '{}';
        end if;
    end if;
    perform set_config('skpg_hint.sokka', (v_hints || jsonb_build_object(p_key, p_hint))::text, false);
end
$$;

create function sokka.drop_scan_hint(p_key text) returns void
language plpgsql as $$
begin
    perform set_config('skpg_hint.sokka', (sokka.scan_hints() - p_key)::text, false);
end
$$;

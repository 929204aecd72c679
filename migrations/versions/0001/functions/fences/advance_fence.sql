-- advance_fence: remember the highest token that wrote to a resource; refuse a
-- lower one. In the transaction that writes, it keeps ghosts out of any database,
-- also one without a queue.
-- Needs:  a resource name of at most 1000 bytes; a token.
-- Raises: 22023, SK011 (a higher token has been here), 55P03.
-- Locks:  the resource's row until the transaction ends.
create function sokka.advance_fence(p_resource text, p_token bigint)
returns table (resource text, token bigint)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_seen bigint;
begin
    if p_resource is null or p_resource = '' or octet_length(p_resource) > 1000 then
        perform sokka.refuse('22023', 'resource must have 1 to 1000 bytes',
            '{"argument": "resource", "rule": "must have 1 to 1000 bytes"}');
    end if;
    if p_token is null or p_token < 0 then
        perform sokka.refuse('22023', 'token must not be null or negative',
            '{"argument": "token", "rule": "must not be null or negative"}');
    end if;
    insert into sokka.fences as f (resource, token, advanced_at)
    values (p_resource, p_token, clock_timestamp())
    on conflict (resource) do update
       set token = excluded.token, advanced_at = excluded.advanced_at
     where f.token <= excluded.token;
    if not found then
        select f.token into v_seen from sokka.fences f where f.resource = p_resource;
        perform sokka.refuse('SK011',
            format('the fence has seen token %s, later than %s', v_seen, p_token),
            jsonb_build_object('resource', p_resource, 'token', v_seen,
                'expected', jsonb_build_object('token', p_token)));
    end if;
    resource := p_resource;
    token := p_token;
    return next;
end
$$;

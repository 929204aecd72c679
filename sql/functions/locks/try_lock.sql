-- Leased singletons: one owner of a key at a time, for as long as it renews.

-- judge_lock: refuse unless the locked row is this owner's, under this token, and live.
create function sokka.judge_lock(
    p_lock sokka.locks, p_key text, p_owner text, p_token bigint, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_detail constant jsonb := jsonb_build_object('key', p_key, 'owner', p_lock.owner,
        'token', p_lock.token, 'lock_expires_at', p_lock.lock_expires_at,
        'expected', jsonb_build_object('owner', p_owner, 'token', p_token));
begin
    if p_lock.owner is distinct from p_owner then
        perform sokka.refuse('SK003', format('lock %s is not held by this owner', quote_literal(p_key)),
            v_detail);
    elsif p_lock.token <> p_token then
        perform sokka.refuse('SK005', format('token %s of lock %s is not the current one', p_token,
            quote_literal(p_key)), v_detail);
    elsif p_lock.lock_expires_at <= p_now then
        perform sokka.refuse('SK004', format('lock %s is over', quote_literal(p_key)),
            v_detail || jsonb_build_object('clock', p_now));
    end if;
end
$$;

create function sokka.check_lock(p_key text, p_owner text) returns void
language plpgsql as $$
begin
    perform sokka.check_not_null('key', p_key is null);
    if octet_length(p_key) not between 1 and 500 then
        perform sokka.refuse_argument('key', 'must have 1 to 500 bytes');
    end if;
    perform sokka.check_name('owner', p_owner);
    perform sokka.check_isolation();
end
$$;

-- try_lock: become the owner of a key for p_ttl, if nobody is. Never waits for an owner:
-- an open assert_lock, or another call at this moment, counts as one.
-- Needs:  a key; an owner; how long. An owner whose lock is live has to renew it.
-- Returns the token and the end; no row when it is held.
-- Raises: 22023, 25001.   Locks: the key's row.
create function sokka.try_lock(p_key text, p_owner text, p_ttl interval)
returns table (token bigint, lock_expires_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_ttl constant interval := sokka.checked_lease('ttl', p_ttl);
    v_lock sokka.locks;
begin
    perform sokka.check_lock(p_key, p_owner);
    perform sokka.check_not_null('ttl', p_ttl is null);
    perform sokka.trust_tokens();
    select * into v_lock from sokka.locks l where l.key = p_key for update skip locked;
    if found then
        return query
            update sokka.locks l
               set owner = p_owner, token = nextval('sokka.token_seq'),
                   acquired_at = sokka.clock(), lock_expires_at = sokka.clock() + v_ttl
             where l.key = p_key and l.lock_expires_at <= sokka.clock()
            returning l.token, l.lock_expires_at;
    elsif not exists (select from sokka.locks l where l.key = p_key) then
        return query
            insert into sokka.locks as l (key, owner, token, acquired_at, lock_expires_at)
            values (p_key, p_owner, nextval('sokka.token_seq'), sokka.clock(), sokka.clock() + v_ttl)
            on conflict (key) do nothing
            returning l.token, l.lock_expires_at;
    end if;
exception when lock_not_available then
    -- Somebody else is making the row.
    return;
end
$$;

-- renew_lock: the owner is alive: the lock lasts until clock + p_ttl.
-- Needs:  a live lock (key, owner, token).   Returns its end.
-- Raises: 22023, 25001, SK003 (also for an unknown key), SK004, SK005, 55P03.
-- Locks:  the key's row, passing an open assert_lock.
create function sokka.renew_lock(p_key text, p_owner text, p_token bigint, p_ttl interval)
returns table (lock_expires_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_ttl constant interval := sokka.checked_lease('ttl', p_ttl);
    v_lock sokka.locks;
begin
    perform sokka.check_lock(p_key, p_owner);
    perform sokka.check_not_null('token', p_token is null);
    perform sokka.check_not_null('ttl', p_ttl is null);
    select * into v_lock from sokka.locks l where l.key = p_key for no key update;
    perform sokka.judge_lock(v_lock, p_key, p_owner, p_token, sokka.clock());
    return query update sokka.locks l set lock_expires_at = sokka.clock() + v_ttl
                  where l.key = p_key returning l.lock_expires_at;
end
$$;

-- release_lock: the owner is done; anybody may have the key at once.
-- Needs:  a live lock (key, owner, token).   Returns when it was released.
-- Raises: 22023, 25001, SK003 (also for an unknown key), SK004, SK005, 55P03.
-- Locks:  the key's row; waits for an open assert_lock.
create function sokka.release_lock(p_key text, p_owner text, p_token bigint)
returns table (released_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
declare
    v_lock sokka.locks;
begin
    perform sokka.check_lock(p_key, p_owner);
    perform sokka.check_not_null('token', p_token is null);
    select * into v_lock from sokka.locks l where l.key = p_key for update;
    perform sokka.judge_lock(v_lock, p_key, p_owner, p_token, sokka.clock());
    return query update sokka.locks l set lock_expires_at = sokka.clock()
                  where l.key = p_key returning l.lock_expires_at;
end
$$;

-- assert_lock: the caller's transaction acts for the key: its lock is live and newest,
-- and nobody can take it over before the transaction ends.
-- Needs:  a live lock (key, owner, token), READ COMMITTED.   Returns its end.
-- Raises: 22023, 25001, SK003 (also for an unknown key), SK004, SK005, 55P03.
-- Locks:  the key's row, FOR KEY SHARE.
create function sokka.assert_lock(p_key text, p_owner text, p_token bigint)
returns table (lock_expires_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
#variable_conflict use_column
declare
    v_lock sokka.locks;
begin
    perform sokka.check_lock(p_key, p_owner);
    perform sokka.check_not_null('token', p_token is null);
    select * into v_lock from sokka.locks l where l.key = p_key for key share;
    perform sokka.judge_lock(v_lock, p_key, p_owner, p_token, sokka.clock());
    lock_expires_at := v_lock.lock_expires_at;
    return next;
end
$$;

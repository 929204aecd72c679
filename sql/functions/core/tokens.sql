-- Tokens only ever rise, across everything that can set the sequence back: a
-- crash that lost unflushed WAL, a standby promoted without the last commits, a
-- dump, a copied disk. Each of these changes the server's incarnation, and the
-- first grant after a change lifts the sequence to the microseconds since 1970,
-- far above anything drawn before.

-- incarnation: what changes when the sequence may have gone back.
--   start of the postmaster   any restart
--   statistics reset          a crash of one backend: all others restart and
--                             unflushed WAL is lost, but the postmaster stays
--                             (PostgreSQL 14 reads a file for it, too slow; there
--                             such a crash with synchronous_commit off is a gap)
--   timeline                  a promotion; pg_control_checkpoint() shows the old
--                             timeline long after one
--   sequence's file           database and relation: dump, restore, template copy
create function sokka.incarnation() returns text
language plpgsql as $$
begin
    return concat_ws(' ',
        extract(epoch from pg_postmaster_start_time()),
        extract(epoch from case when current_setting('server_version_num')::integer >= 150000
            then pg_stat_get_bgwriter_stat_reset_time() end),
        substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
        pg_relation_filepath('sokka.token_seq'),
        'sokka.token_seq'::regclass::oid);
end
$$;

-- incarnation_hash: the incarnation as a number.
create function sokka.incarnation_hash() returns bigint
language plpgsql as $$
begin
    return hashtextextended(sokka.incarnation(), 0);
end
$$;

-- lift_tokens: the next token is above every one drawn before; returns the floor.
-- One caller at a time, by a lock of the session that is given back here: the
-- caller's transaction may stay open for long, and a grant never waits for one.
create function sokka.lift_tokens(p_always boolean) returns bigint
language plpgsql as $$
declare
    v_incarnation constant bigint := sokka.incarnation_hash();
    v_floor bigint;
begin
    perform pg_advisory_lock('sokka.settings'::regclass::oid::integer, 4);
    begin
        select s.last_value into v_floor from sokka.token_seq s;
        if p_always or v_incarnation <> (select i.last_value from sokka.incarnation_seq i) then
            v_floor := greatest(v_floor + 1,
                (extract(epoch from clock_timestamp()) * 1000000)::bigint);
            -- Not transactional: a rollback of the caller takes no token back.
            perform setval('sokka.token_seq', v_floor, true);
            perform setval('sokka.incarnation_seq', v_incarnation, true);
        end if;
    exception when others or query_canceled then
        perform pg_advisory_unlock('sokka.settings'::regclass::oid::integer, 4);
        raise;
    end;
    perform pg_advisory_unlock('sokka.settings'::regclass::oid::integer, 4);
    return v_floor;
end
$$;

-- tokens_stand: whether the tokens can be trusted as they are.
create function sokka.tokens_stand() returns boolean
language plpgsql as $$
begin
    return hashtextextended(sokka.incarnation(), 0)
        is not distinct from pg_sequence_last_value('sokka.incarnation_seq');
end
$$;

-- trust_tokens: to be called after the row lock and before nextval.
create function sokka.trust_tokens() returns void
language plpgsql as $$
begin
    if not sokka.tokens_stand() then
        perform sokka.lift_tokens(false);
    end if;
end
$$;

-- raise_token_epoch: lift the tokens above all drawn before. For a restore that
-- the database cannot see (rows copied into another installation, a clock that
-- was set back).   Returns a token that every later one exceeds.
create function sokka.raise_token_epoch(p_reason text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set lock_timeout = '3s'
as $$
declare
    v_floor bigint;
begin
    perform sokka.check_reason(p_reason);
    v_floor := sokka.lift_tokens(true);
    perform sokka.record_act('raise_token_epoch', null, null, p_reason,
        jsonb_build_object('floor', v_floor));
    return v_floor;
end
$$;

do $$
declare
    v_grant record;
begin
    for v_grant in select * from pg_temp.sokka_grants loop
        execute format('grant execute on function sokka.%I to %s', v_grant.proname, v_grant.grantee)
            || case when v_grant.is_grantable then ' with grant option' else '' end;
    end loop;
end
$$;

-- The token of a key only rises as long as its row stays.
create function sokka.refuse_forgetting() returns trigger
language plpgsql as $$
begin
    perform sokka.refuse('42501', format('rows of %I stay: the token of a key must only rise', tg_table_name),
        jsonb_build_object('table', tg_table_name, 'rule', tg_op));
    return null;
end
$$;
create trigger locks_stay before delete on sokka.locks
    for each row execute function sokka.refuse_forgetting();
create trigger locks_kept before truncate on sokka.locks
    for each statement execute function sokka.refuse_forgetting();

-- check_fence: the trigger of guarded tables. Refuses the write unless this
-- transaction holds an asserted lease that is still the task's current one. Who
-- may run SQL can forge the setting: a net against mistakes, not against malice.
create function sokka.check_fence() returns trigger
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
begin
    if exists (
        select from regexp_split_to_table(
                   nullif(current_setting('skpg_fence.sokka', true), ''), ' ') f
          join sokka.tasks t on t.task_id = split_part(f, '/', 1)::uuid
                            and t.token = split_part(f, '/', 2)::bigint) then
        return case tg_op when 'DELETE' then old else new end;
    end if;
    perform sokka.refuse('SK013',
        format('table %I is guarded: assert a lease in this transaction first', tg_table_name),
        jsonb_build_object('table', format('%I.%I', tg_table_schema, tg_table_name), 'operation', tg_op));
    return null;
end
$$;

-- guard_table: refuse unfenced insert, update, delete and truncate on this table
-- and its partitions from now on. Calling it again is harmless, and covers
-- TRUNCATE on partitions made since: row triggers pass on to partitions, statement
-- triggers do not.
-- Needs: to own the table. Runs with the caller's rights, and so uses none of the
--        schema's inner functions.
create function sokka.guard_table(p_table regclass) returns void
language plpgsql
set search_path = pg_catalog, sokka, pg_temp
as $$
declare
    v_relation regclass;
begin
    perform sokka.unguard_table(p_table);
    execute format('create trigger %I before insert or update or delete on %s '
        'for each row execute function sokka.check_fence()', 'sokka' || '_guard_rows', p_table);
    for v_relation in
        select p_table union select t.relid from pg_partition_tree(p_table) t loop
        execute format('create trigger %I before truncate on %s '
            'for each statement execute function sokka.check_fence()',
            'sokka' || '_guard_truncate', v_relation);
    end loop;
end
$$;

-- unguard_table: lift the guard again. Harmless on a table that has none.
create function sokka.unguard_table(p_table regclass) returns void
language plpgsql
set search_path = pg_catalog, sokka, pg_temp
set client_min_messages = warning
as $$
declare
    v_relation regclass;
begin
    if p_table is null then
        raise exception using errcode = '22023', message = 'table must not be null',
            detail = '{"argument": "table", "rule": "must not be null"}';
    end if;
    execute format('drop trigger if exists %I on %s', 'sokka' || '_guard_rows', p_table);
    for v_relation in
        select p_table union select t.relid from pg_partition_tree(p_table) t loop
        execute format('drop trigger if exists %I on %s', 'sokka' || '_guard_truncate', v_relation);
    end loop;
end
$$;

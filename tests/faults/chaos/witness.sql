-- The second witness of a run of real processes: every change of a row that matters,
-- written in the transaction that makes it, so that a change and its record commit together
-- or not at all. It decides nothing, reads nothing and locks nothing but the row it adds;
-- it has no index, so that it is cheap and adds no conflict to serializable transactions.
--
-- Its functions run as their owner, whatever role makes a change, with a fixed search_path.
-- Loading the file again is harmless: attach() is to be called again after a migration, for
-- the tables and columns that came with it.
create schema if not exists chaos;
grant usage on schema chaos to public;

create table if not exists chaos.changes (
    pos      bigint generated always as identity,
    at       bigint not null,
    -- When the statement began: what it decided by the clock lies between the two.
    began    bigint not null,
    xid      text not null,
    backend  integer not null,
    lsn      pg_lsn not null,
    function text not null,
    source   text not null,
    old      jsonb,
    new      jsonb
);

-- us: an instant as microseconds since 1970.
create or replace function chaos.us(p_at timestamptz) returns bigint
language sql immutable parallel safe as $$
    select (extract(epoch from p_at) * 1000000)::bigint
$$;

-- function_of: the function of the queue that the client called, from its statement. Text
-- of a caller that holds none gives nothing. A split first: a regular expression over a list
-- of columns costs more than all the rest of the witness. The argument stands there once,
-- or the planner would not put the body in its place.
create or replace function chaos.function_of(p_statement text) returns text
language sql immutable parallel safe as $$
    select coalesce(substring(
        split_part(split_part(left(p_statement, 8000), 'sokka.', 2), '(', 1)
        from '^[a-z_]{1,60}$'), '')
$$;

-- What an image holds of each table: key, column, and how the column is read. ``heavy``
-- columns stand in the image of an update only where they changed.
create table if not exists chaos.columns (
    source text not null,
    place  integer generated always as identity,
    key    text not null,
    needs  text[] not null,
    value  text not null,
    heavy  boolean not null default false
);
truncate chaos.columns;

insert into chaos.columns (source, key, needs, value, heavy)
select s.source, c.key, array[c.needs], c.value, c.heavy
  from (values ('tasks'), ('finished_tasks')) s (source)
 cross join (values
    ('id', 'task_id', '$.task_id', false), ('status', 'status', '$.status', false),
    ('token', 'token', '$.token', false), ('ver', 'record_ver', '$.record_ver', false),
    ('until', 'lease_expires_at', 'chaos.us($.lease_expires_at)', false),
    ('pid', 'pid', '$.pid', false), ('attempt', 'attempt', '$.attempt', false),
    ('failures', 'failures', '$.failures', false), ('losses', 'losses', '$.losses', false),
    ('max_attempts', 'max_attempts', '$.max_attempts', false),
    ('max_losses', 'max_losses', '$.max_losses', false),
    ('checkpoint_seq', 'checkpoint_seq', '$.checkpoint_seq', false),
    ('run_at', 'run_at', 'chaos.us($.run_at)', false),
    ('expires_at', 'expires_at', 'chaos.us($.expires_at)', false),
    ('now', 'updated_at', 'chaos.us($.updated_at)', false),
    ('now', 'finished_at', 'chaos.us($.finished_at)', false),
    ('code', 'error', '$.error ->> ''code''', false),
    ('cancel', 'cancel_requested_at', 'chaos.us($.cancel_requested_at)', false),
    ('topic', 'topic', '$.topic', false), ('key', 'unique_key', '$.unique_key', false),
    ('kind', 'kind', '$.kind', false), ('parent', 'parent_task_id', '$.parent_task_id', false),
    ('candidate', 'candidate', '$.candidate', false), ('is_join', 'is_join', '$.is_join', false),
    ('waits_for', 'waits_for', '$.waits_for', false),
    ('resubmit_of', 'resubmit_of', '$.resubmit_of', false),
    ('fire', 'headers', '($.headers ->> ''sokka-schedule'') || '' '' || ($.headers ->> ''sokka-fire-at'')', false),
    ('aside', 'data_aside', '$.data_aside', false), ('result', 'result', '$.result', false),
    ('data', 'data', '$.data', true), ('checkpoint', 'checkpoint', '$.checkpoint', true),
    ('progress', 'progress', '$.progress', true)) c (key, needs, value, heavy)
 where not (s.source = 'finished_tasks' and c.key = 'waits_for');

insert into chaos.columns (source, key, needs, value) values
    ('joins', 'id', '{task_id}', '$.task_id'), ('joins', 'policy', '{policy}', '$.policy'),
    ('joins', 'needed', '{needed}', '$.needed'), ('joins', 'total', '{total}', '$.total'),
    ('joins', 'done', '{done}', '$.done'), ('joins', 'succeeded', '{succeeded}', '$.succeeded'),
    ('joins', 'failed', '{failed}', '$.failed'), ('joins', 'in_flight', '{in_flight}', '$.in_flight'),
    ('joins', 'max_running', '{max_running}', '$.max_running'), ('joins', 'state', '{state}', '$.state'),
    ('joins', 'outcome', '{outcome}', '$.outcome'),
    ('joins', 'deadline_at', '{deadline_at}', 'chaos.us($.deadline_at)'),
    ('locks', 'id', '{key}', '$.key'), ('locks', 'owner', '{owner}', '$.owner'),
    ('locks', 'token', '{token}', '$.token'),
    ('locks', 'until', '{lock_expires_at}', 'chaos.us($.lock_expires_at)'),
    ('locks', 'now', '{acquired_at}', 'chaos.us($.acquired_at)'),
    ('stream_items', 'id', '{task_id}', '$.task_id'), ('stream_items', 'seq', '{seq}', '$.seq'),
    ('stream_items', 'token', '{token}', '$.token'),
    ('stream_items', 'now', '{written_at}', 'chaos.us($.written_at)'),
    ('task_steps', 'id', '{task_id}', '$.task_id'), ('task_steps', 'seq', '{seq}', '$.seq'),
    ('task_steps', 'name', '{name}', '$.name'), ('task_steps', 'token', '{token}', '$.token'),
    ('task_steps', 'now', '{recorded_at}', 'chaos.us($.recorded_at)'),
    ('schedule_fires', 'id', '{task_id}', '$.task_id'), ('schedule_fires', 'name', '{name}', '$.name'),
    ('schedule_fires', 'generation', '{generation}', '$.generation'),
    ('schedule_fires', 'at', '{fire_at}', 'chaos.us($.fire_at)'),
    ('schedule_fires', 'now', '{fired_at}', 'chaos.us($.fired_at)'),
    ('schedule_fires', 'extra', '{extra}', '$.extra');

-- image: the expression for the image of a row, of the columns that the table has.
create or replace function chaos.image(p_source text, p_row text, p_heavy boolean) returns text
language sql as $$
    select 'jsonb_build_object('
           || string_agg(format('%L, %s', c.key, replace(c.value, '$', p_row)), ', ' order by c.place)
           || ')'
      from chaos.columns c
     where c.source = p_source and c.heavy <= p_heavy
       and not exists (
           select from unnest(c.needs) n
            where not exists (select from pg_attribute a
                               where a.attrelid = to_regclass('sokka.' || p_source)
                                 and a.attname = n and not a.attisdropped))
$$;

-- heavy_changes: the expression that adds to v_new what an update changed of the rest.
create or replace function chaos.heavy_changes(p_source text) returns text
language sql as $$
    select coalesce(string_agg(format(
        'if old.%1$s is distinct from new.%1$s then v_new := v_new || jsonb_build_object(%2$L, new.%1$s); end if;',
        c.needs[1], c.key), ' '), '')
      from chaos.columns c where c.source = p_source and c.heavy
$$;

-- attach: one trigger function for each table: a generic one would look its columns up
-- each time.
create or replace function chaos.attach() returns void
language plpgsql as $$
declare
    v_source text;
begin
    for v_source in select distinct c.source from chaos.columns c
                     where to_regclass('sokka.' || c.source) is not null loop
        perform chaos.see('sokka.' || v_source, v_source, chaos.image(v_source, 'old', false),
            chaos.image(v_source, 'new', true), chaos.image(v_source, 'new', false),
            chaos.heavy_changes(v_source));
    end loop;
end
$$;

-- guard: watch a table of the handlers too, which has at least task_id and token.
create or replace function chaos.guard(p_table regclass) returns void
language plpgsql as $$
begin
    perform chaos.see(p_table::text, 'guarded', 'to_jsonb(old) || jsonb_build_object(''id'', old.task_id)',
        'to_jsonb(new) || jsonb_build_object(''id'', new.task_id)',
        'to_jsonb(new) || jsonb_build_object(''id'', new.task_id)', '');
end
$$;

-- see: the trigger on one table.
create or replace function chaos.see(
    p_table text, p_source text, p_old text, p_inserted text, p_updated text, p_heavy text
) returns void
language plpgsql as $$
begin
    execute format($f$
        create or replace function chaos.see_%1$s() returns trigger
        language plpgsql security definer
        set search_path = pg_catalog, pg_temp
        as $t$
        declare
            v_old jsonb;
            v_new jsonb;
        begin
            if tg_op <> 'INSERT' then
                v_old := %3$s;
            end if;
            if tg_op = 'INSERT' then
                v_new := %4$s;
            elsif tg_op = 'UPDATE' then
                v_new := %5$s;
                %6$s
            end if;
            insert into chaos.changes (at, began, xid, backend, lsn, function, source, old, new)
            values (chaos.us(clock_timestamp()), chaos.us(statement_timestamp()),
                pg_current_xact_id()::text, pg_backend_pid(), pg_current_wal_insert_lsn(),
                chaos.function_of(current_query()), %2$L, v_old, v_new);
            return null;
        end
        $t$
        $f$, p_source, p_source, p_old, p_inserted, p_updated, p_heavy);
    if not exists (select from pg_trigger t
                    where t.tgrelid = p_table::regclass and t.tgname = 'aaa_chaos_witness') then
        execute format('create trigger aaa_chaos_witness after insert or update or delete on %s '
            'for each row execute function chaos.see_%s()', p_table, p_source);
    end if;
end
$$;

select chaos.attach();

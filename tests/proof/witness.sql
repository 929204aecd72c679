-- The second witness: every change of a row that matters, written in the transaction
-- that makes it, so that a change and its record commit together or not at all. And a
-- clock that is set by hand. Loaded over a copy of the schema, never over a real one.
create schema proof;

-- Microseconds since the beginning of 2030. A sequence, for no transaction hides it.
create sequence proof.clock_us minvalue 0 start 0;

create or replace function sokka.clock() returns timestamptz
language sql volatile as $$
    select timestamptz '2030-01-01 00:00+00' + c.last_value * interval '1 microsecond'
      from proof.clock_us c
$$;

-- When this transaction began: what now() would be, if it ran on this clock.
create function proof.began() returns timestamptz
language sql volatile as $$
    select coalesce(nullif(current_setting('proof.began', true), '')::timestamptz, sokka.clock())
$$;

create function proof.us(p_at timestamptz) returns bigint
language sql immutable as $$
    select (extract(epoch from p_at - timestamptz '2030-01-01 00:00+00') * 1000000)::bigint
$$;

create table proof.changes (
    pos     bigint generated always as identity primary key,
    clock   bigint not null,
    xid     text not null,
    backend integer not null,
    call    integer,
    source  text not null,
    old     jsonb,
    new     jsonb
) with (autovacuum_enabled = off);

create table proof.effects (task_id uuid not null, token bigint not null)
    with (autovacuum_enabled = off);

create function proof.write(p_source text, p_old jsonb, p_new jsonb) returns void
language sql as $$
    insert into proof.changes (clock, xid, backend, call, source, old, new)
    values (proof.us(sokka.clock()), pg_current_xact_id()::text, pg_backend_pid(),
        nullif(current_setting('proof.call', true), '')::integer, p_source, p_old, p_new)
$$;

-- What a client notes in its own transaction: a write under a fence, or its last act.
create function proof.note(p_what text, p_id text default null, p_token bigint default null)
returns void
language sql as $$
    select proof.write('note', null,
        jsonb_build_object('what', p_what, 'id', p_id, 'token', p_token))
$$;

create function proof.of_task(t sokka.tasks) returns jsonb
language sql stable as $$
    select jsonb_build_object('id', t.task_id, 'status', t.status, 'token', t.token,
        'ver', t.record_ver, 'until', proof.us(t.lease_expires_at), 'pid', t.pid,
        'attempt', t.attempt, 'failures', t.failures, 'losses', t.losses,
        'max_attempts', t.max_attempts, 'max_losses', t.max_losses,
        'checkpoint_seq', t.checkpoint_seq, 'checkpoint', t.checkpoint, 'progress', t.progress,
        'run_at', proof.us(t.run_at), 'expires_at', proof.us(t.expires_at), 'code', t.error ->> 'code',
        'cancel', proof.us(t.cancel_requested_at), 'topic', t.topic, 'key', t.unique_key,
        'data', t.data, 'parent', t.parent_task_id, 'candidate', t.candidate,
        'is_join', t.is_join, 'waits_for', t.waits_for, 'kind', t.kind,
        'fire', t.headers ->> 'sokka-schedule' || ' ' || (t.headers ->> 'sokka-fire-at'))
$$;

create function proof.of_finished(f sokka.finished_tasks) returns jsonb
language sql stable as $$
    select jsonb_build_object('id', f.task_id, 'status', f.status, 'token', f.token,
        'ver', f.record_ver, 'until', proof.us(f.lease_expires_at), 'pid', f.pid,
        'attempt', f.attempt, 'failures', f.failures, 'losses', f.losses,
        'max_attempts', f.max_attempts, 'max_losses', f.max_losses,
        'checkpoint_seq', f.checkpoint_seq, 'checkpoint', f.checkpoint, 'progress', f.progress,
        'run_at', proof.us(f.run_at), 'expires_at', proof.us(f.expires_at), 'code', f.error ->> 'code',
        'cancel', proof.us(f.cancel_requested_at), 'topic', f.topic, 'key', f.unique_key,
        'data', f.data, 'parent', f.parent_task_id, 'candidate', f.candidate,
        'is_join', f.is_join, 'kind', f.kind, 'result', f.result)
$$;

create function proof.of_join(j sokka.joins) returns jsonb
language sql stable as $$
    select jsonb_build_object('id', j.task_id, 'policy', j.policy, 'needed', j.needed,
        'total', j.total, 'done', j.done, 'succeeded', j.succeeded, 'failed', j.failed,
        'in_flight', j.in_flight, 'max_running', j.max_running, 'state', j.state,
        'outcome', j.outcome, 'deadline_at', proof.us(j.deadline_at))
$$;

create function proof.of_lock(l sokka.locks) returns jsonb
language sql stable as $$
    select jsonb_build_object('id', l.key, 'owner', l.owner, 'token', l.token,
        'until', proof.us(l.lock_expires_at))
$$;

create function proof.of_item(i sokka.stream_items) returns jsonb
language sql stable as $$
    select jsonb_build_object('id', i.task_id, 'seq', i.seq, 'token', i.token, 'item', i.item)
$$;

create function proof.of_step(s sokka.task_steps) returns jsonb
language sql stable as $$
    select jsonb_build_object('id', s.task_id, 'seq', s.seq, 'name', s.name, 'token', s.token,
        'value', s.value)
$$;

create function proof.of_fire(f sokka.schedule_fires) returns jsonb
language sql stable as $$
    select jsonb_build_object('id', f.task_id, 'name', f.name, 'generation', f.generation,
        'at', proof.us(f.fire_at), 'extra', f.extra)
$$;

-- One trigger function for each table: a generic one would look its columns up each time.
do $do$
declare
    v_table record;
begin
    for v_table in select * from (values
        ('tasks', 'of_task'), ('finished_tasks', 'of_finished'), ('joins', 'of_join'),
        ('locks', 'of_lock'), ('stream_items', 'of_item'), ('task_steps', 'of_step'),
        ('schedule_fires', 'of_fire')) v (name, image) loop
        execute format($f$
            create function proof.see_%1$s() returns trigger
            language plpgsql as $t$
            begin
                if tg_op = 'INSERT' then
                    perform proof.write(%1$L, null, proof.%2$s(new));
                elsif tg_op = 'DELETE' then
                    perform proof.write(%1$L, proof.%2$s(old), null);
                else
                    perform proof.write(%1$L, proof.%2$s(old), proof.%2$s(new));
                end if;
                return null;
            end
            $t$;
            create trigger aaa_witness after insert or update or delete on sokka.%1$I
                for each row execute function proof.see_%1$s()$f$, v_table.name, v_table.image);
    end loop;
end
$do$;

-- Where rows lie must be the same at each play of a seed.
alter table sokka.tasks set (autovacuum_enabled = off);
alter table sokka.joins set (autovacuum_enabled = off);
alter table sokka.join_inbox set (autovacuum_enabled = off);
alter table sokka.locks set (autovacuum_enabled = off);
alter table sokka.schedules set (autovacuum_enabled = off);
alter table sokka.streams set (autovacuum_enabled = off);

select sokka.guard_table('proof.effects');

-- forget: as if nothing had happened yet. Faster than a new database: 2 ms against 90.
create function proof.forget() returns void
language plpgsql as $$
begin
    set local session_replication_role = replica;
    delete from sokka.tasks;
    delete from sokka.finished_tasks;
    delete from sokka.past_leases;
    delete from sokka.given_ids;
    delete from sokka.joins;
    delete from sokka.join_inbox;
    delete from sokka.locks;
    delete from sokka.streams;
    delete from sokka.stream_items;
    delete from sokka.task_steps;
    delete from sokka.schedules;
    delete from sokka.schedule_fires;
    delete from sokka.topics;
    delete from sokka.audit_entries;
    delete from proof.effects;
    delete from proof.changes;
    perform setval('proof.clock_us', 0);
    perform setval('sokka.swept_at_seq', 1);
end
$$;

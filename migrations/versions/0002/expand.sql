-- What cannot be replaced in place. Columns are only added; those of tables and types
-- stay when this revision is left, so each is added if it is not there.

alter table sokka.settings add column if not exists
    max_depth integer not null default 16 check (max_depth between 1 and 1000);

alter table sokka.tasks
    add column if not exists depth integer not null default 0,
    add column if not exists is_join boolean not null default false,
    add column if not exists parent_task_id uuid,
    add column if not exists candidate integer,
    add column if not exists waits_for uuid;
create index if not exists tasks_children on sokka.tasks (parent_task_id, candidate)
    where parent_task_id is not null;

alter table sokka.finished_tasks
    add column if not exists depth integer not null default 0,
    add column if not exists is_join boolean not null default false,
    add column if not exists parent_task_id uuid,
    add column if not exists candidate integer;
create index if not exists finished_tasks_children on sokka.finished_tasks (parent_task_id, candidate)
    where parent_task_id is not null;

do $$
begin
    if not exists (select from pg_attribute a
                    where a.attrelid = 'sokka.leased_task'::regclass and a.attname = 'candidate') then
        alter type sokka.leased_task add attribute parent_task_id uuid, add attribute candidate integer;
    end if;
end
$$;
alter type sokka.task_spec add attribute parent_task_id uuid, add attribute candidate integer,
    add attribute depth integer, add attribute is_join boolean;
create type sokka.stream_state as (
    task_id       uuid,
    status        text,
    last_seq      bigint,
    consumed_seq  bigint,
    max_items     integer,
    max_bytes     bigint,
    pending_items bigint,
    pending_bytes bigint,
    error         jsonb
);

create type sokka.schedule_fire as (
    ord         bigint,
    schedule_id uuid,
    generation  bigint,
    due_at      timestamptz,
    ticks       timestamptz[],
    next_at     timestamptz,
    skipped     bigint,
    busy        boolean,
    error       text
);

-- Functions whose arguments or answers change: dropped here, made below, and granted to
-- whom they were granted.
create temporary table sokka_grants on commit drop as
select p.proname, a.grantee::regrole::text as grantee, a.is_grantable
  from pg_proc p, aclexplode(p.proacl) a
 where p.pronamespace = 'sokka'::regnamespace and p.proname in ('create_task', 'resubmit_task')
   and a.grantee not in (0, p.proowner);
drop function sokka.create_task;
drop function sokka.resubmit_task;
drop function sokka.put_to_sleep;
drop function sokka.finish_tasks;
drop view sokka.created_task;

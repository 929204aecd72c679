-- One row of settings for the installation. Operators change it with UPDATE.
create table sokka.settings (
    one_row        boolean primary key default true check (one_row),
    default_lease  interval not null default '30 seconds'
                   check (default_lease between '1 millisecond' and '1 year'),
    retention      interval not null default '30 days'
                   check (retention between '1 hour' and '100 years'),
    max_data_bytes integer not null default 1048576
                   check (max_data_bytes between 1024 and 67108864),
    notify         boolean not null default true
);
insert into sokka.settings default values;

-- What an operator has said of a topic. A topic without a row has the defaults.
create table sokka.topics (
    topic        text primary key,
    paused_at    timestamptz,
    lease        interval check (lease between '1 millisecond' and '1 year'),
    retention    interval check (retention between '1 hour' and '100 years')
);

-- Operator acts, append-only.
create table sokka.audit_entries (
    id      bigint generated always as identity primary key,
    at      timestamptz not null,
    actor   text not null,
    action  text not null,
    task_id uuid,
    topic   text,
    reason  text,
    detail  jsonb
);
create index audit_entries_task on sokka.audit_entries (task_id) where task_id is not null;

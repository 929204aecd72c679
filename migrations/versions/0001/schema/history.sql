-- Finished tasks, one row each for ever. Partitioned by the week they finished.
create table sokka.finished_tasks (
    task_id             uuid not null,
    task_group_id       uuid not null,
    created_at          timestamptz not null,
    finished_at         timestamptz not null,
    run_at              timestamptz not null,
    record_ver          bigint not null,
    event_seq           bigint not null,
    priority            integer not null,
    attempt             integer not null,
    failures            integer not null,
    losses              integer not null,
    max_attempts        integer not null,
    max_losses          integer not null,
    data_aside          boolean not null,
    status              text not null check (status in ('failed', 'terminated')),
    topic               text not null,
    sub_topic           text not null,
    kind                text not null,
    -- The lease under which its owner ended it; null when nobody held it.
    token               bigint,
    reserved_seq        bigint,
    leased_at           timestamptz,
    lease_expires_at    timestamptz,
    pid                 text,
    expires_at          timestamptz,
    timeout             interval,
    cancel_requested_at timestamptz,
    cancel_seq          bigint,
    checkpoint_seq      bigint not null,
    checkpoint_at       timestamptz,
    resubmit_of         uuid,
    unique_key          text,
    cancel_reason       text,
    retry               jsonb,
    headers             jsonb,
    error               jsonb,
    progress            jsonb,
    data                jsonb,
    checkpoint          jsonb,
    result              jsonb
) partition by range (finished_at);
create index finished_tasks_task on sokka.finished_tasks (task_id);
create index finished_tasks_listed on sokka.finished_tasks (finished_at, task_id);
create index finished_tasks_group on sokka.finished_tasks (task_group_id)
    where task_group_id <> task_id;
create index finished_tasks_aside on sokka.finished_tasks (created_at) where data_aside;
create table sokka.finished_tasks_default partition of sokka.finished_tasks default;

-- Leases that ended without finishing their task: the part of the history that
-- the task's own row cannot tell. A task that just works has none.
create table sokka.past_leases (
    task_id          uuid not null,
    ended_at         timestamptz not null,
    leased_at        timestamptz,
    lease_expires_at timestamptz,
    reserved_seq     bigint,
    ended_seq        bigint not null,
    token            bigint,
    attempt          integer not null,
    topic            text not null,
    event            text not null
                     check (event in ('snoozed', 'released', 'retried', 'lease_lost', 'revoked')),
    pid              text,
    detail           jsonb
) partition by range (ended_at);
create index past_leases_task on sokka.past_leases (task_id);
create table sokka.past_leases_default partition of sokka.past_leases default;

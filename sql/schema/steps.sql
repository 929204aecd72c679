-- What the steps of a task gave, once each. created_at is the task's, so that the key
-- can be unique across partitions.
create table sokka.task_steps (
    task_id      uuid not null,
    created_at   timestamptz not null,
    recorded_at  timestamptz not null,
    seq          bigint not null,
    token        bigint not null,
    -- Of this step and those before it: a task that starts anew reads them all.
    bytes_so_far bigint not null,
    name         text not null,
    value        jsonb,
    primary key (task_id, name, created_at)
) partition by range (created_at);
create index task_steps_order on sokka.task_steps (task_id, seq);
create table sokka.task_steps_default partition of sokka.task_steps default;

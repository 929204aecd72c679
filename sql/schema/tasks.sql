-- Live tasks only; a finished task moves to finished_tasks. Columns that a
-- heartbeat changes (lease_expires_at, progress, checkpoint, record_ver) stand in
-- no index and pages keep room, so that heartbeats are HOT updates.
create table sokka.tasks (
    -- A claim makes a second entry for the same key, beside the first. In pages that are full
    -- it looked for entries to delete, and split them (5 % of a task's work in batches of 500).
    task_id             uuid primary key with (fillfactor = 50),
    task_group_id       uuid not null,
    created_at          timestamptz not null,
    updated_at          timestamptz not null,
    run_at              timestamptz not null,
    queue_pos           bigint not null,
    record_ver          bigint not null default 1,
    event_seq           bigint not null default 1,
    priority            integer not null,
    attempt             integer not null default 0,
    failures            integer not null default 0,
    losses              integer not null default 0,
    max_attempts        integer not null,
    max_losses          integer not null,
    depth               integer not null default 0,
    data_aside          boolean not null default false,
    -- It stands for a fan-out and ends when that is decided.
    is_join             boolean not null default false,
    status              text not null check (status in ('starting', 'running', 'snoozed')),
    topic               text not null,
    sub_topic           text not null,
    kind                text not null,
    -- The lease; set while running, null otherwise.
    token               bigint,
    reserved_seq        bigint,
    leased_at           timestamptz,
    lease_expires_at    timestamptz,
    pid                 text,
    -- Set where it applies.
    expires_at          timestamptz,
    timeout             interval,
    cancel_requested_at timestamptz,
    cancel_seq          bigint,
    checkpoint_seq      bigint not null default 0,
    checkpoint_at       timestamptz,
    resubmit_of         uuid,
    -- The task that made it; its place among the candidates of a join; the child
    -- that it sleeps for.
    parent_task_id      uuid,
    candidate           integer,
    waits_for           uuid,
    unique_key          text,
    cancel_reason       text,
    retry               jsonb,
    headers             jsonb,
    error               jsonb,
    progress            jsonb,
    data                jsonb,
    checkpoint          jsonb,
    constraint tasks_lease_while_running check (
        (status = 'running') = (token is not null)
        and (token is null) = (pid is null)
        and (token is null) = (lease_expires_at is null)
    )
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    -- ANALYZE holds a snapshot, and while it runs no heartbeat can reuse the room of
    -- the version before it (seen: 2,630 of 4,000 extends HOT instead of 3,898). The
    -- verbs are planned for their indexes whatever the statistics say.
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 1000000,
    autovacuum_vacuum_cost_delay = 0,
    -- Each row is written once more when it is claimed. With 70 every second one found
    -- no room in its page: a lock and all of its columns went to the WAL (1,252 bytes to
    -- work a task instead of 1,109).
    fillfactor = 50
);

-- Nobody searches by these: sampling them would only make ANALYZE longer.
alter table sokka.tasks
    alter column data set statistics 0,
    alter column headers set statistics 0,
    alter column retry set statistics 0,
    alter column progress set statistics 0,
    alter column checkpoint set statistics 0,
    alter column error set statistics 0;

-- A unique index on the token, not a partial one, is what makes a fence hold by structure: an
-- update that changes a uniquely indexed column takes a key-strength row lock,
-- so even a take-over that forgot its FOR UPDATE waits for an open fence. Its
-- order is the order of grants, which the sweep uses to find expired leases.
create unique index tasks_token on sokka.tasks (token);
create index tasks_ready on sokka.tasks (topic, priority, queue_pos) where status = 'starting';
create index tasks_wake on sokka.tasks (run_at, task_id) where status = 'snoozed';
create index tasks_deadline on sokka.tasks (expires_at)
    where expires_at is not null and status <> 'running';
-- Most tasks are their own group; they are found by their key.
create index tasks_group on sokka.tasks (task_group_id) where task_group_id <> task_id;
create index tasks_children on sokka.tasks (parent_task_id, candidate)
    where parent_task_id is not null;
create unique index tasks_unique_key on sokka.tasks (topic, unique_key)
    where unique_key is not null;

-- Ids that callers chose. A partitioned key cannot be unique over live and
-- finished tasks, and looking before inserting races with a finish.
create table sokka.given_ids (
    task_id    uuid primary key,
    created_at timestamptz not null
);

-- Payloads too large to travel with every move of their row; written once.
create table sokka.payloads (
    task_id    uuid not null,
    created_at timestamptz not null,
    data       jsonb not null
) partition by range (created_at);
create index payloads_task on sokka.payloads (task_id);
create table sokka.payloads_default partition of sokka.payloads default;

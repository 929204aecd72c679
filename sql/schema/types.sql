-- What a worker is handed.
create type sokka.leased_task as (
    task_id             uuid,
    task_group_id       uuid,
    topic               text,
    sub_topic           text,
    kind                text,
    data                jsonb,
    headers             jsonb,
    pid                 text,
    token               bigint,
    lease_expires_at    timestamptz,
    attempt             integer,
    failures            integer,
    max_attempts        integer,
    timeout             interval,
    checkpoint          jsonb,
    record_ver          bigint,
    created_at          timestamptz,
    cancel_requested_at timestamptz,
    priority            integer,
    losses              integer,
    leased_at           timestamptz,
    expires_at          timestamptz,
    parent_task_id      uuid,
    candidate           integer
);

-- What became of a task after an accepted verb.
create type sokka.task_outcome as (
    status     text,
    record_ver bigint,
    run_at     timestamptz
);

-- A lease after it was extended or asserted.
create type sokka.lease_state as (
    lease_expires_at timestamptz,
    cancel_requested boolean,
    record_ver       bigint
);

-- One member of a batch: verdict is 'ok' or the SQLSTATE of its refusal.
create type sokka.verdict as (
    ord     bigint,
    task_id uuid,
    verdict text,
    detail  jsonb
);

-- A task that is to be created, its defaults filled in. ord is its position in a
-- bulk call, given says that the caller chose its id.
create type sokka.task_spec as (
    ord            bigint,
    topic          text,
    data           jsonb,
    kind           text,
    sub_topic      text,
    task_id        uuid,
    task_group_id  uuid,
    priority       integer,
    run_at         timestamptz,
    max_attempts   integer,
    retry          jsonb,
    timeout        interval,
    expires_at     timestamptz,
    unique_key     text,
    headers        jsonb,
    max_losses     integer,
    on_conflict    text,
    resubmit_of    uuid,
    given          boolean,
    parent_task_id uuid,
    candidate      integer,
    depth          integer,
    is_join        boolean
);

-- One line of a listing: a task without its payloads, and where to go on.
create type sokka.listed_task as (
    task_id             uuid,
    task_group_id       uuid,
    topic               text,
    sub_topic           text,
    kind                text,
    status              text,
    priority            integer,
    run_at              timestamptz,
    pid                 text,
    token               bigint,
    lease_expires_at    timestamptz,
    attempt             integer,
    failures            integer,
    losses              integer,
    max_attempts        integer,
    record_ver          bigint,
    cancel_requested_at timestamptz,
    created_at          timestamptz,
    updated_at          timestamptz,
    finished_at         timestamptz,
    error               jsonb,
    cursor              text
);

-- A stream, and the task that fills it.
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

-- What became of a due schedule, as fire_schedules is told.
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

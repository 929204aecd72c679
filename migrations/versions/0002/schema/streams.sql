-- Streams: how far producer and consumer of each have come. created_at is the task's.
create table sokka.streams (
    task_id       uuid primary key,
    created_at    timestamptz not null,
    last_seq      bigint not null default 0,
    consumed_seq  bigint not null default 0,
    pending_bytes bigint not null default 0,
    max_bytes     bigint not null,
    max_items     integer not null
) with (fillfactor = 50);
create index streams_created on sokka.streams (created_at);

create table sokka.stream_items (
    task_id    uuid not null,
    created_at timestamptz not null,
    seq        bigint not null,
    token      bigint not null,
    written_at timestamptz not null,
    bytes      integer not null,
    item       jsonb,
    primary key (task_id, seq, created_at)
) partition by range (created_at);
create table sokka.stream_items_default partition of sokka.stream_items default;

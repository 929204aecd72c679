-- Schedules: what is to become a task, and when. The program that knows the rule of a
-- schedule says when it is due next; the database says that it is due.
create table sokka.schedules (
    schedule_id   uuid primary key,
    created_at    timestamptz not null,
    updated_at    timestamptz not null,
    -- What intervals are counted from.
    anchor_at     timestamptz not null,
    -- The next tick; null when there is none. Looked at when look_at comes: later than
    -- next_at while the task of the tick before runs, or while it cannot be made.
    next_at       timestamptz,
    look_at       timestamptz,
    last_fire_at  timestamptz,
    paused_at     timestamptz,
    finished_at   timestamptz,
    failing_since timestamptz,
    expires_at    timestamptz,
    generation    bigint not null,
    runs          bigint not null default 0,
    skipped       bigint not null default 0,
    repeats       bigint,
    max_catch_up  integer not null,
    grace         interval not null,
    serial        boolean not null,
    missed        text not null check (missed in ('skip', 'one', 'all')),
    name          text not null,
    source        text not null,
    schedule      text not null,
    description   text,
    error         text,
    last_task_id  uuid,
    -- The task that a tick becomes, as create_tasks takes it.
    task          jsonb not null,
    -- As it was put, to see whether it has changed.
    spec          jsonb not null
) with (fillfactor = 80);
create unique index schedules_name on sokka.schedules (name);
create index schedules_look on sokka.schedules (look_at)
    where look_at is not null and paused_at is null;

-- Each tick that became a task. What makes a tick fire once, whoever fires it.
create table sokka.schedule_fires (
    schedule_id uuid not null,
    generation  bigint not null,
    fire_at     timestamptz not null,
    fired_at    timestamptz not null,
    task_id     uuid not null,
    name        text not null,
    -- Asked for by somebody, beside the schedule's own ticks.
    extra       boolean not null,
    primary key (schedule_id, generation, fire_at, extra)
) partition by range (fire_at);
create index schedule_fires_task on sokka.schedule_fires (task_id);
create table sokka.schedule_fires_default partition of sokka.schedule_fires default;

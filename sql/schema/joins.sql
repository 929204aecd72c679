-- Fan-outs: what each waits for, and how far it has come. One row for the task that
-- stands for it; counted up by whoever holds the row, so that a look at it costs the
-- same however many children have finished.
create table sokka.joins (
    task_id        uuid primary key,
    parent_task_id uuid,
    created_at     timestamptz not null,
    deadline_at    timestamptz,
    decided_at     timestamptz,
    -- Where its last reader of the inbox stopped: a hint.
    inbox_pos      bigint not null default 0,
    total          integer not null,
    needed         integer not null,
    max_running    integer,
    -- Candidates up to this one have been let go; so many of them are not final.
    released       integer not null,
    in_flight      integer not null,
    done           integer not null default 0,
    succeeded      integer not null default 0,
    failed         integer not null default 0,
    late           integer not null default 0,
    -- Its task becomes ready when it is decided; otherwise it ends then.
    reduces        boolean not null,
    policy         text not null
                   check (policy in ('settled', 'all', 'any', 'first_success', 'quorum')),
    state          text not null default 'open' check (state in ('open', 'decided', 'closed')),
    outcome        text check (outcome in ('satisfied', 'unmet', 'deadline', 'cancelled'))
) with (fillfactor = 70);
create index joins_deadline on sokka.joins (deadline_at)
    where state = 'open' and deadline_at is not null;
create index joins_created on sokka.joins (created_at);

-- What joins have to look at: a child that is final (candidate set), or the join itself.
-- Written by a trigger, in the transaction of the end; read and deleted by whoever
-- advances the join. So no end waits for another one, and none is forgotten.
create sequence sokka.join_inbox_pos_seq as bigint cache 1;
create table sokka.join_inbox (
    pos       bigint primary key default nextval('sokka.join_inbox_pos_seq'),
    join_id   uuid not null,
    task_id   uuid not null,
    candidate integer,
    -- The child was held back until it ended, so it took no place under max_running.
    held      boolean not null default false
);
create index join_inbox_join on sokka.join_inbox (join_id, pos);

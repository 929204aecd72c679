-- The highest token that each resource has seen.
create table sokka.fences (
    resource    text primary key,
    token       bigint not null,
    advanced_at timestamptz not null
);

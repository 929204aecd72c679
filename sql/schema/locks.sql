-- Leased singletons: who may act for a key, and until when. A row is never deleted, so
-- the token of a key only rises. The unique index makes every take-over wait for an
-- open assert_lock, as with tasks.
create table sokka.locks (
    key             text primary key,
    owner           text not null,
    token           bigint not null,
    acquired_at     timestamptz not null,
    lock_expires_at timestamptz not null
) with (fillfactor = 50);
create unique index locks_token on sokka.locks (token);

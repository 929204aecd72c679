-- clock: the one source of time for every decision. Tests replace it.
-- Not now(): that stands still in a transaction, so a lease counted from it can
-- be over before it is granted.
create function sokka.clock() returns timestamptz
language sql volatile as $$ select clock_timestamp() $$;

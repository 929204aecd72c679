-- clock: the one source of time for every decision. Tests replace it.
-- Not now(): that stands still in a transaction, so a lease counted from it can
-- be over before it is granted.
create function sokka.clock() returns timestamptz
language sql volatile as $$ select clock_timestamp() $$;

-- until_told: the run_at of a task that waits for other tasks, not for a time: a join,
-- or a child that its join holds back. The largest day that run_at may be.
create function sokka.until_told() returns timestamptz
language sql immutable as $$ select '9998-12-31 00:00:00+00'::timestamptz $$;

-- Functions of the inside whose arguments or answers change: dropped here, made below.
-- Nobody has been granted them.
drop function sokka.finish_tasks;
drop function sokka.lock_ready;
drop function sokka.claim;
drop function sokka.grant_leases;
drop function sokka.terminate_batch;

-- For pages that are filled from now on.
alter table sokka.tasks set (fillfactor = 50);

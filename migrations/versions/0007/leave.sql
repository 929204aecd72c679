-- Back to the revision below.
alter index sokka.tasks_pkey reset (fillfactor);
drop function sokka.look_around, sokka.tell_sleepers;

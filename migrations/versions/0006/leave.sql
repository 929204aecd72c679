-- Back to the revision below.
drop function
    sokka.finish_rows, sokka.plain_error, sokka.plain_wait, sokka.settle_together,
    sokka.settle_failures, sokka.take_in_turn, sokka.walk_leases;

-- Back to the revision below.
drop function sokka.exchange_leases;

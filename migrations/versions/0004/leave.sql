-- Back to the revision below.
drop function
    sokka.exchange_leases, sokka.create_tasks_like, sokka.look_at_payloads, sokka.insert_like;

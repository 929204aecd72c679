-- Back to the revision below.
drop function
    sokka.tell_idle, sokka.drop_scan_hint, sokka.tokens_stand, sokka.note_first_claim, sokka.noted_seconds,
    sokka.claim_by_hint, sokka.reserve_in_turn, sokka.settle_briefly, sokka.exchange_work;

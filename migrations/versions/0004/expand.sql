-- Functions of the inside that are no more, or whose arguments or answers change: those are
-- made again below. Nobody has been granted them.
drop function sokka.reserve_batch;

-- The partitions of this week and the next three; the sweep goes on from there.
do $$ begin perform sokka.prepare_partitions(); end $$;

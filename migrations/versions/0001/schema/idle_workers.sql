-- Who sleeps and wants to be woken. Only a hint for NOTIFY: losing it costs a
-- polling interval, never a task, so it need not survive a crash.
create unlogged table sokka.idle_workers (
    topic      text not null,
    pid        text not null,
    idle_until timestamptz not null,
    primary key (topic, pid)
) with (fillfactor = 50);

-- Who waits for news of which task. Only a hint for NOTIFY, like idle_workers.
create unlogged table sokka.watched_tasks (
    task_id       uuid not null,
    watcher       text not null,
    watched_until timestamptz not null,
    primary key (task_id, watcher)
) with (fillfactor = 50);
create index watched_tasks_watcher on sokka.watched_tasks (watcher);

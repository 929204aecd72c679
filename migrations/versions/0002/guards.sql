-- Steps and items of streams are append-only, like all history.
create trigger task_steps_final before update or delete on sokka.task_steps
    for each row execute function sokka.refuse_change();
create trigger task_steps_kept before truncate on sokka.task_steps
    for each statement execute function sokka.refuse_change();
create trigger task_steps_default_kept before truncate on sokka.task_steps_default
    for each statement execute function sokka.refuse_change();

create trigger stream_items_final before update or delete on sokka.stream_items
    for each row execute function sokka.refuse_change();
create trigger stream_items_kept before truncate on sokka.stream_items
    for each statement execute function sokka.refuse_change();
create trigger stream_items_default_kept before truncate on sokka.stream_items_default
    for each statement execute function sokka.refuse_change();

create trigger schedule_fires_final before update or delete on sokka.schedule_fires
    for each row execute function sokka.refuse_change();
create trigger schedule_fires_kept before truncate on sokka.schedule_fires
    for each statement execute function sokka.refuse_change();
create trigger schedule_fires_default_kept before truncate on sokka.schedule_fires_default
    for each statement execute function sokka.refuse_change();

-- A file of its own, which a revision that changes the function need not load: to make a
-- trigger anew locks every caller out.
create trigger tasks_departed after delete on sokka.tasks
    for each row when (old.candidate is not null or old.is_join)
    execute function sokka.note_departure();

-- For pages that are filled from now on. Waits for nobody who reads or writes the table.
alter index sokka.tasks_pkey set (fillfactor = 50);

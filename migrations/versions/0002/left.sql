-- After the functions and views of the revision below are back.
drop function sokka.until_told;
revoke all on all routines in schema sokka from public;
revoke all on all tables in schema sokka from public;

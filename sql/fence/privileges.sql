-- PUBLIC gets nothing.
revoke all on schema sokka from public;
revoke all on all tables in schema sokka from public;
revoke all on all routines in schema sokka from public;

-- After the functions of the revision below are back.
revoke all on all routines in schema sokka from public;

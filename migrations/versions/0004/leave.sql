-- Back to the revision below.
select 1;

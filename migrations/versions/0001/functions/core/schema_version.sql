-- schema_version: which contract this schema speaks.
create function sokka.schema_version() returns text
language sql immutable as $$ select '1' $$;

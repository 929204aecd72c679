-- What holds for a topic: its own setting, else the installation's.
--
-- In plpgsql, for its plans are kept: a function in SQL with a subquery is parsed and
-- planned at each call before PostgreSQL 18 (26 us here against 5).

create function sokka.lease_of(p_topic text) returns interval
language plpgsql stable as $$
begin
    return coalesce(
        (select t.lease from sokka.topics t where t.topic = p_topic),
        (select s.default_lease from sokka.settings s));
end
$$;

create function sokka.retention_of(p_topic text) returns interval
language plpgsql stable as $$
begin
    return coalesce(
        (select t.retention from sokka.topics t where t.topic = p_topic),
        (select s.retention from sokka.settings s));
end
$$;

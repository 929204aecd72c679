-- What holds for a topic: its own setting, else the installation's.

create function sokka.lease_of(p_topic text) returns interval
language sql stable as $$
    select coalesce(
        (select t.lease from sokka.topics t where t.topic = p_topic),
        (select s.default_lease from sokka.settings s))
$$;

create function sokka.retention_of(p_topic text) returns interval
language sql stable as $$
    select coalesce(
        (select t.retention from sokka.topics t where t.topic = p_topic),
        (select s.retention from sokka.settings s))
$$;

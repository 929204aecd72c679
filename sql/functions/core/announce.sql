-- Waking idle workers. NOTIFY takes a database-wide lock at commit and undoes
-- group commit (8 clients: 5 k instead of 15.9 k inserts/s), so it is sent only
-- where somebody sleeps.

-- topic_hash: eight hexadecimal digits; all that a notification says.
create function sokka.topic_hash(p_topic text) returns text
language sql immutable as $$
    select substr(md5(p_topic), 1, 8)
$$;

-- wake_slot: the lock that orders enqueueing to a topic against falling asleep on it.
-- Topics share 512 of them: a bulk call with thousands of topics must not fill the
-- server's lock table.
create function sokka.wake_slot(p_topic text) returns integer
language sql immutable as $$
    select hashtext(p_topic) & 511
$$;

-- announce: wake whoever sleeps on these topics when the transaction commits.
create function sokka.announce(p_topics text[]) returns void
language plpgsql as $$
declare
    v_topic text;
begin
    foreach v_topic in array p_topics loop
        if sokka.somebody_idle(v_topic) then
            perform sokka.tell_idle(v_topic);
        end if;
    end loop;
end
$$;

-- tell_idle: notify those who sleep on a topic, unless the installation does without.
create function sokka.tell_idle(p_topic text) returns void
language plpgsql as $$
begin
    perform pg_notify('sokka', 't' || sokka.topic_hash(p_topic))
       from sokka.settings s where s.notify;
end
$$;

-- may_look_for_idle: take the shared lock that orders a look at the marks against
-- mark_idle. False: a worker is marking itself at this moment. It listens already, so it
-- is notified unseen and nobody waits for it.
create function sokka.may_look_for_idle(p_topic text) returns boolean
language sql volatile as $$
    select pg_try_advisory_xact_lock_shared(
        'sokka.idle_workers'::regclass::oid::integer, sokka.wake_slot(p_topic))
$$;

-- somebody_idle: whether a worker sleeps on a topic, or is about to. Either its mark is
-- seen here, or it sees the committed task in the poll that follows its mark. The marks
-- are read by a later statement than the one that takes the lock: the same one would
-- read them as they stood before it.
create function sokka.somebody_idle(p_topic text) returns boolean
language plpgsql as $$
begin
    if not sokka.may_look_for_idle(p_topic) then
        return true;
    end if;
    return exists (select from sokka.idle_workers w
                    where w.topic = p_topic and w.idle_until > sokka.clock());
end
$$;

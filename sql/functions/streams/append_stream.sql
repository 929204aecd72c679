-- Streams: numbered items that one task writes, in order, and one consumer reads. Bounded:
-- what has not been read may be so many items and bytes; the producer waits for room.
-- The order of locks is: the task, the stream.

-- stream_of: a stream, as it stands.
create function sokka.stream_of(p_task_id uuid) returns setof sokka.stream_state
language sql stable as $$
    select s.task_id, coalesce(t.status, f.status), s.last_seq, s.consumed_seq, s.max_items,
           s.max_bytes, s.last_seq - s.consumed_seq, s.pending_bytes,
           case when t.task_id is null then f.error end
      from sokka.streams s
      left join sokka.tasks t on t.task_id = s.task_id
      left join lateral (select f.status, f.error from sokka.finished_tasks f
                          where f.task_id = s.task_id limit 1) f on true
     where s.task_id = p_task_id
$$;

-- open_stream: give a task a stream, before anything is written or read. One that is
-- there stays as it is.
-- Needs:  a live task; p_max_items from 1 to 1,000,000, p_max_bytes from 1 KiB to 1 GiB.
-- Returns the stream.   Raises: 22023, SK001, SK002.
create function sokka.open_stream(
    p_task_id uuid, p_max_items integer default 1000, p_max_bytes bigint default 8388608
) returns setof sokka.stream_state
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
as $$
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    if p_max_items is null or p_max_items not between 1 and 1000000 then
        perform sokka.refuse_argument('max_items', 'must be from 1 to 1000000');
    elsif p_max_bytes is null or p_max_bytes not between 1024 and 1073741824 then
        perform sokka.refuse_argument('max_bytes', 'must be from 1024 to 1073741824');
    end if;
    insert into sokka.streams (task_id, created_at, max_items, max_bytes)
    select t.task_id, t.created_at, p_max_items, p_max_bytes
      from sokka.tasks t where t.task_id = p_task_id
    on conflict (task_id) do nothing;
    return query select * from sokka.stream_of(p_task_id);
    if not found then
        perform sokka.refuse_missing(p_task_id, '{}');
    end if;
end
$$;

-- append_stream: write the next items, as many as there is room for, in order.
-- Needs:  a live lease (task, pid, token); an array of 1 to 1,000 items, each within the
--         stream's max_bytes and max_data_bytes. p_after: the number that the caller
--         takes for the last one, so that a repeat after a lost answer is recognised.
-- Leaves: running.   Returns how many were accepted (0: no room), the last number, and
--         the room that is left.
-- Raises: 22023, 25001, SK001-SK006, SK007 (p_after is not the last), 55P03.
-- Locks:  the task's row, passing an open fence; the stream.
create function sokka.append_stream(
    p_task_id uuid, p_pid text, p_token bigint, p_items jsonb, p_after bigint default null
) returns table (accepted integer, last_seq bigint, free_items bigint, free_bytes bigint)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set lock_timeout = '3s'
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_stream sokka.streams;
    v_bytes bigint;
begin
    perform sokka.check_items(p_items);
    perform sokka.lock_for_keeping(p_task_id, p_pid, p_token);
    select * into v_stream from sokka.streams s where s.task_id = p_task_id for update;
    if not found then
        perform sokka.open_stream(p_task_id);
        select * into v_stream from sokka.streams s where s.task_id = p_task_id for update;
    end if;
    if p_after <> v_stream.last_seq then
        perform sokka.refuse('SK007', format('the last number is %s, not %s', v_stream.last_seq, p_after),
            jsonb_build_object('task_id', p_task_id, 'last_seq', v_stream.last_seq,
                'expected', jsonb_build_object('last_seq', p_after)));
    end if;
    select count(*), coalesce(sum(w.bytes), 0) into accepted, v_bytes
      from sokka.write_items(v_stream, p_token, p_items) w;
    last_seq := v_stream.last_seq + accepted;
    update sokka.streams s
       set last_seq = append_stream.last_seq, pending_bytes = s.pending_bytes + v_bytes
     where s.task_id = p_task_id and accepted > 0;
    free_items := v_stream.max_items - (last_seq - v_stream.consumed_seq);
    free_bytes := v_stream.max_bytes - v_stream.pending_bytes - v_bytes;
    if accepted > 0 and exists (select from sokka.watched_tasks w where w.task_id = p_task_id) then
        perform sokka.tell_watchers(array[p_task_id]);
    end if;
    return next;
end
$$;

create function sokka.check_items(p_items jsonb) returns void
language plpgsql as $$
declare
    v_max_bytes constant integer := (select s.max_data_bytes from sokka.settings s);
    v_long bigint;
begin
    perform sokka.check_not_null('items', p_items is null);
    if jsonb_typeof(p_items) <> 'array' or jsonb_array_length(p_items) not between 1 and 1000 then
        perform sokka.refuse_argument('items', 'must be a JSON array of 1 to 1000 members');
    end if;
    select e.ordinality into v_long from jsonb_array_elements(p_items) with ordinality e
     where octet_length(e.value::text) > v_max_bytes order by 1 limit 1;
    if found then
        perform sokka.refuse_argument(format('items[%s]', v_long),
            format('must have at most %s bytes of JSON text', v_max_bytes));
    end if;
end
$$;

-- write_items: insert those that fit; the size of each.
create function sokka.write_items(p_stream sokka.streams, p_token bigint, p_items jsonb)
returns table (bytes integer)
language plpgsql as $$
#variable_conflict use_column
declare
    v_free_items constant bigint := p_stream.max_items - (p_stream.last_seq - p_stream.consumed_seq);
    v_free_bytes constant bigint := p_stream.max_bytes - p_stream.pending_bytes;
    v_now constant timestamptz := sokka.clock();
    v_long bigint;
begin
    select e.ordinality into v_long from jsonb_array_elements(p_items) with ordinality e
     where octet_length(e.value::text) > p_stream.max_bytes order by 1 limit 1;
    if found then
        perform sokka.refuse_argument(format('items[%s]', v_long),
            format('must have at most the %s bytes of the whole stream', p_stream.max_bytes));
    end if;
    return query
        insert into sokka.stream_items as i (task_id, created_at, seq, token, written_at, bytes, item)
        select p_stream.task_id, p_stream.created_at, p_stream.last_seq + e.ord, p_token, v_now,
               e.bytes, e.value
          from (select u.value, u.ordinality as ord, octet_length(u.value::text) as bytes,
                       sum(octet_length(u.value::text)) over (order by u.ordinality) as up_to_here
                  from jsonb_array_elements(p_items) with ordinality u) e
         where e.ord <= v_free_items and e.up_to_here <= v_free_bytes
        returning i.bytes;
end
$$;

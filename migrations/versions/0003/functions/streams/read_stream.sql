-- read_stream: the items after a number, in order. It acknowledges what is up to that
-- number: this makes room for the producer. Items stay readable within retention, so a
-- consumer that starts anew goes on after the last number that it kept.
-- Returns at least one item if there is any, then up to p_max_items and p_max_bytes.
--         None: nothing new; get_stream tells whether there will be.
-- Raises: 22023, SK001 (no such stream).
-- Locks:  the stream's row, never waiting: what cannot be acknowledged now is with the
--         next call.
create function sokka.read_stream(
    p_task_id uuid, p_after bigint default 0, p_max_items integer default 100,
    p_max_bytes bigint default 8388608
) returns table (seq bigint, item jsonb, written_at timestamptz)
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_stream sokka.streams;
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    perform sokka.check_not_null('after', p_after is null);
    if p_max_items is null or p_max_items not between 1 and 10000 then
        perform sokka.refuse_argument('max_items', 'must be from 1 to 10000');
    elsif p_max_bytes is null or p_max_bytes < 1 then
        perform sokka.refuse_argument('max_bytes', 'must be at least 1');
    end if;
    select * into v_stream from sokka.streams s where s.task_id = p_task_id;
    if not found then
        perform sokka.refuse('SK001', format('there is no stream of task %s', p_task_id),
            jsonb_build_object('task_id', p_task_id));
    elsif p_after > v_stream.consumed_seq then
        perform sokka.acknowledge(p_task_id, p_after);
    end if;
    return query
        select b.seq, b.item, b.written_at
          from (select i.seq, i.item, i.written_at,
                       sum(i.bytes) over (order by i.seq) - i.bytes as before
                  from (select n.* from sokka.stream_items n
                         where n.task_id = p_task_id and n.created_at = v_stream.created_at
                           and n.seq > p_after
                         order by n.seq limit p_max_items) i) b
         where b.before < p_max_bytes
         order by b.seq;
end
$$;

-- acknowledge: the consumer has what is up to this number.
create function sokka.acknowledge(p_task_id uuid, p_seq bigint) returns void
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
    v_stream sokka.streams;
    v_seq bigint;
    v_bytes bigint;
begin
    select * into v_stream from sokka.streams s where s.task_id = p_task_id for update skip locked;
    v_seq := least(p_seq, v_stream.last_seq);
    if v_stream.task_id is null or v_seq <= v_stream.consumed_seq then
        return;
    end if;
    select coalesce(sum(i.bytes), 0) into v_bytes from sokka.stream_items i
     where i.task_id = p_task_id and i.created_at = v_stream.created_at
       and i.seq > v_stream.consumed_seq and i.seq <= v_seq;
    update sokka.streams s
       set consumed_seq = v_seq, pending_bytes = s.pending_bytes - v_bytes
     where s.task_id = p_task_id;
    if exists (select from sokka.watched_tasks w where w.task_id = p_task_id) then
        perform sokka.tell_watchers(array[p_task_id]);
    end if;
end
$$;

-- get_stream: a stream and how its task stands; no row when there is none.
-- Raises: 22023.
create function sokka.get_stream(p_task_id uuid) returns setof sokka.stream_state
language plpgsql security definer
set search_path = pg_catalog, sokka, pg_temp
as $$
begin
    perform sokka.check_not_null('task_id', p_task_id is null);
    return query select * from sokka.stream_of(p_task_id);
end
$$;

-- check_reason: an operator's words, within bounds.
create function sokka.check_reason(p_reason text) returns void
language plpgsql as $$
begin
    if length(p_reason) > 2000 then
        perform sokka.refuse_argument('reason', 'must have at most 2000 characters');
    end if;
end
$$;

-- record_act: one line of the audit log. The actor is the login role.
create function sokka.record_act(
    p_action text, p_task_id uuid, p_topic text, p_reason text, p_detail jsonb
) returns void
language sql as $$
    insert into sokka.audit_entries (at, actor, action, task_id, topic, reason, detail)
    values (sokka.clock(), session_user, p_action, p_task_id, p_topic, p_reason, p_detail)
$$;

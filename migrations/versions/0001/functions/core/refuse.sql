-- refuse: raise a refusal; its DETAIL is a JSON object.
create function sokka.refuse(p_sqlstate text, p_message text, p_detail jsonb) returns void
language plpgsql as $$
begin
    raise exception using
        errcode = p_sqlstate,
        message = p_message,
        detail = coalesce(p_detail, '{}')::text;
end
$$;

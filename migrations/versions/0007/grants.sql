-- Who may do it in one way may do it in the other, which asks no more: roles.sql need not be
-- run again for that.
do $grants$
declare
    v_twin record;
begin
    for v_twin in
        select a.grantee::regrole::text as grantee, n.oid::regprocedure::text as twin
          from pg_proc o
          join (values ('look_for_work', 'look_around')) t (old, new) on t.old = o.proname
          join pg_proc n on n.proname = t.new and n.pronamespace = o.pronamespace
         cross join lateral aclexplode(o.proacl) a
         where o.pronamespace = 'sokka'::regnamespace
           and a.grantee not in (0, o.proowner) loop
        execute format('grant execute on function %s to %s', v_twin.twin, v_twin.grantee);
    end loop;
end
$grants$;

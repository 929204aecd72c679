"""What a schema consists of, read from PostgreSQL's catalogue.

Two schemas that work alike read alike: each object under its name, with its
definition, its grants and its comment. Left out are what time makes
(partitions) and alembic's version table.
"""

from __future__ import annotations

import re

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

VERSION_TABLE = "sokka_version"

# Each query yields (what, definition). `kept` is the relations that count.
_KEPT = """
    with kept as (
        select c.* from pg_catalog.pg_class c
        where c.relnamespace = %(schema)s::regnamespace
          and not c.relispartition
          and c.relkind in ('r', 'p', 'v', 'm', 'S', 'c', 'f')
          and c.relname <> %(version_table)s
    )
"""
_OF_RELATIONS = (
    """
    select format('%%s %%s', case relkind when 'v' then 'view' when 'm' then 'matview'
                  when 'S' then 'sequence' when 'c' then 'type' else 'table' end, relname),
           concat_ws(' ', relkind, relpersistence, reloptions, pg_get_partkeydef(oid),
                     case when relrowsecurity then 'row security' end,
                     case when relforcerowsecurity then 'forced' end,
                     case when relkind in ('v', 'm') then pg_get_viewdef(oid) end)
    from kept
    """,
    """
    select format('column %%s.%%s', k.relname, a.attname),
           concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                     case when a.attnotnull then 'not null' end,
                     'default ' || pg_get_expr(d.adbin, d.adrelid),
                     nullif(a.attidentity, ''), nullif(a.attgenerated, ''),
                     a.attstorage, a.attcollation, a.attoptions, a.attacl,
                     -- the order counts where rows are read by position
                     case when k.relkind in ('v', 'c')
                          then row_number() over (partition by k.oid order by a.attnum) end)
    from kept k
    join pg_catalog.pg_attribute a on a.attrelid = k.oid and a.attnum > 0 and not a.attisdropped
    left join pg_catalog.pg_attrdef d on d.adrelid = k.oid and d.adnum = a.attnum
    where k.relkind <> 'S'
    """,
    """
    select format('constraint %%s on %%s', n.conname, k.relname),
           concat_ws(' ', pg_get_constraintdef(n.oid), case when n.convalidated then 'valid' end)
    from kept k join pg_catalog.pg_constraint n on n.conrelid = k.oid
    """,
    """
    select format('index %%s', i.indexrelid::regclass),
           concat_ws(' ', pg_get_indexdef(i.indexrelid), case when i.indisvalid then 'valid' end)
    from kept k join pg_catalog.pg_index i on i.indrelid = k.oid
    """,
    """
    select format('trigger %%s on %%s', t.tgname, k.relname),
           concat_ws(' ', t.tgenabled, pg_get_triggerdef(t.oid))
    from kept k join pg_catalog.pg_trigger t on t.tgrelid = k.oid
    where not t.tgisinternal
    """,
    """
    select format('policy %%s on %%s', p.polname, k.relname),
           concat_ws(' ', p.polcmd, p.polpermissive, p.polroles::regrole[],
                     pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
    from kept k join pg_catalog.pg_policy p on p.polrelid = k.oid
    """,
    """
    select format('comment on %%s', pg_describe_object(d.classoid, d.objoid, d.objsubid)),
           d.description
    from pg_catalog.pg_description d
    where (d.classoid = 'pg_class'::regclass and d.objoid in (select oid from kept))
       or (d.classoid = 'pg_proc'::regclass
           and d.objoid in (select oid from pg_catalog.pg_proc
                            where pronamespace = %(schema)s::regnamespace))
    """,
)
_OF_THE_REST = (
    """
    select format('sequence %%s', s.sequencename),
           concat_ws(' ', s.data_type, s.start_value, s.min_value, s.max_value,
                     s.increment_by, s.cycle, s.cache_size)
    from pg_catalog.pg_sequences s where s.schemaname = %(schema)s
    """,
    """
    select format('function %%s', p.oid::regprocedure), pg_get_functiondef(p.oid)
    from pg_catalog.pg_proc p
    where p.pronamespace = %(schema)s::regnamespace and p.prokind in ('f', 'p', 'w')
    """,
    """
    select format('type %%s', t.typname),
           concat_ws(' ', t.typtype, format_type(nullif(t.typbasetype, 0), t.typtypmod),
                     t.typnotnull, t.typdefault,
                     (select string_agg(quote_literal(e.enumlabel), ',' order by e.enumsortorder)
                      from pg_catalog.pg_enum e where e.enumtypid = t.oid),
                     (select string_agg(pg_get_constraintdef(n.oid), ',' order by n.conname)
                      from pg_catalog.pg_constraint n where n.contypid = t.oid))
    from pg_catalog.pg_type t
    where t.typnamespace = %(schema)s::regnamespace and t.typtype in ('d', 'e', 'r')
    """,
    """
    select format('grant on %%s to %%s', g.object,
                  case g.grantee when 0 then 'PUBLIC' else g.grantee::regrole::text end),
           string_agg(g.privilege || case when g.grantable then '*' else '' end, ','
                      order by g.privilege)
    from (
        select 'schema'::text as object, a.grantee, a.privilege_type as privilege,
               a.is_grantable as grantable
        from pg_catalog.pg_namespace n,
             aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
        where n.nspname = %(schema)s
        union all
        select c.relname::text, a.grantee, a.privilege_type, a.is_grantable
        from pg_catalog.pg_class c,
             aclexplode(coalesce(c.relacl,
                        acldefault(case c.relkind when 'S' then 's' else 'r' end::"char",
                                   c.relowner))) a
        where c.relnamespace = %(schema)s::regnamespace and not c.relispartition
          and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f') and c.relname <> %(version_table)s
        union all
        select p.oid::regprocedure::text, a.grantee, a.privilege_type, a.is_grantable
        from pg_catalog.pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = %(schema)s::regnamespace
        union all
        select t.typname::text, a.grantee, a.privilege_type, a.is_grantable
        from pg_catalog.pg_type t
             left join pg_catalog.pg_class c on c.oid = t.typrelid,
             aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) a
        where t.typnamespace = %(schema)s::regnamespace
          and (t.typtype in ('d', 'e', 'r') or c.relkind = 'c')
    ) g
    group by g.object, g.grantee
    """,
)


def read(
    connection: psycopg.Connection[TupleRow], schema: str, called: str | None = None
) -> dict[str, str]:
    """Every object of ``schema`` with its definition; empty if there is no such schema.

    ``called``: the name to show for the schema's own, wherever it stands as a
    word; for a comparison, read the one with the more unusual name that way.
    """
    found: dict[str, str] = {}
    known = connection.execute("select to_regnamespace(%s) is not null", (schema,)).fetchone()
    if known is None or not known[0]:
        return found
    values = {"schema": schema, "version_table": VERSION_TABLE}
    name = re.compile(rf"\b{re.escape(schema)}\b")
    with connection.transaction():
        # Names come qualified only where the search path does not have them.
        before = connection.execute("select current_setting('search_path')").fetchone()
        connection.execute("set local search_path = pg_catalog")
        for query in _queries():
            for what, definition in connection.execute(query, values):
                key = name.sub(called or schema, what)
                text = name.sub(called or schema, definition or "")
                found[key] = f"{found[key]}; {text}" if key in found else text
        connection.execute("select set_config('search_path', %s, true)", before)
    return found


def _queries() -> list[sql.SQL | sql.Composed]:
    relations = [sql.SQL(_KEPT) + sql.SQL(query) for query in _OF_RELATIONS]
    return [*relations, *(sql.SQL(query) for query in _OF_THE_REST)]


def differences(expected: dict[str, str], actual: dict[str, str]) -> list[str]:
    """What tells ``actual`` from ``expected``, one line per object, sorted."""
    lines = [f"missing: {what}" for what in expected.keys() - actual.keys()]
    lines += [f"not ours: {what}" for what in actual.keys() - expected.keys()]
    lines += [
        f"differs: {what}" for what in expected.keys() & actual.keys()
        if expected[what] != actual[what]
    ]
    return sorted(lines)

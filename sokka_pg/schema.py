"""The SQL on disk: where it is, what its schema is called, how it is loaded.

The files under ``sql/`` say ``sokka``; an installation under another name gets
the same text with that one word replaced. So a name is accepted only if it
needs no quoting anywhere, in statements as in string literals.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import psycopg
from psycopg.rows import TupleRow

from sokka_pg.errors import BadArgument, SchemaMismatch

DEFAULT = "sokka"
WHOLE = "manifest"
FENCE = "fence/manifest"
"""What is listed: the whole queue, or the fence that can be installed alone."""

_CREATED = re.compile(r"^create (function|view) ", re.MULTILINE)
_WORD = re.compile(r"\bsokka\b")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_NAME_RULE = (
    "40 characters at most, of a-z, 0-9 and _, no digit first; not public, "
    "information_schema, pg_... or a key word of SQL"
)
# Every word that PostgreSQL 14 to 18 does not accept as a bare name everywhere.
_KEY_WORDS = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization between bigint binary bit
    boolean both case cast char character check coalesce collate collation column concurrently
    constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user dec decimal default deferrable desc distinct do else end except
    exists extract false fetch float for foreign freeze from full grant greatest group grouping
    having ilike in initially inner inout int integer intersect interval into is isnull join json
    json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
    json_serialize json_table json_value lateral leading least left like limit localtime
    localtimestamp merge_action national natural nchar none normalize not notnull null nullif
    numeric offset on only or order out outer overlaps overlay placing position precision primary
    real references returning right row select session_user setof similar smallint some substring
    symmetric system_user table tablesample then time timestamp to trailing treat trim true union
    unique user using values varchar variadic verbose when where window with xmlattributes
    xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize
    xmltable
    """.split()  # noqa: SIM905  (as a list of literals it fills a page)
)


def check_name(name: str) -> str:
    """Return ``name`` if it may name the schema, else raise :class:`BadArgument`."""
    refused = (
        not isinstance(name, str)
        or not _NAME.fullmatch(name)
        or name.startswith("pg_")
        or name in ("public", "information_schema")
        or name in _KEY_WORDS
    )
    if refused:
        shown = repr(name[:60]) if isinstance(name, str) else type(name).__name__
        raise BadArgument(
            f"schema: {shown} cannot name the schema ({_NAME_RULE})",
            {"argument": "schema", "rule": _NAME_RULE},
        )
    return name


def render(text: str, schema: str) -> str:
    """The same SQL for another schema: the word ``sokka`` becomes ``schema``."""
    return text if schema == DEFAULT else _WORD.sub(schema, text)


def replacing(text: str) -> str:
    """The same SQL, loaded over what is there: functions and views are replaced."""
    return _CREATED.sub(r"create or replace \1 ", text)


def sql_root() -> Path:
    """The folder of the SQL: inside the installed package, or in the checkout."""
    return _data_folder("_sql", "sql")


def migrations_root() -> Path:
    """The folder of alembic's env.py and versions/."""
    return _data_folder("_migrations", "migrations")


def _data_folder(packaged: str, in_checkout: str) -> Path:
    package = Path(__file__).resolve().parent
    for folder in (package / packaged, package.parent / in_checkout):
        if folder.is_dir():
            return folder
    raise SchemaMismatch(f"this installation of sokka_pg lacks its folder {packaged}: reinstall it")


def manifest(root: Path, listing: str = WHOLE) -> list[Path]:
    """The files below ``root`` that its file ``listing`` names, in load order.

    One path per line, relative to ``root``; ``#`` starts a comment. Raises
    :class:`SchemaMismatch` for a file that is not there, is named twice or lies
    outside the tree.
    """
    names = [
        entry
        for line in (root / listing).read_text(encoding="utf-8").splitlines()
        if (entry := line.partition("#")[0].strip())
    ]
    files = [root / PurePosixPath(name) for name in names]
    for name, file in zip(names, files, strict=True):
        if not file.resolve().is_relative_to(root.resolve()):
            raise SchemaMismatch(f"{listing}: {name} lies outside {root.name}/")
        if not file.is_file():
            raise SchemaMismatch(f"{listing}: {name} is not there")
    if len(set(files)) < len(files):
        raise SchemaMismatch(f"{listing} names a file twice")
    return files


def statements(root: Path, schema: str, listing: str = WHOLE) -> list[str]:
    """The SQL that loads a listing of ``root`` into ``schema``, in order.

    For one transaction. First the schema, if it is not there; then each file;
    last, what PostgreSQL grants to PUBLIC by itself (EXECUTE on functions, USAGE
    on types) is revoked.
    """
    files = [
        f"-- {file.relative_to(root).as_posix()}\n{file.read_text(encoding='utf-8')}"
        for file in manifest(root, listing)
    ]
    check_name(schema)
    return [render(text, schema) for text in (_MAKE_SCHEMA, *files, _CLOSE)]


def load(
    connection: psycopg.Connection[TupleRow], schema: str, listing: str = WHOLE
) -> None:
    """Load ``sql/``, or the part that ``listing`` names, into ``schema``: all, or nothing.

    Runs in a transaction of its own, or in a savepoint of the caller's. Makes
    no roles. psycopg's errors pass through with a note that names the file.
    """
    texts = statements(sql_root(), schema, listing)
    with connection.transaction():
        for text in texts:
            try:
                connection.execute(text.encode())
            except psycopg.Error as error:
                error.add_note(f"while loading: {text.partition(chr(10))[0]}")
                raise


def make_schema(schema: str) -> str:
    """One statement that makes the schema unless it is there."""
    return render(_MAKE_SCHEMA, check_name(schema))


def drop_statement(schema: str, keep: str) -> str:
    """One statement that drops what ``schema`` holds, except the table ``keep``.

    It never drops what is not ours: where a user's view or column depends on
    one of our objects it fails with 2BP01, names it, and drops nothing.
    """
    return render(_DROP, check_name(schema)).replace("{keep}", keep)


# Without the test, a role that owns the schema but may create none would be
# refused: `if not exists` checks the privilege first.
_MAKE_SCHEMA = """\
do $do$
begin
    if to_regnamespace('sokka') is null then
        create schema sokka;
    end if;
end
$do$;
"""

_CLOSE = """\
revoke all on schema sokka from public;
revoke all on all tables in schema sokka from public;
revoke all on all sequences in schema sokka from public;
revoke all on all routines in schema sokka from public;
do $do$
declare
    v_type regtype;
begin
    for v_type in
        select t.oid::regtype
        from pg_catalog.pg_type t
        where t.typnamespace = 'sokka'::regnamespace
          and t.typtype <> 'm' and t.typelem = 0  -- these follow another type
    loop
        execute format('revoke all on type %s from public', v_type);
    end loop;
end
$do$;
"""

# Dropping without CASCADE spares what others built on our objects. Since kinds
# depend on each other in no fixed order (functions on views, views on
# functions), rounds go on as long as one of them drops something.
_DROP = r"""
do $do$
declare
    v_item record;
    v_dropped boolean;
    v_detail text;
    v_left text;
begin
    for v_item in
        select t.tgname, t.tgrelid::regclass as relation
        from pg_catalog.pg_trigger t
        join pg_catalog.pg_proc p on p.oid = t.tgfoid
        where p.pronamespace = 'sokka'::regnamespace
          and not t.tgisinternal
          and t.tgparentid = 0
          and t.tgrelid not in (select c.oid from pg_catalog.pg_class c
                                where c.relnamespace = 'sokka'::regnamespace)
    loop
        execute format('drop trigger %I on %s', v_item.tgname, v_item.relation);
    end loop;
    loop
        v_dropped := false;
        v_left := null;
        for v_item in
            select case c.relkind when 'v' then 'view' when 'm' then 'materialized view'
                                  when 'S' then 'sequence' when 'c' then 'type'
                                  else 'table' end as kind,
                   c.oid::regclass::text as name
            from pg_catalog.pg_class c
            where c.relnamespace = 'sokka'::regnamespace
              and c.relkind in ('r', 'p', 'v', 'm', 'S', 'c')
              and not c.relispartition
              and c.relname <> '{keep}'
              and not exists (select from pg_catalog.pg_depend d
                              where d.classid = 'pg_class'::regclass and d.objid = c.oid
                                and d.deptype in ('a', 'i') and c.relkind = 'S'
                                and d.refobjsubid > 0)
            union all
            select 'routine', p.oid::regprocedure::text
            from pg_catalog.pg_proc p
            where p.pronamespace = 'sokka'::regnamespace
            union all
            select case t.typtype when 'd' then 'domain' else 'type' end, t.oid::regtype::text
            from pg_catalog.pg_type t
            where t.typnamespace = 'sokka'::regnamespace and t.typtype in ('d', 'e', 'r')
        loop
            begin
                execute format('drop %s %s', v_item.kind, v_item.name);
                v_dropped := true;
            exception
                when dependent_objects_still_exist then
                    get stacked diagnostics v_detail = pg_exception_detail;
                    v_left := concat_ws(E'\n', v_left, v_detail);
                when undefined_table or undefined_object or undefined_function then
                    null;  -- went with one dropped before it in this round
            end;
        end loop;
        exit when not v_dropped;
    end loop;
    if v_left is not null then
        raise exception 'others depend on schema sokka, drop these first: %',
            (select string_agg(distinct line, '; ')
             from regexp_split_to_table(v_left, E'\n') line
             where split_part(line, ' depends on ', 1) not like '% sokka.%')
            using errcode = 'dependent_objects_still_exist';
    end if;
end
$do$;
"""

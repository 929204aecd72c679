"""The revisions on disk, and the SQL text around them."""

from __future__ import annotations

import io
import threading
from datetime import timedelta

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from sokka_pg import schema as sql_files
from sokka_pg.errors import UsageError

LOCK_TIMEOUT = timedelta(seconds=2)
"""Callers queue up behind a run that waits, for no longer than this."""

# alembic keeps the run under way in module globals: one at a time per process.
one_alembic = threading.Lock()


def revisions() -> list[str]:
    """The revisions that this version of sokka_pg knows, oldest first."""
    scripts = ScriptDirectory.from_config(configuration(sql_files.DEFAULT))
    return [script.revision for script in scripts.walk_revisions()][::-1]


def revision(name: str) -> str:
    """``name`` as a revision: base, head, or one of :func:`revisions`.

    Raises :class:`~sokka_pg.errors.UsageError` for any other.
    """
    known = revisions()
    if name in ("base", *known):
        return name
    if name == "head":
        return known[-1]
    raise UsageError(f"revision: {name[:60]!r} is unknown; known: base, {', '.join(known)}, head")


def revision_below(name: str) -> str:
    """The revision before ``name``; base is below the first, and below itself."""
    order = ["base", *revisions()]
    return order[max(0, order.index(name) - 1)]


def is_down(start: str, to: str) -> bool:
    """Whether the way from one revision to the other goes down."""
    order = ["base", *revisions()]
    return order.index(to) < order.index(start)


def configuration(schema: str, output: io.StringIO | None = None) -> Config:
    """alembic's configuration for a run on ``schema``."""
    config = Config(output_buffer=output) if output else Config()
    # ConfigParser reads a % in a path as the start of a variable.
    location = str(sql_files.migrations_root()).replace("%", "%%")
    config.set_main_option("script_location", location)
    config.set_main_option("path_separator", "newline")
    config.attributes["sokka_schema"] = schema
    return config


def sql(schema: str = sql_files.DEFAULT, to: str = "head", start: str = "base") -> str:
    """The text of a run from revision ``start`` to ``to``, for a DBA to read and run.

    One transaction, with the same locks and checks as a run of our own; it
    refuses a database that is not at ``start``. Needs no connection.
    """
    sql_files.check_name(schema)
    here, there = revision(start), revision(to)
    text = io.StringIO()
    config = configuration(schema, text)
    config.attributes["sokka_start"] = here
    step = command.downgrade if is_down(here, there) else command.upgrade
    with one_alembic:
        step(config, f"{here}:{there}", sql=True)
    return (
        f"-- sokka_pg: schema {schema}, from {here} to {there}.\n"
        "-- Run it whole: psql -X -v ON_ERROR_STOP=1 -f FILE DATABASE\n\n" + text.getvalue()
    )


def fence_sql(schema: str = sql_files.DEFAULT) -> str:
    """The text that installs ``advance_fence`` alone, for a DBA to read and run."""
    texts = sql_files.statements(sql_files.sql_root(), schema, sql_files.FENCE)
    return "\n".join(("begin;", *texts, "commit;", ""))


def preamble(schema: str, start: str) -> list[str]:
    """What an offline run does before its first revision, in its transaction."""
    lock_ms = int(LOCK_TIMEOUT.total_seconds() * 1000)
    return [
        "set transaction isolation level read committed;",
        "set local search_path = pg_catalog, pg_temp;",
        f"select pg_advisory_xact_lock({advisory_key(schema)});",
        f"set local lock_timeout = '{lock_ms}ms';",
        sql_files.render(_EXPECT_START.replace("{start}", start), schema),
        sql_files.make_schema(schema),
    ]


def closing(schema: str) -> str:
    """What follows a downgrade to base: the version table and the empty schema go."""
    return sql_files.render(_DROP_REST, sql_files.check_name(schema))


def advisory_key(schema: str) -> str:
    """The SQL of the lock that keeps two runs on one schema apart."""
    return f"hashtextextended('sokka_pg.migrate.{sql_files.check_name(schema)}', 0)"


_EXPECT_START = """\
do $do$
declare
    v_found text;
begin
    if to_regclass('sokka.sokka_version') is not null then
        execute 'select max(version_num) from sokka.sokka_version' into v_found;
    end if;
    v_found := coalesce(v_found, 'base');
    if v_found <> '{start}' then
        raise exception 'schema sokka is at %, this script starts from {start}', v_found;
    end if;
end
$do$;
"""

_DROP_REST = """\
drop table if exists sokka.sokka_version;
do $do$
begin
    -- A schema that was made for a role which may create none itself stays.
    if has_database_privilege(current_database(), 'create')
       and (select pg_has_role(nspowner, 'usage') from pg_catalog.pg_namespace
            where nspname = 'sokka') then
        drop schema sokka restrict;
    end if;
end
$do$;
"""

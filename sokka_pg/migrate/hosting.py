"""An application with an alembic of its own: include our revisions, or ignore them.

To include them, so that one ``alembic upgrade heads`` moves both::

    # alembic.ini
    version_locations = %(here)s/versions:<version_location()>
    sokka_schema = sokka

To have ``--autogenerate`` leave our schema alone::

    # env.py
    context.configure(..., include_name=ignore_name(), include_object=ignore_object())
"""

from __future__ import annotations

from collections.abc import Callable, Collection, MutableMapping
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from sokka_pg import catalogue
from sokka_pg import schema as sql_files
from sokka_pg.migrate import scripts

IncludeName = Callable[[str | None, str, MutableMapping[Any, Any]], bool]
IncludeObject = Callable[[Any, str | None, str, bool, Any], bool]


def version_location() -> str:
    """The folder of our revisions, for ``version_locations`` of another alembic.

    Our branch carries the label ``sokka`` and depends on no revision of yours.
    The schema is ``sokka`` unless the configuration's ``sokka_schema`` (or
    ``alembic -x sokka_schema=...``) says otherwise. Where the versions are
    recorded is then up to the host; ``sokka migrate`` keeps out of such a
    schema.
    """
    return str(sql_files.migrations_root() / "versions")


def ignore_name(schema: str = sql_files.DEFAULT, also: IncludeName | None = None) -> IncludeName:
    """For ``include_name``: keeps autogenerate from reading our schema.

    ``also`` is the filter you have already; both must agree to include a name.
    """
    sql_files.check_name(schema)

    def include(name: str | None, kind: str, parents: MutableMapping[Any, Any]) -> bool:
        ours = (name if kind == "schema" else parents.get("schema_name")) == schema
        return not ours and (also is None or also(name, kind, parents))

    return include


def ignore_object(
    schema: str = sql_files.DEFAULT, also: IncludeObject | None = None
) -> IncludeObject:
    """For ``include_object``: keeps models of our views out of your revisions.

    ``also`` is the filter you have already; both must agree to include an object.
    """
    sql_files.check_name(schema)

    def include(item: Any, name: str | None, kind: str, reflected: bool, other: Any) -> bool:
        table = item if kind == "table" else getattr(item, "table", None)
        ours = getattr(table, "schema", None) == schema
        return not ours and (also is None or also(item, name, kind, reflected, other))

    return include


def schema_of(config: Config | None) -> str:
    """The schema that a run's configuration names, ours or a host application's."""
    if config is None:
        return sql_files.DEFAULT
    arguments = dict(
        pair.partition("=")[::2] for pair in getattr(config.cmd_opts, "x", None) or ()
    )
    return sql_files.check_name(
        config.attributes.get("sokka_schema")
        or arguments.get("sokka_schema")
        or config.get_main_option("sokka_schema")
        or sql_files.DEFAULT
    )


def load_revision(
    context: MigrationContext,
    folder: Path,
    *,
    replacing: bool = False,
    locking: Collection[str] | None = None,
) -> None:
    """The upgrade of a revision: load the SQL frozen in ``folder``.

    ``replacing``: over the revision below. Functions and views of the same
    signature are replaced, so that they keep their grants and what depends on them;
    and what callers use is locked first, so that none of them waits for us while we
    wait for it. ``locking``: the views and tables that the revision changes; by
    default all there are.
    """
    if replacing:
        chosen = "true" if locking is None else f"c.relname = any ('{{{','.join(locking)}}}')"
        text = _LOCK.replace("{chosen}", chosen)
        _execute(context, sql_files.render(text, schema_of(context.config)))
    for text in sql_files.statements(folder, schema_of(context.config)):
        _execute(context, sql_files.replacing(text) if replacing else text)


# Callers take a view and then its tables, and tables in orders of their own. A migration
# that waited in the middle would make deadlocks, and the server tells those to whoever
# finds them first, deadlock_timeout (1 s) after its wait began: the callers. So
# everything is locked at once, views first (the other way round twelve busy sessions
# kept it out for a minute), and in less than that, or nothing: 55P03, and the run tries
# again. Only the first lock may be waited for as long as the run likes: whoever waits
# and has nothing makes no deadlock. LOCK on a view would go on to the catalogs that it
# reads; a reset of an option that none of ours has locks the view alone.
_LOCK = """
do $lock$
declare
    v_before constant text := current_setting('lock_timeout');
    v_until timestamptz;
    v_table record;
begin
    for v_table in
        select format(case when c.relkind = 'v' then 'alter view %I.%I reset (check_option)'
                           else 'lock table %I.%I in access exclusive mode' end,
                   n.nspname, c.relname) as locking
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = 'sokka' and c.relkind in ('r', 'p', 'v') and not c.relispartition
           and {chosen}
         order by c.relkind <> 'v', c.oid
    loop
        if v_until is not null then
            perform set_config('lock_timeout', greatest(1, ceil(1000 * extract(epoch from
                v_until - clock_timestamp())))::text || 'ms', true);
        end if;
        execute v_table.locking;
        v_until := coalesce(v_until, clock_timestamp() + least(interval '700 ms',
            nullif(v_before, '0')::interval));
    end loop;
    perform set_config('lock_timeout', v_before, true);
end
$lock$;
"""


def run_file(context: MigrationContext, file: Path, *, replacing: bool = False) -> None:
    """Run one file of a revision, for its downgrade."""
    text = sql_files.render(file.read_text(encoding="utf-8"), schema_of(context.config))
    _execute(context, sql_files.replacing(text) if replacing else text)


def drop_everything(context: MigrationContext) -> None:
    """The downgrade of the first revision: drop all but the version table.

    alembic still has to write to that; where it is a host's, elsewhere, the
    empty schema goes too.
    """
    schema = schema_of(context.config)
    _execute(context, sql_files.drop_statement(schema, catalogue.VERSION_TABLE))
    if context.version_table_schema != schema:
        _execute(context, scripts.closing(schema))


def _execute(context: MigrationContext, text: str) -> None:
    if context.as_sql:
        context.impl.static_output(text)
        return
    connection = context.connection
    assert connection is not None  # noqa: S101  (alembic has one whenever it is online)
    # Not text(): a colon in the SQL is no parameter, and neither is a %.
    connection.exec_driver_sql(text, execution_options={"no_parameters": True})

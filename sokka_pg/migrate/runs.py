"""A run on a database: up, down, with patience for locks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.util import CommandError
from psycopg.rows import TupleRow

from sokka_pg import catalogue, settings, translate
from sokka_pg import schema as sql_files
from sokka_pg.errors import (
    Busy,
    SchemaMismatch,
    SokkaError,
    TransactionConflict,
    UnexpectedDatabaseError,
)
from sokka_pg.migrate import scripts

PATIENCE = timedelta(minutes=1)

_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Run:
    """How patient a run is, and whom it tells that it waits.

    ``lock_timeout`` bounds each wait for a lock, ``patience`` all attempts
    together, pauses included. ``on_wait`` is called with the number of the
    attempt that failed for want of a lock.
    """

    lock_timeout: timedelta = scripts.LOCK_TIMEOUT
    patience: timedelta = PATIENCE
    on_wait: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a run found the schema and where it left it; None is base (nothing)."""

    schema: str
    before: str | None
    after: str | None


def upgrade(
    url: str, schema: str = sql_files.DEFAULT, to: str = "head", run: Run | None = None
) -> Moved:
    """Bring ``schema`` up to revision ``to``; a schema at or past it is left as it is.

    Raises :class:`~sokka_pg.errors.Busy` when the locks it needs stay held for
    all of its patience, :class:`SchemaMismatch` when the schema holds objects
    that no migration made, :class:`UsageError` for an unknown revision,
    :class:`DatabaseUnavailable` when the server cannot be reached.
    """
    target = scripts.revision(to)
    return _move(url, schema, target, _only_if(down=False, target=target), run or Run())


def downgrade(
    url: str, schema: str = sql_files.DEFAULT, to: str = "base", run: Run | None = None
) -> Moved:
    """Bring ``schema`` down to revision ``to``. **Base drops every task in it.**

    Never drops what others built on our objects: raises
    :class:`SchemaMismatch`, which names the first, and changes nothing.
    """
    target = scripts.revision(to)
    return _move(url, schema, target, _only_if(down=True, target=target), run or Run())


def move(url: str, schema: str, to: str, run: Run | None = None) -> Moved:
    """Bring ``schema`` to revision ``to``, whether that is up or down."""
    target = scripts.revision(to)
    return _move(url, schema, target, lambda before: before != target, run or Run())


def _only_if(*, down: bool, target: str) -> Callable[[str], bool]:
    return lambda before: before != target and scripts.is_down(before, target) is down


def _move(
    url: str, schema: str, target: str, wanted: Callable[[str], bool], run: Run
) -> Moved:
    sql_files.check_name(schema)

    def act(connection: sa.Connection) -> Moved:
        raw = connection.connection.driver_connection
        assert isinstance(raw, psycopg.Connection)  # noqa: S101  (the engine is ours)
        before = _begin(raw, schema, run)
        _refuse_unknown(before)
        if wanted(before or "base"):
            _step(connection, raw, schema, before, target)
        return Moved(schema, before, revision_of(raw, schema))

    with named_errors():
        return _patiently(url, act, run)


def _begin(raw: psycopg.Connection[TupleRow], schema: str, run: Run) -> str | None:
    """Take the run's own lock, bound every later wait, and read the revision."""
    raw.execute("set transaction isolation level read committed")
    raw.execute("set local search_path = pg_catalog, pg_temp")
    _set_lock_timeout(raw, run.patience)
    raw.execute(f"select pg_advisory_xact_lock({scripts.advisory_key(schema)})".encode())
    _set_lock_timeout(raw, run.lock_timeout)
    return revision_of(raw, schema)


def _step(
    connection: sa.Connection,
    raw: psycopg.Connection[TupleRow],
    schema: str,
    before: str | None,
    target: str,
) -> None:
    if before is None:
        _refuse_strangers(raw, schema)
        raw.execute(sql_files.make_schema(schema).encode())
    step = command.downgrade if scripts.is_down(before or "base", target) else command.upgrade
    config = scripts.configuration(schema)
    config.attributes["connection"] = connection
    with scripts.one_alembic:
        step(config, target)
    if target == "base":
        raw.execute(scripts.closing(schema).encode())


def _set_lock_timeout(raw: psycopg.Connection[TupleRow], limit: timedelta) -> None:
    # 0 would mean: wait for ever.
    ms = max(1, int(limit.total_seconds() * 1000))
    raw.execute("select set_config('lock_timeout', %s, true)", (f"{ms}ms",))


def _patiently(url: str, act: Callable[[sa.Connection], Moved], run: Run) -> Moved:
    give_up_at = time.monotonic() + run.patience.total_seconds()
    attempt = 0
    while True:
        attempt += 1
        try:
            with engine(url).begin() as connection:
                return act(connection)
        except (sa.exc.DBAPIError, psycopg.Error) as error:
            if not isinstance(_named(error), Busy | TransactionConflict):
                raise
            if time.monotonic() >= give_up_at:
                raise Busy(
                    f"the locks that the migration needs stayed held over {attempt} attempts: "
                    "look for long transactions in pg_stat_activity, then run it again"
                ) from None
        if run.on_wait:
            run.on_wait(attempt)
        pause = min(_LONGEST_PAUSE_S, 0.1 * 2**attempt) * random.uniform(0.5, 1.0)
        time.sleep(min(pause, max(0.0, give_up_at - time.monotonic())))


def _refuse_unknown(before: str | None) -> None:
    if before is not None and before not in scripts.revisions():
        raise SchemaMismatch(
            f"the schema is at revision {before}, which this version of sokka_pg does not "
            "know: a newer version made it"
        )


def _refuse_strangers(raw: psycopg.Connection[TupleRow], schema: str) -> None:
    found = raw.execute(
        "select (select count(*) from pg_catalog.pg_class c"
        "        where c.relnamespace = n and c.relkind in ('r', 'p', 'v', 'm', 'S', 'f', 'c')"
        "          and c.relname <> %(version_table)s)"
        "     + (select count(*) from pg_catalog.pg_proc p where p.pronamespace = n)"
        " from to_regnamespace(%(schema)s) n",
        {"schema": schema, "version_table": catalogue.VERSION_TABLE},
    ).fetchone()
    if found and found[0]:
        raise SchemaMismatch(
            f"schema {schema} holds objects that no migration of ours recorded "
            "(a fence alone, or another program's): choose another schema"
        )


def revision_of(connection: psycopg.Connection[TupleRow], schema: str) -> str | None:
    """The revision recorded in ``schema``; None where there is none."""
    table = f"{schema}.{catalogue.VERSION_TABLE}"
    known = connection.execute("select to_regclass(%s) is not null", (table,)).fetchone()
    if known is None or not known[0]:
        return None
    row = connection.execute(
        psycopg.sql.SQL("select version_num from {}").format(
            psycopg.sql.Identifier(schema, catalogue.VERSION_TABLE)
        )
    ).fetchone()
    return None if row is None else str(row[0])


def connect(url: str, *, autocommit: bool = False) -> psycopg.Connection[TupleRow]:
    """A connection for a run; the empty ``url`` stands for the ``PG*`` variables."""
    # Without prepared statements, so that a transaction pooler will do.
    return psycopg.connect(
        settings.normalise(url) if url else "",
        autocommit=autocommit,
        prepare_threshold=None,
        fallback_application_name="sokka migrate",
    )


def engine(url: str) -> sa.Engine:
    """SQLAlchemy over :func:`connect`: alembic wants one."""
    return sa.create_engine(
        "postgresql+psycopg://", creator=lambda: connect(url), poolclass=sa.pool.NullPool
    )


def _named(error: sa.exc.DBAPIError | psycopg.Error) -> SokkaError:
    named = translate.from_driver(error) or UnexpectedDatabaseError(str(error))
    message = settings.redact(named.message)
    if named.detail.get("sqlstate") == "2BP01":  # dependent_objects_still_exist
        return SchemaMismatch(message, named.detail)
    if isinstance(named, SchemaMismatch):
        # Its advice is to migrate, which is what failed.
        return UnexpectedDatabaseError(message, named.detail)
    return type(named)(message, named.detail)


@contextmanager
def named_errors() -> Iterator[None]:
    """Our own errors for those of the server, alembic and SQLAlchemy."""
    try:
        yield
    except (sa.exc.DBAPIError, psycopg.Error) as error:
        raise _named(error) from None
    except CommandError as error:
        raise SchemaMismatch(str(error)) from None

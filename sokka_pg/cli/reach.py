"""The way from a command to the queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeAlias

import psycopg
import typer
from psycopg.rows import TupleRow

from sokka_pg import calls
from sokka_pg.cli import options, reading
from sokka_pg.connections import ConnectionOptions, connect_arguments, run_on
from sokka_pg.errors import DatabaseUnavailable
from sokka_pg.store import PgTaskStore
from sokka_pg.translate import from_psycopg

Connection: TypeAlias = psycopg.Connection[TupleRow]
_OPTIONS = ConnectionOptions(max_size=1, application_name="sokka cli")


@contextmanager
def store(ctx: typer.Context) -> Iterator[PgTaskStore]:
    """The task store of the database and schema that the line names."""
    schema = options.schema_name(ctx)
    with (
        options.database(ctx) as url,
        PgTaskStore(
            url, schema, options=_OPTIONS, max_data_bytes=reading.MOST_BYTES
        ) as found,
    ):
        yield found


@contextmanager
def connection(url: str, application_name: str) -> Iterator[Connection]:
    """A connection in autocommit, with the settings that any client of the server
    gets. Raises DatabaseUnavailable if there is none to be had."""
    # As for a pooler: nothing is set in the session.
    settings = ConnectionOptions(application_name=application_name, pooler=True)
    arguments = connect_arguments(url, settings)
    try:
        made = psycopg.connect(**arguments)
    except psycopg.Error as error:
        # A refused login, an unknown database: the server answered, but let nobody in.
        raise DatabaseUnavailable(from_psycopg(error, sent=False).message) from error
    with made:
        yield made


def database_clock(url: str, schema: str) -> datetime:
    """What time it is in the database, which alone decides when a task is due."""
    with connection(url, "sokka cli") as found:
        return run_on(found, calls.clock(), schema)


def as_json(ctx: typer.Context) -> bool:
    """Whether the line asks for JSON."""
    return bool(options.given(ctx, "as_json"))

"""The options that every command has, and the database they lead to.

They may stand anywhere on the line: ``sokka --schema jobs migrate down`` and
``sokka migrate down --schema jobs`` are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from sokka_pg import embedded, settings
from sokka_pg.cli.output import note


def _remember_json(ctx: typer.Context, value: bool) -> bool:
    # ctx.meta is shared by a command and its parents, and outlives the command.
    ctx.meta["sokka.json"] = value or bool(ctx.meta.get("sokka.json"))
    return bool(ctx.meta["sokka.json"])


DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="The database. Else SOKKA_DATABASE_URL, DATABASE_URL, PG* variables.",
        show_default=False,
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="NAME",
        help="The schema of the queue. Else SOKKA_SCHEMA, else sokka.",
        show_default=False,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Answer in JSON.", callback=_remember_json, is_eager=True)
]


def schema_name(ctx: typer.Context) -> str:
    """The schema that the line names, checked."""
    return settings.schema_name(given(ctx, "schema"))


@contextmanager
def database(ctx: typer.Context) -> Iterator[str]:
    """The database that the line or the environment names, as a connection string.

    Where nothing names one: the embedded server in ``./.sokka``, said on
    stderr, which runs until the last command that uses it ends.
    """
    target = settings.lookup(given(ctx, "database_url"))
    if target is not None:
        yield target.conninfo
        return
    note(
        "sokka: no database named (--database-url, SOKKA_DATABASE_URL, DATABASE_URL, PG*): "
        "using the embedded server in ./.sokka, for development"
    )
    with embedded.dev_server() as server:
        yield server.url()


def given(ctx: typer.Context, name: str) -> Any:
    """The value of an option, from the command itself or the nearest parent that has it."""
    here: Any = ctx
    while here is not None:
        if (value := here.params.get(name)) not in (None, False):
            return value
        here = here.parent
    return None

"""``sokka``: all commands. Each module brings an ``app`` or a ``register(app)``."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from sokka_pg.cli import (
    bench,
    demo,
    doctor,
    enqueue,
    migrate,
    options,
    pg,
    schedule,
    task,
    topic,
    worker,
)
from sokka_pg.cli.output import EXIT_CODES, CommandGroup, answer

app = typer.Typer(
    name="sokka",
    cls=CommandGroup,
    help="A task queue in PostgreSQL whose leases are fenced by the database.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(migrate.app, name="migrate")
app.add_typer(pg.app, name="pg")
enqueue.register(app)
worker.register(app)
demo.register(app)
doctor.register(app)
bench.register(app)
app.add_typer(task.app, name="task")
app.add_typer(topic.app, name="topic")
app.add_typer(schedule.app, name="schedule")


def _print_version(wanted: bool) -> None:
    if wanted:
        answer({}, _version(), as_json=False)
        raise typer.Exit


def _version() -> str:
    try:
        return version("sokka-pg")
    except PackageNotFoundError:
        return "not installed: run from a checkout"


@app.callback()
def root(
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """The options of all commands; see ``options``."""


def run() -> None:
    """The console script."""
    app(prog_name="sokka")

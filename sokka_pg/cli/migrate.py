"""``sokka migrate``: bring the database to the schema of this version."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from sokka_pg import migrate
from sokka_pg.cli import options
from sokka_pg.cli.output import EXIT_CODES, REFUSED, answer, note

app = typer.Typer(
    help="Bring the database to the schema of this version; alone: to the newest revision.",
    epilog=f"Examples: sokka migrate · sokka migrate --sql > up.sql · sokka migrate check. "
    f"{EXIT_CODES}",
    invoke_without_command=True,
    no_args_is_help=False,
)

AsSql = Annotated[
    bool, typer.Option("--sql", help="Print the SQL for a DBA to run; connect to nothing.")
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="REV", help="With --sql: where the database stands."),
]


@app.callback()
def newest(
    ctx: typer.Context,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
    as_sql: AsSql = False,
    start: From = None,
    fence_only: Annotated[
        bool,
        typer.Option("--fence-only", help="Install advance_fence alone: no queue, no revision."),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    if fence_only:
        _install_fence(ctx)
    elif as_sql:
        _print_sql(ctx, "head")
    else:
        _run(ctx, lambda url, name: migrate.upgrade(url, name, run=_patient()))


@app.command(epilog="Examples: sokka migrate to 0001 · sokka migrate to head")
def to(
    ctx: typer.Context,
    rev: Annotated[str, typer.Argument(metavar="REV", help="A revision, base or head.")],
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
    as_sql: AsSql = False,
    start: From = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> None:
    """Go up or down to a revision. Base drops every task."""
    target = migrate.revision(rev)
    if options.given(ctx, "as_sql"):
        _print_sql(ctx, target)
        return
    _confirm(ctx, target)
    _run(ctx, lambda url, name: migrate.move(url, name, target, _patient()))


@app.command(epilog="Examples: sokka migrate down · sokka migrate down --sql")
def down(
    ctx: typer.Context,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
    as_sql: AsSql = False,
    start: From = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> None:
    """Go down by one revision. From the first that drops every task."""
    if options.given(ctx, "as_sql"):
        here = migrate.revision(options.given(ctx, "start") or "head")
        _print_sql(ctx, migrate.revision_below(here), here)
        return
    with options.database(ctx) as url:
        name = options.schema_name(ctx)
        target = migrate.revision_below(migrate.current(url, name) or "base")
        _confirm(ctx, target)
        _tell(ctx, migrate.downgrade(url, name, target, _patient()))


@app.command(epilog="Example: sokka migrate current --json")
def current(
    ctx: typer.Context,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the revision of the database: base where nothing is installed."""
    with options.database(ctx) as url:
        name = options.schema_name(ctx)
        found = migrate.current(url, name)
    facts = {"schema": name, "current": found, "head": migrate.revision("head")}
    answer(facts, found or "base", as_json=bool(options.given(ctx, "as_json")))


@app.command(epilog="Example: sokka migrate check || sokka migrate")
def check(
    ctx: typer.Context,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Exit 1 unless the database is at the newest revision and no object of it differs."""
    with options.database(ctx) as url:
        found = migrate.check(url, options.schema_name(ctx))
    facts = {
        "ok": found.ok, "schema": found.schema, "current": found.current,
        "head": found.head, "drift": found.drift,
    }
    answer(facts, _check_text(found), as_json=bool(options.given(ctx, "as_json")))
    if not found.ok:
        raise typer.Exit(REFUSED)


def _check_text(found: migrate.Check) -> str:
    if found.current != found.head:
        return (
            f"schema {found.schema} is at {found.current or 'base'}, this version needs "
            f"{found.head}: run sokka migrate"
        )
    if found.drift:
        return "\n".join([f"schema {found.schema} is not as its revision made it:", *found.drift])
    compared = "" if found.drift == () else " (not compared: this role may create no schema)"
    return f"schema {found.schema} is at {found.head}, the newest{compared}"


def _run(ctx: typer.Context, act: Callable[[str, str], migrate.Moved]) -> None:
    name = options.schema_name(ctx)
    with options.database(ctx) as url:
        _tell(ctx, act(url, name))


def _tell(ctx: typer.Context, moved: migrate.Moved) -> None:
    facts = {"schema": moved.schema, "before": moved.before, "after": moved.after}
    before, after = moved.before or "base", moved.after or "base"
    said = f"is at {after}" if before == after else f"went from {before} to {after}"
    answer(facts, f"schema {moved.schema} {said}", as_json=bool(options.given(ctx, "as_json")))


def _install_fence(ctx: typer.Context) -> None:
    name = options.schema_name(ctx)
    if options.given(ctx, "as_sql"):
        _print(ctx, name, migrate.fence_sql(name))
        return
    with options.database(ctx) as url:
        installed = migrate.fence_only(url, name)
    said = "has a fence now" if installed else "had a fence already"
    answer(
        {"schema": name, "installed": installed},
        f"schema {name} {said}",
        as_json=bool(options.given(ctx, "as_json")),
    )


def _print_sql(ctx: typer.Context, target: str, start: str | None = None) -> None:
    name = options.schema_name(ctx)
    text = migrate.sql(name, target, start or options.given(ctx, "start") or "base")
    _print(ctx, name, text)


def _print(ctx: typer.Context, name: str, text: str) -> None:
    answer({"schema": name, "sql": text}, text, as_json=bool(options.given(ctx, "as_json")))


def _confirm(ctx: typer.Context, target: str) -> None:
    """Ask a person, never a script, before every task goes."""
    if target == "base" and sys.stdin.isatty() and not options.given(ctx, "yes"):
        typer.confirm("This drops the queue and every task in it. Go on?", abort=True, err=True)


def _patient() -> migrate.Run:
    return migrate.Run(
        on_wait=lambda attempt: note(f"sokka: waiting for locks (attempt {attempt})")
    )

"""``sokka doctor``: is the database fit, and is the queue well?"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter

import typer

from sokka_pg import doctor, migrate
from sokka_pg.cli import options, reach
from sokka_pg.cli.output import EXIT_CODES, REFUSED, answer, console, printable
from sokka_pg.doctor import Finding, Level

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def register(app: typer.Typer) -> None:
    """Put ``doctor`` among the commands of ``app``."""
    app.command(
        "doctor",
        epilog="Examples: sokka doctor · sokka doctor --json | jq '.findings[] | "
        f"""select(.level != "ok")'. {EXIT_CODES}""",
    )(run)


def run(
    ctx: typer.Context,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Look at the server, the schema and the queue; say what is wrong and what to do.

    Changes nothing. Exits 1 if any check fails; warnings do not count.
    """
    name = options.schema_name(ctx)
    with options.database(ctx) as url, reach.connection(url, "sokka doctor") as connection:
        found = _examined(url, name, connection)
    if reach.as_json(ctx):
        levels = Counter(each.level for each in found)
        facts = {"ok": not levels[Level.FAIL], "levels": levels, "findings": found}
        answer(facts, as_json=True)
    else:
        _print(found)
    if any(each.level is Level.FAIL for each in found):
        raise typer.Exit(REFUSED)


def _examined(url: str, schema: str, connection: reach.Connection) -> list[Finding]:
    def compare() -> migrate.Check:
        return migrate.check(url, schema)

    if not sys.stderr.isatty():
        return list(doctor.examine(connection, schema, compare))
    with console(stderr=True).status("looking") as status:

        def show(name: str) -> None:
            status.update(f"looking at: {name}")

        return list(doctor.examine(connection, schema, compare, show))


def _print(found: list[Finding]) -> None:
    to = console()
    width = max(len(each.check) for each in found)
    for each in found:
        # The colour alone goes by the console: the text may hold anything.
        to.print(f"{each.level:<5}", style=_STYLES[each.level], end="")
        _paragraph(f"{each.check:<{width}}  {each.what}", to.width, " " * (width + 7), first=5)
        if each.level is not Level.OK:
            _paragraph(f"     why: {each.why}", to.width, " " * 10)
            _paragraph(f"     do:  {each.advice}", to.width, " " * 10)
    levels = Counter(each.level for each in found)
    said = ", ".join(f"{levels[level]} {level}" for level in Level)
    answer(None, f"\n{said}", as_json=False)


def _paragraph(text: str, width: int, indent: str, first: int = 0) -> None:
    lines = textwrap.wrap(
        " " * first + printable(text), width, subsequent_indent=indent,
        drop_whitespace=True, break_on_hyphens=False,
    )  # fmt: skip
    lines[0] = lines[0].removeprefix(" " * first)
    answer(None, "\n".join(lines), as_json=False)

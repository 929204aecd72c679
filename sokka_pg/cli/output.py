"""How every command answers: a table or one JSON object, and an exit code.

Exit codes: 0 done, 1 a refusal or a failed check, 2 wrong usage, 3 no database
to be reached. Answers go to stdout; what went wrong, and notes, to stderr.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table
from typer.core import TyperGroup

from sokka_pg import settings
from sokka_pg.errors import BadArgument, DatabaseUnavailable, SokkaError, UsageError

DONE, REFUSED, WRONG_USAGE, NO_DATABASE = 0, 1, 2, 3
EXIT_CODES = "Exit codes: 0 done, 1 refused or check failed, 2 wrong usage, 3 no database."

# C0 without tab and newline, C1, what terminals and log readers take for a line's
# end, and what makes text appear in another order than it stands in.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


class CommandGroup(TyperGroup):
    """The root of all commands: turns our errors into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SokkaError as error:
            report(error, as_json=bool(ctx.meta.get("sokka.json")))
            raise typer.Exit(exit_code(error)) from None


def exit_code(error: SokkaError) -> int:
    """The exit code that stands for this error."""
    if isinstance(error, DatabaseUnavailable):
        return NO_DATABASE
    return WRONG_USAGE if isinstance(error, UsageError | BadArgument) else REFUSED


def report(error: SokkaError, *, as_json: bool) -> None:
    """Say what went wrong: a line on stderr, with ``as_json`` also an object on stdout."""
    message = printable(" ".join(settings.redact(str(error)).split()))
    if as_json:
        kind = type(error).__name__
        answer({"error": {"type": kind, "message": message, "detail": error.detail}}, as_json=True)
    note(f"sokka: {message}")


def answer(facts: object, text: str = "", *, as_json: bool) -> None:
    """The answer of a command: ``facts`` as JSON, or ``text`` for people."""
    typer.echo(json.dumps(facts, default=_plain) if as_json else printable(text))


def note(text: str) -> None:
    """A remark for people that is no part of the answer."""
    typer.echo(text, err=True)


def table(
    columns: Sequence[str | Column], rows: Iterable[Sequence[object]], title: str = ""
) -> None:
    """Print a table; cells are text as it stands, never markup or control characters."""
    grid = Table(
        *columns, title=title or None, title_justify="left",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
    )  # fmt: skip
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    console().print(grid)


def console(*, stderr: bool = False) -> Console:
    """Rich's console on the stream as it is now: tests and pipes replace it."""
    stream = sys.stderr if stderr else sys.stdout
    # In a pipe a cut-off column is lost; a line too long is not.
    width = None if stream.isatty() else 240
    return Console(file=stream, markup=False, highlight=False, width=width)


def printable(text: str) -> str:
    """``text`` with control characters shown as escapes, for a terminal or a log."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, dict | list):
        return printable(json.dumps(value, default=_plain, ensure_ascii=False))
    return printable(str(value)).replace("\n", "\\n")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)

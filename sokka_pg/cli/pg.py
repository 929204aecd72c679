"""``sokka pg``: the embedded PostgreSQL of a development folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sokka_pg.embedded import Server, dev_server, end_dev_server, running_url
from sokka_pg.errors import DatabaseUnavailable, SokkaError, UsageError

REFUSED, WRONG_USAGE, NO_DATABASE = 1, 2, 3

app = typer.Typer(
    name="pg",
    help="The embedded PostgreSQL of a development folder.",
    epilog="Exit codes: 0 done, 1 refused, 2 wrong usage, 3 no server reachable.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[
    Path, typer.Option("--dir", help="The folder of the server.", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")]
Database = Annotated[str, typer.Option("--database", help="The database to name in the URL.")]
HERE = Path(".sokka")


@app.command(epilog="Examples: sokka pg start · sokka pg start --dir /var/tmp/mine --json")
def start(folder: Folder = HERE, as_json: AsJson = False) -> None:
    """Start the server and leave it up until `sokka pg stop`. Prints its URL."""
    with _exit_codes(as_json), dev_server(folder) as server:
        server.keep()
        facts = {
            "url": server.url(), "version": server.version,
            "data_dir": str(server.data_dir), "pid": server.pid, "log": str(server.log),
        }
        _answer(facts, server.url(), as_json)


@app.command(epilog="Examples: sokka pg stop · sokka pg stop --force")
def stop(
    folder: Folder = HERE,
    force: Annotated[
        bool, typer.Option("--force", help="Stop it even while other processes use it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the server. While others use it, it stops when the last of them leaves (exit 1)."""
    with _exit_codes(as_json):
        ending = end_dev_server(folder, force=force)
    said = {
        "stopped": "stopped",
        "not running": "no server is running here",
        "in use": "still in use; it stops when the last process leaves (--force: now)",
    }[ending]
    _answer({"outcome": ending}, said, as_json)
    if ending == "in use":
        raise typer.Exit(REFUSED)


@app.command(epilog='Examples: sokka pg url · export DATABASE_URL="$(sokka pg url)"')
def url(folder: Folder = HERE, database: Database = "postgres", as_json: AsJson = False) -> None:
    """Print the URL of the running server; exit 3 while it is down."""
    with _exit_codes(as_json):
        found = running_url(folder, database)
        if found is None:
            raise DatabaseUnavailable("no server is running here; start one with: sokka pg start")
    _answer({"url": found}, found, as_json)


@app.command(
    epilog='Examples: sokka pg psql · sokka pg psql -- -c "select 1"',
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def psql(
    context: typer.Context, folder: Folder = HERE, database: Database = "postgres",
    as_json: AsJson = False,
) -> None:
    """Open psql on the server, which is started if it is down. Words after -- go to psql.

    With --json it tells the command instead of running it.
    """
    with _exit_codes(as_json), dev_server(folder) as server:
        command = [str(_psql_of(server)), server.url(database), *context.args]
        if as_json:
            _answer({"command": command}, "", as_json)
            return
        code = _run_in_the_foreground(command)
    raise typer.Exit(code)


def _psql_of(server: Server) -> Path:
    beside = server.bin_dir / "psql"
    if beside.is_file() and os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which("psql")
    if on_path is None:
        raise UsageError(
            f"there is no psql beside these PostgreSQL programs ({server.bin_dir}) or on PATH; "
            "install PostgreSQL's client programs"
        )
    return Path(on_path)


def _run_in_the_foreground(command: list[str]) -> int:
    """Run it as a child: the server must be left, or stopped, when it is over."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is psql's own
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def _answer(facts: dict[str, object], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(facts) if as_json else text)


@contextmanager
def _exit_codes(as_json: bool) -> Iterator[None]:
    try:
        yield
    except SokkaError as error:
        if as_json:
            typer.echo(json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}))
        print(f"sokka pg: {error}", file=sys.stderr)
        raise typer.Exit(_code_of(error)) from error


def _code_of(error: SokkaError) -> int:
    if isinstance(error, DatabaseUnavailable):
        return NO_DATABASE
    return WRONG_USAGE if isinstance(error, UsageError) else REFUSED

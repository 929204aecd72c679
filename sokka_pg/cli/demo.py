"""``sokka demo``: real files, real processes, a kill and a freeze, and the proof."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column

from sokka_pg.cli import options
from sokka_pg.cli.demo_display import displayed
from sokka_pg.cli.output import EXIT_CODES, REFUSED, answer, table
from sokka_pg.demo.sources import FEWEST
from sokka_pg.demo.table import SCHEMA, TABLE

EPILOG = (
    "Examples: sokka demo · sokka demo --keep · sokka demo --files 100 --json. "
    f"{EXIT_CODES}"
)
_NAME_WIDTH = 30


def register(app: typer.Typer) -> None:
    """Add the command to the root of all commands."""
    app.command("demo", epilog=EPILOG)(demo)


def demo(
    ctx: typer.Context,
    files: Annotated[
        int | None,
        typer.Option("--files", min=FEWEST, metavar="N", show_default=False,
                     help="Only so many files, evenly chosen. Default: all."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the server up, and say how to look around.")
    ] = False,
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database-url", metavar="URL", show_default=False,
            help="A database of yours instead: it is migrated, and a schema sokka_demo is "
            "made in it and dropped at the end. Default: a temporary embedded server.",
        ),
    ] = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """See the fence hold: workers die and freeze over Python's own library.

    One task per source file of this Python's standard library. Four worker
    processes parse the files and write one row for each, in the transaction
    that ends the task. One worker is killed (kill -9) with leases in hand; one
    is frozen until others have its tasks, and woken: the database refuses what
    it still writes. Then one plain process counts the same files, to compare.
    """
    # Only here: it brings in the worker and the migrations, for a third of a second.
    from sokka_pg.demo.run import Plan, play

    plan = Plan(
        queue=options.schema_name(ctx), files=files, keep=keep,
        database_url=options.given(ctx, "database_url"),
    )
    json_wanted = bool(options.given(ctx, "as_json"))
    with displayed() as teller:
        facts = play(plan, teller)
    if json_wanted:
        answer(facts, as_json=True)
    else:
        _print(facts)
    if not facts["ok"]:
        raise typer.Exit(REFUSED)


def _print(facts: dict[str, Any]) -> None:
    print()
    _print_figures(facts)
    _print_refusals(facts["stale_writes_refused"])
    _print_history(facts["history"])
    _print_comparison(facts["comparison"], facts["plain_seconds"])
    _print_checks(facts["checks"])
    said = "All agree." if facts["ok"] else "Not all agree: see the checks marked NO."
    answer({}, "\n" + said, as_json=False)
    if facts["kept"]:
        answer({}, "\n" + _ways_to_look(facts), as_json=False)


def _print_figures(facts: dict[str, Any]) -> None:
    rows, tasks, lost = facts["rows"], facts["tasks"], facts["leases_lost"]
    versions = f"PostgreSQL {facts['server']['version']}, Python {facts['python']}"
    table(("what", "figure", ""), [
        ("files", f"{facts['files']:,}", facts["origin"]),
        ("tasks", f"{tasks['created']:,}", f"{tasks['terminated']:,} ended in success"),
        ("rows", f"{rows['count']:,}",
         f"exactly one for {rows['files_with_exactly_one']:,} of {facts['files']:,} files"),
        ("stale writes refused", len(facts["stale_writes_refused"]), "see below"),
        ("leases lost", lost["total"], f"{lost['by_the_killed']} by the killed worker, "
         f"{lost['by_the_frozen']} by the frozen one"
         + (f", {lost['by_others']} by others" if lost["by_others"] else "")),
        ("tasks/s", f"{facts['tasks_per_second']:,.0f}",
         f"{facts['seconds']:.1f} s, {len(facts['workers'])} workers, {versions}"),
    ])  # fmt: skip


def _print_refusals(refusals: list[dict[str, Any]]) -> None:
    print()
    table(
        (Column("file", no_wrap=True), "stale token", "refusal", "token that stands"),
        [
            (_short(r["name"]), r["stale_token"], r["sqlstate"], r["current_token"])
            for r in refusals
        ],
        title="Stale writes that the database refused",
    )
    kinds = {r["sqlstate"]: r["error"] for r in refusals}
    answer({}, ", ".join(f"{code} {kind}" for code, kind in sorted(kinds.items())), as_json=False)


def _print_history(history: dict[str, Any]) -> None:
    print()
    table(
        ("#", "time", "event", "worker", "token"),
        [
            (e["seq"], e["at"].strftime("%H:%M:%S.%f")[:-3], e["event"],
             (e["pid"] or "").partition(":")[0], e["token"])
            for e in history["events"]
        ],
        title=f"A task that changed hands: {_short(history['name'], 50)}",
    )  # fmt: skip


def _print_comparison(comparison: dict[str, Any], plain_seconds: float) -> None:
    queue, plain = comparison["queue"], comparison["plain"]
    print()
    table(
        ("count", Column("queue", justify="right"), Column("plain", justify="right"), ""),
        [
            (what, _figure(queue[what]), _figure(plain[what]),
             "same" if queue[what] == plain[what] else "DIFFERS")
            for what in queue
        ],
        title=f"Compared with one plain process ({plain_seconds:.1f} s)",
    )  # fmt: skip


def _print_checks(checks: list[dict[str, Any]]) -> None:
    print()
    table(
        ("check", "", "found"),
        [(c["check"], "yes" if c["ok"] else "NO", c["found"]) for c in checks],
    )


def _ways_to_look(facts: dict[str, Any]) -> str:
    kept, sokka = facts["kept"], _program()
    topic, task = kept["topic"], facts["history"]["task_id"]
    lines = ["To look around, with the same --database-url:"]
    if kept["url"]:
        lines = [
            "The server stays up. To look around:",
            f"  export SOKKA_DATABASE_URL={shlex.quote(kept['url'])}",
        ]
    lines += [
        f"  {sokka} task list --topic {topic} --limit 10",
        f"  {sokka} task history {task}",
    ]
    query = f"-c 'table {TABLE} limit 10'"
    if not kept["url"]:
        done = f"The rows are in {TABLE}; when you are done: drop schema {SCHEMA} cascade"
        return "\n".join([*lines, done])
    folder = shlex.quote(kept["folder"])
    remove = " ".join(map(shlex.quote, kept["remove"]))
    return "\n".join([
        *lines,
        f"  {sokka} pg psql --dir {folder} -- {query}",
        "To stop it and remove its files:",
        f"  {sokka} pg stop --dir {folder} && rm -rf {remove}",
    ])


def _program() -> str:
    """This command as the user would type it again."""
    called = Path(sys.argv[0])
    if called.name != "sokka" or shutil.which("sokka") == str(called):
        return "sokka"
    return shlex.quote(str(called))


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{str(value)[:12]}…"


def _short(name: str, most: int = _NAME_WIDTH) -> str:
    return name if len(name) <= most else f"…{name[1 - most:]}"

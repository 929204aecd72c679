"""``sokka bench``: figures of this machine and this database."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from sokka_pg import bench
from sokka_pg.cli import options, reach, showing
from sokka_pg.cli.output import EXIT_CODES, answer, console, note, table

_DEFAULT = bench.Plan()


def register(app: typer.Typer) -> None:
    """Put ``bench`` among the commands of ``app``."""
    app.command(
        "bench",
        epilog="Examples: sokka bench · sokka bench --only verbs,worker --rounds 5 · "
        "sokka bench --only hot --finished 10000000 · sokka bench --only latency "
        f"--soak 1000000 --json. {EXIT_CODES}",
    )(run)


def run(
    ctx: typer.Context,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="PART,...", help=f"Of {', '.join(bench.PARTS)}; or none, for the "
            "long ones alone.", show_default="all"
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option("--tasks", help="The size of a throughput run, from 1000.")
    ] = _DEFAULT.tasks,
    rounds: Annotated[
        int, typer.Option("--rounds", help="Interleaved runs of which the median counts.")
    ] = _DEFAULT.rounds,
    finished: Annotated[
        int,
        typer.Option(
            "--finished", metavar="ROWS",
            help="Also measure beside that many finished tasks (10000000 takes minutes).",
        ),
    ] = 0,
    soak: Annotated[
        int,
        typer.Option(
            "--soak", metavar="TASKS",
            help="Also watch a worker's memory over that many tasks (1000000 takes minutes).",
        ),
    ] = 0,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure the queue on this database, in scratch schemas that are dropped at the end.

    Ratios compare measures of this one run: figures of other machines, or of
    other times, are not comparable. Always exits 0 when it could measure.
    """
    plan = bench.Plan(_parts(only), tasks, rounds, finished, soak)
    with options.database(ctx) as url, _telling() as tell:
        report = bench.run(url, plan, tell)
    if reach.as_json(ctx):
        answer(report, as_json=True)
    else:
        _print(report)


def _parts(only: str | None) -> tuple[str, ...]:
    if only is None:
        return bench.PARTS
    return () if only == "none" else tuple(dict.fromkeys(only.split(",")))


@contextmanager
def _telling() -> Iterator[bench.Tell]:
    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(),
        TimeElapsedColumn(), console=console(stderr=True), disable=not sys.stderr.isatty(),
        transient=True,
    )  # fmt: skip
    with progress:
        row = progress.add_task("making a scratch schema", total=None)

        def tell(text: str, share: float | None = None, /) -> None:
            progress.update(
                row, description=text, completed=share or 0.0, total=None if share is None else 1.0
            )

        yield tell


def _print(report: bench.Report) -> None:
    server = report.environment["server"]
    said = ", ".join(f"{name} {value}" for name, value in server.items())
    facts = {key: value for key, value in report.environment.items() if key not in ("server",)}
    plan = facts.pop("plan")
    note(", ".join(f"{name} {value}" for name, value in facts.items()))
    note(f"server: {said}")
    note(f"plan: {', '.join(f'{name} {value}' for name, value in plan.items())}\n")
    table(
        (showing.loose("measure"), showing.number("median"), showing.number("low"),
         showing.number("high"), showing.fixed("unit")),
        (
            (each.name, _number(each.median), _number(each.low), _number(each.high), each.unit)
            for each in report.figures
        ),
    )  # fmt: skip
    if report.ratios:
        answer(None, "", as_json=False)
        table(
            (showing.loose("ratio"), showing.number("value"), showing.fixed("wanted"),
             showing.fixed("")),
            (
                (each.name, f"{each.value:.2f}", each.wanted, _reached(each))
                for each in report.ratios
            ),
        )  # fmt: skip


def _reached(ratio: bench.Ratio) -> str:
    if not ratio.wanted:
        return ""
    return "reached" if ratio.reached else "missed"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

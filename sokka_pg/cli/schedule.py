"""``sokka schedule``: look at schedules, steer them, fire them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from sokka_pg import schedules
from sokka_pg.app import Sokka
from sokka_pg.cli import completing, options, reach, reading, showing
from sokka_pg.cli.output import EXIT_CODES, answer, note, table
from sokka_pg.cli.worker import LogLevel, named_app, set_up_logging
from sokka_pg.errors import BadArgument, NoScheduleFound
from sokka_pg.model import ScheduleRow
from sokka_pg.scheduler import Periodic, SyncReport
from sokka_pg.schedules import Occurrence

app = typer.Typer(
    help="Look at schedules, steer them, and fire them.",
    epilog="Examples: sokka schedule list --state failing · sokka schedule preview '@daily' "
    f"--tz Europe/Berlin · sokka schedule pause nightly --reason 'stocktaking'. {EXIT_CODES}",
    no_args_is_help=True,
)

SOURCE = "cli"
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=completing.schedules, show_default=False),
]
Reason = Annotated[str | None, typer.Option("--reason", help="Kept with the act.")]
App = Annotated[
    str, typer.Option("--app", metavar="MODULE:NAME", help="Where the Sokka app stands.")
]
Zone = Annotated[
    str | None,
    typer.Option("--tz", metavar="ZONE", help="Of a cron expression that names none.",
                 show_default="UTC"),
]  # fmt: skip


@app.command(
    "list",
    epilog="Examples: sokka schedule list · sokka schedule list --state failing --json",
)
def list_(
    ctx: typer.Context,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help="active, paused, failing or finished."),
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Who declared it.")] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="How the name begins.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, help="Schedules on a page.")
    ] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on after this name.")
    ] = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """List schedules by name."""
    given = {"state": state, "source": source, "prefix": prefix}
    filters = {key: value for key, value in given.items() if value is not None}
    with reach.store(ctx) as store:
        page = store.list_schedules(filters, cursor, limit)
    if reach.as_json(ctx):
        answer({"schedules": page.items, "cursor": page.cursor}, as_json=True)
    elif not page.items:
        note("sokka: no such schedule")
    else:
        _print_all(page.items)
        if page.cursor is not None:
            note(f"sokka: more follow; --cursor {page.cursor}")


@app.command(epilog="Example: sokka schedule show nightly --json")
def show(
    ctx: typer.Context,
    name: Name,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Show everything about one schedule, and its next ticks."""
    row = _found(ctx, name)
    try:
        ticks, fault = schedules.upcoming(row, 5), None
    except BadArgument as error:
        ticks, fault = [], str(error)
    if reach.as_json(ctx):
        answer({**asdict(row), "upcoming": [_fire(each) for each in ticks]}, as_json=True)
        return
    facts = {key: value for key, value in asdict(row).items() if value is not None}
    facts["grace"] = showing.span(row.grace)
    table((showing.fixed("schedule"), showing.loose(row.name)), facts.items())
    if fault is not None:
        note(f"sokka: {fault}")
    elif ticks:
        _print_fires(ticks)


@app.command(
    epilog="Examples: sokka schedule preview nightly · sokka schedule preview '0 30 2 * * *' "
    "--tz Europe/Berlin --after 2026-03-28T00:00:00Z · sokka schedule preview '@every 90m' -n 3"
)
def preview(
    ctx: typer.Context,
    schedule: Annotated[
        str,
        typer.Argument(
            metavar="NAME|SCHEDULE", help="A schedule's name, or the text of one.",
            autocompletion=completing.schedules, show_default=False,
        ),
    ],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000)] = 10,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="TIME", help="Ticks after this instant; ISO 8601 with "
                     "offset.", show_default="now"),
    ] = None,
    tz: Zone = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the next ticks with zone, offset, and a mark where the clock is turned.

    ``gap``: moved out of an hour that is skipped. ``overlap first`` and ``overlap
    second``: of an hour that comes twice. A schedule that is given as text needs no
    database.
    """
    start = datetime.now(UTC) if after is None else reading.instant(after, "--after")
    try:
        found = schedules.occurrences(schedules.parse(schedule, tz), start, most=count)
    except BadArgument as error:
        if _is_schedule(schedule):
            raise
        row = _found(ctx, schedule, error)
        found = schedules.upcoming(row, count, None if after is None else start)
    if reach.as_json(ctx):
        answer({"schedule": schedule, "fires": [_fire(each) for each in found]}, as_json=True)
    elif found:
        _print_fires(found)
    else:
        note("sokka: it does not fire any more")


@app.command(
    epilog="""Examples: sokka schedule add nightly '0 0 3 * * *' --topic reports --kind report """
    """--tz Europe/Berlin · sokka schedule add ping '@every 5m' --topic web --data '{"n": 1}'"""
)
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    schedule: Annotated[str, typer.Argument(metavar="SCHEDULE", show_default=False)],
    topic: Annotated[
        str, typer.Option("--topic", "-t", help="Where its tasks go.",
                          autocompletion=completing.topics),
    ],
    kind: Annotated[str | None, typer.Option("--kind", "-k", help="The handler's name.")] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", metavar="JSON|@FILE|-", help="The payload.")
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="0 (first) to 9.")] = None,
    retry: Annotated[
        str | None, typer.Option("--retry", metavar="JSON", help='{"max_attempts": 3, ...}')
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Of one attempt.")
    ] = None,
    tz: Zone = None,
    missed: Annotated[
        str, typer.Option("--missed", metavar="skip|one|all", help="What becomes of late ticks.")
    ] = "one",
    max_catch_up: Annotated[
        int | None, typer.Option("--max-catch-up", help="How many late ticks fire, with all.",
                                 show_default="100"),
    ] = None,
    grace: Annotated[
        str | None, typer.Option("--grace", metavar="TIME", help="How late a tick fires, with "
                                 "skip.", show_default="1m"),
    ] = None,
    serial: Annotated[
        bool, typer.Option("--serial", help="A tick waits for the end of the one before.")
    ] = False,
    repeats: Annotated[int | None, typer.Option("--repeats", help="Over after so many.")] = None,
    expires_at: Annotated[
        str | None, typer.Option("--expires-at", metavar="TIME", help="Over after this instant.")
    ] = None,
    description: Annotated[str | None, typer.Option("--description", help="For readers.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Change the schedule of this name, if there is one.")
    ] = False,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Keep a schedule: each of its ticks becomes a task."""
    task = _only_given(
        topic=topic, kind=kind, priority=priority,
        data=None if data is None else reading.data(data),
        retry=None if retry is None else reading.retry(retry),
        timeout=None if timeout is None else reading.duration(timeout, "--timeout"),
    )
    wanted: Any = _only_given(
        name=name, tz=tz, missed=missed, max_catch_up=max_catch_up, repeats=repeats,
        serial=serial, description=description,
        grace=None if grace is None else reading.duration(grace, "--grace"),
        expires_at=None if expires_at is None else reading.instant(expires_at, "--expires-at"),
    )
    declared = Periodic.of(schedule, task, name, wanted)
    with reach.store(ctx) as store:
        first = declared.first_tick(store.clock())
        if first is None:
            raise BadArgument.of("SCHEDULE", "has no tick from now on")
        put = store.put_schedule(name, declared.spec(first, SOURCE), replace)
        row = store.schedule(name)
    said = "is there already, and the same" if not put.changed else "stands"
    next_at = row.next_at if row is not None else first
    answer(
        {"name": name, "generation": put.generation, "changed": put.changed, "next_at": next_at},
        f"{name} {said}: next at {next_at:%Y-%m-%d %H:%M:%S} UTC", as_json=reach.as_json(ctx),
    )


@app.command(epilog="Example: sokka schedule pause nightly --reason 'stocktaking'")
def pause(
    ctx: typer.Context,
    name: Name,
    reason: Reason = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Fire a schedule no more until it is resumed."""
    with reach.store(ctx) as store:
        row = store.pause_schedule(name, reason)
    facts = {"name": row.name, "state": row.state, "paused_at": row.paused_at}
    answer(facts, f"{row.name} is {row.state}", as_json=reach.as_json(ctx))


@app.command(epilog="Example: sokka schedule resume nightly")
def resume(
    ctx: typer.Context,
    name: Name,
    reason: Reason = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Lift the pause; what was missed fires or not, by the schedule's own word."""
    with reach.store(ctx) as store:
        row = store.resume_schedule(name, reason)
    facts = {"name": row.name, "state": row.state, "next_at": row.next_at}
    answer(facts, f"{row.name} is {row.state}", as_json=reach.as_json(ctx))


@app.command(epilog="Example: sokka schedule delete nightly --reason 'not needed any more'")
def delete(
    ctx: typer.Context,
    name: Name,
    reason: Reason = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Delete a schedule; the tasks that it made stay."""
    with reach.store(ctx) as store:
        deleted = store.delete_schedule(name, reason)
    said = f"{name} is deleted" if deleted else f"there is no schedule {name}"
    answer({"name": name, "deleted": deleted}, said, as_json=reach.as_json(ctx))


@app.command(epilog="Example: sokka schedule trigger nightly --reason 'asked for by sales'")
def trigger(
    ctx: typer.Context,
    name: Name,
    reason: Reason = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Make one more task now, and print its id; the schedule's own ticks stay."""
    with reach.store(ctx) as store:
        run = store.trigger_schedule(name, reason)
    answer(run, str(run.task_id), as_json=reach.as_json(ctx))


@app.command(epilog="Example: sokka schedule sync --app shop.tasks:app --prune")
def sync(
    ctx: typer.Context,
    app_path: App,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what this app declared once and does not now.")
    ] = False,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Put the periodic tasks of an app, as its workers do at their start."""
    with named_app(ctx, app_path) as found:
        try:
            report = found.sync_schedules(prune=prune)
        finally:
            found.store.close()
    answer(report, _told(report), as_json=reach.as_json(ctx))


@app.command(epilog="Examples: sokka schedule run · sokka schedule run --app shop.tasks:app")
def run(
    ctx: typer.Context,
    app_path: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:NAME", show_default=False,
                     help="An app whose periodic tasks are put first."),
    ] = None,
    pooler: Annotated[
        bool,
        typer.Option("--pooler", help="A transaction-mode pooler such as PgBouncer stands "
                     "before the database."),
    ] = False,
    log_level: Annotated[LogLevel, typer.Option("--log-level")] = LogLevel.INFO,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Fire all schedules that are due, until SIGTERM or Ctrl-C.

    Workers do that too; run this where they have --no-schedules. Any number may run.
    """
    set_up_logging(log_level, reach.as_json(ctx))
    with named_app(ctx, app_path) if app_path else _no_app(ctx) as found:
        if pooler:
            found.connect_through_pooler()
        found.run_scheduler()
    answer({"stopped": True}, "stopped", as_json=reach.as_json(ctx))


@contextmanager
def _no_app(ctx: typer.Context) -> Iterator[Sokka]:
    """An app that declares nothing, on the database that the line names."""
    with options.database(ctx) as url:
        yield Sokka(url, options.schema_name(ctx))


def _found(ctx: typer.Context, name: str, why: BadArgument | None = None) -> ScheduleRow:
    with reach.store(ctx) as store:
        row = store.schedule(name)
    if row is None:
        hint = "" if why is None else f", and as the text of one: {why.message}"
        raise NoScheduleFound(f"there is no schedule {name!r}{hint}", {"name": name})
    return row


# What nobody would call a schedule: its text is wrong, then, and no name to look up.
_LIKE_A_TEXT = re.compile(r"\s*(@|(CRON_)?TZ=|[\d*?,/-]+(\s+\S+){4})")


def _is_schedule(text: str) -> bool:
    """Whether it is meant as the text of one, or only the zone beside it was wrong."""
    if _LIKE_A_TEXT.match(text):
        return True
    try:
        schedules.parse(text)
    except BadArgument:
        return False
    return True


def _only_given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _print_all(rows: Sequence[ScheduleRow]) -> None:
    now = datetime.now(UTC)
    table(
        (showing.loose("schedule"), showing.loose("when"), showing.fixed("state"),
         showing.number("next"), showing.number("runs"), showing.loose("topic"),
         showing.loose("source")),
        (
            (row.name, row.schedule, row.state, showing.age(row.next_at, now), row.runs,
             row.topic, row.source)
            for row in rows
        ),
    )  # fmt: skip
    for row in rows:
        if row.error is not None:
            note(f"sokka: {row.name}: {row.error}")


def _print_fires(found: Sequence[Occurrence]) -> None:
    table(
        (showing.fixed("UTC"), showing.fixed("there"), showing.fixed("zone"),
         showing.fixed("offset"), showing.fixed("mark")),
        (
            (_second(each.at), _second(each.local), each.zone, f"{each.local:%z}", each.mark)
            for each in found
        ),
    )  # fmt: skip


def _second(at: datetime) -> str:
    whole = at.replace(tzinfo=None)
    return whole.isoformat(" ", "seconds" if not at.microsecond else "milliseconds")


def _fire(each: Occurrence) -> dict[str, Any]:
    return {
        "at": each.at, "local": each.local.isoformat(), "zone": each.zone,
        "offset": each.offset.total_seconds(), "mark": each.mark,
    }  # fmt: skip


def _told(report: SyncReport) -> str:
    lines = [f"{fate}: {', '.join(names)}" for fate, names in asdict(report).items() if names]
    return "\n".join(lines) or "this app declares no periodic task"

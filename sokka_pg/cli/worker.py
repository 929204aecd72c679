"""``sokka worker``: run handlers until told to stop."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sokka_pg import observers, settings
from sokka_pg.app import Sokka
from sokka_pg.cli import options
from sokka_pg.cli.output import EXIT_CODES, answer, printable
from sokka_pg.errors import BadArgument, UsageError
from sokka_pg.worker import (
    Supervisor,
    WorkerOptions,
    fastest_loop,
    process_number,
    when_supervisor_ends,
)
from sokka_pg.worker.supervisor import checked_count

if TYPE_CHECKING:
    from sokka_pg.observers import Export

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EXTRA_FIELDS = ("task_id", "topic", "kind", "attempt", "token", "event", "fields")


LAST_PORT = 65_535
MANY_PROCESSES = 3
"""So many keep a server busy without second calls, which then only get into each other's
way: four on two cores did 42 k tasks a second without them and 38 k with them."""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def register(app: typer.Typer) -> None:
    """Add the command to the root of all commands."""
    app.command(
        "worker",
        epilog="Example: sokka worker --app shop.tasks:app --topics mail:20,reports:2. "
        f"{EXIT_CODES}",
    )(worker)


def worker(
    ctx: typer.Context,
    app: Annotated[
        str, typer.Option("--app", metavar="MODULE:NAME", help="Where the Sokka app stands.")
    ],
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics", metavar="A:10,B", show_default=False,
            help="Topics, each with a limit of handlers at a time if it needs one. "
            "Default: the topics that the app's tasks name.",
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Handlers at a time, in all. Default: the sum of "
                     "the limits, and 10 for topics without.", show_default=False),
    ] = None,
    lease: Annotated[
        str, typer.Option("--lease", help="How long a dead worker's tasks stay taken.")
    ] = "30s",
    grace: Annotated[
        str, typer.Option("--grace", help="How long handlers may go on after SIGTERM or Ctrl-C.")
    ] = "30s",
    poll: Annotated[
        str, typer.Option("--poll", help="How often to look although nothing was notified.")
    ] = "1s",
    startup: Annotated[
        str, typer.Option("--startup", help="How long to wait for a database not there yet.")
    ] = "60s",
    prefetch: Annotated[
        int, typer.Option("--prefetch", help="Tasks to reserve ahead of free slots, at most.")
    ] = 1000,
    calls: Annotated[
        int | None,
        typer.Option("--calls", help="How many calls to settle and reserve may be under way, 1 "
                     "or 2. Default: 2, and 1 with three --processes or more.",
                     show_default=False),
    ] = None,
    listen: Annotated[
        bool, typer.Option("--listen/--no-listen", help="Be notified of tasks, or only poll.")
    ] = True,
    schedules: Annotated[
        bool,
        typer.Option("--schedules/--no-schedules", help="Put the app's periodic tasks, and "
                     "fire every schedule that is due, or leave that to others."),
    ] = True,
    pooler: Annotated[
        bool,
        typer.Option("--pooler", help="A transaction-mode pooler such as PgBouncer stands "
                     "before the database."),
    ] = False,
    processes: Annotated[
        int,
        typer.Option("--processes", help="Worker processes under one supervisor, each with "
                     "these topics and limits. One that dies is replaced."),
    ] = 1,
    uvloop: Annotated[
        bool,
        typer.Option("--uvloop/--no-uvloop", help="Run on uvloop's event loop where it is "
                     "installed, or on asyncio's."),
    ] = True,
    pid: Annotated[
        str | None,
        typer.Option("--pid", help="Identity; must be unique. Default: host, process, chance. "
                     "Of several processes, each adds its number.",
                     show_default=False),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", min=0, max=65535, show_default=False,
                     help="Serve Prometheus metrics at /metrics of this port; 0 takes a "
                     "free one. Of several processes, each the next port. Default: no."),
    ] = None,
    metrics_host: Annotated[
        str,
        typer.Option("--metrics-host", help="Where to listen for whoever reads the metrics."),
    ] = "127.0.0.1",
    log_level: Annotated[LogLevel, typer.Option("--log-level")] = LogLevel.INFO,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Run the app's handlers until SIGTERM or Ctrl-C.

    The first signal: reserve no more, let handlers end within --grace, give back
    the rest. The second: give back now. With --processes the supervisor passes them on
    and waits for all. With --json the log is one object a line.
    """
    json_log = bool(options.given(ctx, "as_json"))
    set_up_logging(log_level, json_log)
    chosen = WorkerOptions(
        lease=duration("lease", lease), grace=duration("grace", grace),
        poll=duration("poll", poll), startup=duration("startup", startup),
        concurrency=concurrency, prefetch=prefetch, calls=calls_of(calls, processes),
        listen=listen, schedules=schedules,
    ).checked()
    number = process_number()
    if checked_count(processes) > 1 and number is None:
        check_ports(metrics_port, processes)
        raise typer.Exit(_supervised(processes, chosen, json_log))
    if processes > 1 and metrics_port:
        metrics_port += (number or 1) - 1
    with named_app(ctx, app) as found:
        if pooler:
            found.connect_through_pooler()
        with _exported(found, metrics_host, metrics_port) as export:
            made = found.worker(
                topics, pid=numbered(pid or found.pid, processes, number), options=chosen,
                observers=export.observers if export else (),
            )
            if export is not None:
                export.start(
                    made, found.database_url, found.schema, options=found.connections,
                    pools={"sync": found.store, "async": found.async_store},
                )
            when_supervisor_ends(made.stop)
            found.run(made, loop_factory=fastest_loop() if uvloop else None)
    answer({"pid": made.pid, "stopped": True}, f"worker {made.pid} stopped", as_json=json_log)


def _supervised(processes: int, chosen: WorkerOptions, json_log: bool) -> int:
    """Run this very command in several processes; the exit code."""
    # as it was started: by its script or as a module, with the interpreter's options
    command = [sys.executable, *sys.orig_argv[1:]]
    code = Supervisor(command, processes, grace_s=chosen.seconds("grace")).run()
    if code == 0:
        said = f"{processes} workers stopped"
        answer({"processes": processes, "stopped": True}, said, as_json=json_log)
    return code


def check_ports(first: int | None, processes: int) -> None:
    """Whether there is a port of its own for the metrics of each process."""
    if first and first + processes - 1 > LAST_PORT:
        raise BadArgument.of("metrics_port", f"{processes} of them must end by {LAST_PORT}")


def calls_of(asked: int | None, processes: int) -> int:
    """How many calls each process may have under way."""
    if asked is not None:
        return asked
    return 1 if processes >= MANY_PROCESSES else 2


def numbered(pid: str | None, processes: int, number: int | None) -> str | None:
    """The identity of one process of several: they may not share one."""
    return pid if pid is None or processes == 1 else f"{pid}-{number or 1}"


@contextmanager
def named_app(ctx: typer.Context, path: str) -> Iterator[Sokka]:
    """The app, pointed at the database that the line names, or else at its own."""
    found = load_app(path)
    named = options.given(ctx, "database_url")
    schema = options.given(ctx, "schema")
    if named is not None:
        found.connect_to(settings.normalise(named, "--database-url"), schema)
    elif schema is not None and found.names_database:
        found.connect_to(found.database_url, schema)
    if found.names_database:
        yield found
        return
    with options.database(ctx) as url:
        found.connect_to(url, schema)
        yield found


@contextmanager
def _exported(app: Sokka, host: str, port: int | None) -> Iterator[Export | None]:
    """The metrics of this process, if a port is given for them."""
    if port is None:
        yield None
        return
    with closing(observers.Export(app.observers, host, port)) as export:
        yield export


def load_app(path: str) -> Sokka:
    """The Sokka app at ``module:name``; ``UsageError`` says what is wrong with it."""
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"--app: write it as module:name, not {path!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(f"--app: no module {error.name!r}") from error
    except Exception as error:
        raise UsageError(
            f"--app: importing {module_name!r} raised {type(error).__name__}: "
            f"{settings.redact(str(error))[:300]}"
        ) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Sokka):
        raise UsageError(f"--app: {path!r} is no Sokka app (found {type(found).__name__})")
    return found


def duration(option: str, text: str) -> timedelta:
    """``30s``, ``500ms``, ``5m``, ``2h``, ``1d``; a bare number is seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadArgument.of(option, "a number with ms, s, m, h or d, such as 30s")
    try:
        return timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"])
    except OverflowError:
        raise BadArgument.of(option, "too long") from None


class JsonLines(logging.Formatter):
    """Each record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": settings.redact(record.getMessage()),
        }
        said |= {name: getattr(record, name) for name in _EXTRA_FIELDS if hasattr(record, name)}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class Lines(logging.Formatter):
    """Records for people; control characters cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).isoformat(timespec="milliseconds")
        line = f"{when} {record.levelname.lower()} {settings.redact(record.getMessage())}"
        line = printable(line).replace("\n", "\\n")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logging(level: LogLevel, json_lines: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if json_lines else Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)

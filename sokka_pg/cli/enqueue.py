"""``sokka enqueue``: create a task, or many from a file."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from sokka_pg import durations
from sokka_pg.calls import TaskOptions
from sokka_pg.cli import bulk, completing, options, reach, reading
from sokka_pg.cli.output import EXIT_CODES, answer, note
from sokka_pg.errors import BadArgument
from sokka_pg.model import CreatedTask

EPILOG = (
    """Examples: sokka enqueue mail --data '{"to": "a@example.org"}' · """
    "sokka enqueue mail --data @letter.json --delay 5m --max-attempts 3 · "
    "sokka enqueue mail --bulk letters.jsonl. "
    "A line of a bulk file is an object of create_task's arguments, such as "
    """{"data": {"to": "b@example.org"}, "priority": 2}; the options given here hold for """
    f"the lines that say nothing else. {EXIT_CODES}"
)

Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC", help="The queue it goes to.", autocompletion=completing.topics,
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="JSON|@FILE|-", help="The payload; - reads standard input."
    ),
]
Kind = Annotated[str | None, typer.Option("--kind", "-k", help="The name of its handler.")]
SubTopic = Annotated[str | None, typer.Option("--sub-topic", help="A label for listings.")]
TaskId = Annotated[
    str | None,
    typer.Option("--task-id", metavar="UUID", help="An id of yours: the call can be repeated."),
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="UUID", help="The group it belongs to.")
]
Priority = Annotated[
    int | None, typer.Option("--priority", help="0 (first) to 9.", show_default="5")
]
RunAt = Annotated[
    str | None, typer.Option("--run-at", metavar="TIME", help="Not before; ISO 8601 with offset.")
]
Delay = Annotated[
    str | None, typer.Option("--delay", metavar="TIME", help="Not before that long from now: 5m.")
]
MaxAttempts = Annotated[
    int | None, typer.Option("--max-attempts", help="The first included.", show_default="1")
]
Retry = Annotated[
    str | None,
    typer.Option("--retry", metavar="JSON", help='{"max_attempts": 3, "initial": "5s", ...}'),
]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="The longest an attempt may take.")
]
ExpiresAt = Annotated[
    str | None,
    typer.Option("--expires-at", metavar="TIME", help="Fails if it still waits then."),
]
UniqueKey = Annotated[
    str | None, typer.Option("--unique-key", help="One unfinished task of the topic holds it.")
]
OnConflict = Annotated[
    str | None,
    typer.Option(
        "--on-conflict", metavar="existing|error", help="What a taken key does.",
        show_default="existing",
    ),
]
Header = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="May be repeated.")
]
Bulk = Annotated[
    str | None,
    typer.Option("--bulk", metavar="FILE.jsonl|-", help="One task per line, in batches."),
]


def register(app: typer.Typer) -> None:
    """Put ``enqueue`` among the commands of ``app``."""
    app.command(epilog=EPILOG)(enqueue)


def enqueue(
    ctx: typer.Context,
    topic: Topic = None,
    data: Data = None,
    kind: Kind = None,
    sub_topic: SubTopic = None,
    task_id: TaskId = None,
    group: Group = None,
    priority: Priority = None,
    run_at: RunAt = None,
    delay: Delay = None,
    max_attempts: MaxAttempts = None,
    retry: Retry = None,
    timeout: Timeout = None,
    expires_at: ExpiresAt = None,
    unique_key: UniqueKey = None,
    on_conflict: OnConflict = None,
    header: Header = None,
    bulk_file: Bulk = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Create a task and print its id; or one task per line of a file."""
    asked: TaskOptions = _only_given(
        kind=kind,
        sub_topic=sub_topic,
        priority=priority,
        max_attempts=max_attempts,
        on_conflict=on_conflict,
        task_group_id=None if group is None else reading.task_id(group, "--group"),
        timeout=None if timeout is None else reading.duration(timeout, "--timeout"),
        retry=None if retry is None else reading.retry(retry),
        expires_at=None if expires_at is None else reading.instant(expires_at, "--expires-at"),
        headers=reading.headers(header or ()),
        run_at=_run_at(ctx, run_at, delay),
    )
    if bulk_file is not None:
        _refuse_beside_bulk(data=data, task_id=task_id, unique_key=unique_key)
        defaults = _only_given(topic=topic, **asked)
        bulk.enqueue(ctx, bulk_file, defaults)
        return
    if topic is None:
        raise BadArgument.of("TOPIC", "is required")
    if task_id is not None:
        asked["task_id"] = reading.task_id(task_id, "--task-id")
    if unique_key is not None:
        asked["unique_key"] = unique_key
    payload = None if data is None else reading.data(data)
    with reach.store(ctx) as store:
        _tell(ctx, store.create_task(topic, payload, **asked))


def _only_given(**values: Any) -> Any:
    return {name: value for name, value in values.items() if value is not None}


def _run_at(ctx: typer.Context, run_at: str | None, delay: str | None) -> datetime | None:
    if run_at is not None and delay is not None:
        raise BadArgument.of("--delay", "and --run-at exclude each other")
    if run_at is not None:
        return reading.instant(run_at, "--run-at")
    if delay is None:
        return None
    wait = durations.delay(reading.duration(delay, "--delay"), "--delay")
    schema = options.schema_name(ctx)
    with options.database(ctx) as url:
        return reach.database_clock(url, schema) + wait


def _refuse_beside_bulk(**values: object) -> None:
    for name, value in values.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise BadArgument.of(option, "stands in the lines of the file, not beside --bulk")


def _tell(ctx: typer.Context, made: CreatedTask) -> None:
    task_id = str(made.task_id)
    if reach.as_json(ctx):
        task = made.task
        facts = {
            "task_id": task_id, "created": made.created, "topic": task.topic,
            "kind": task.kind, "status": task.status, "run_at": task.run_at,
            "record_ver": task.record_ver,
        }  # fmt: skip
        answer(facts, as_json=True)
        return
    answer({}, task_id, as_json=False)
    if not made.created:
        note("sokka: nothing created: this unfinished task holds the unique key")

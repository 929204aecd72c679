"""``sokka task``: look at tasks, and steer them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any
from uuid import UUID

import typer

from sokka_pg.cli import completing, options, reach, reading, showing, trees
from sokka_pg.cli.output import EXIT_CODES, answer, note
from sokka_pg.errors import BadArgument, NoTaskFound
from sokka_pg.model import Join, Page, Status, Task, TaskSummary, TreeNode
from sokka_pg.store import PgTaskStore

app = typer.Typer(
    help="Look at tasks, and steer them.",
    epilog="Examples: sokka task list --status failed --since 1h · sokka task show TASK_ID · "
    f"sokka task cancel TASK_ID --reason 'sent twice'. {EXIT_CODES}",
    no_args_is_help=True,
)

PAGE = 10_000
"""Tasks per call for --all: each call sorts all live tasks, so few large ones."""
MOST_IN_TREE = 1_000
"""Tasks of a tree in all: more can be read by nobody."""

TaskId = Annotated[
    str,
    typer.Argument(
        metavar="TASK_ID", help="The whole UUID.", autocompletion=completing.task_ids,
        show_default=False,
    ),
]
Reason = Annotated[str | None, typer.Option("--reason", help="Kept with the act.")]


@app.command(
    "list",
    epilog="Examples: sokka task list --topic mail --status failed --status running · "
    "sokka task list --since 1h --json · sokka task list --all --json | wc -l",
)
def list_(
    ctx: typer.Context,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", autocompletion=completing.topics)
    ] = None,
    status: Annotated[
        list[Status] | None, typer.Option("--status", "-s", help="May be repeated.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", "-k")] = None,
    sub_topic: Annotated[str | None, typer.Option("--sub-topic")] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="UUID")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Changed at or after: ISO 8601, or 1h for an hour ago."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Changed at or before.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=10_000, help="Tasks on a page.")
    ] = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where an earlier page ended.")
    ] = None,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", help="By time of change, upwards.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Page on to the end; with --json one object per line.")
    ] = False,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """List tasks without their payloads, newest change first."""
    filters: dict[str, Any] = {
        "topic": topic,
        "status": [each.value for each in status] if status else None,
        "kind": kind,
        "sub_topic": sub_topic,
        "task_group_id": None if group is None else reading.task_id(group, "--group"),
        "from": None if since is None else reading.moment(since, "--since"),
        "to": None if until is None else reading.moment(until, "--until"),
    }
    with reach.store(ctx) as store:

        def page(after: str | None, most: int) -> Page[TaskSummary]:
            return store.list_tasks(filters, after, most, descending=not oldest_first)

        if everything:
            _print_all(ctx, page, cursor)
        else:
            _print_page(ctx, page(cursor, limit))


def _print_page(ctx: typer.Context, found: Page[TaskSummary]) -> None:
    if reach.as_json(ctx):
        answer({"tasks": found.items, "cursor": found.cursor}, as_json=True)
        return
    if not found.items:
        note("sokka: no task matches")
        return
    showing.tasks(found.items)
    if found.cursor is not None:
        note(f"more: add --cursor {found.cursor} (or --all)")


def _print_all(ctx: typer.Context, page: Any, cursor: str | None) -> None:
    empty = True
    for found in _pages(page, cursor):
        empty = empty and not found
        if reach.as_json(ctx):
            for each in found:
                answer(each, as_json=True)
        elif found:
            showing.tasks(found)
    if empty and not reach.as_json(ctx):
        note("sokka: no task matches")


def _pages(page: Any, cursor: str | None) -> Iterator[list[TaskSummary]]:
    while True:
        found = page(cursor, PAGE)
        yield found.items
        cursor = found.cursor
        if cursor is None:
            return


@app.command(epilog="Examples: sokka task show TASK_ID · sokka task show TASK_ID --json | jq .data")
def show(
    ctx: typer.Context,
    task_id: TaskId,
    full: Annotated[bool, typer.Option("--full", help="Cut no payload.")] = False,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Show everything about one task, live or finished."""
    with reach.store(ctx) as store:
        found = _found(store, task_id)
        join = store.join(found.task_id)
        stream = store.stream(found.task_id)
        steps = store.steps(found.task_id)
    if reach.as_json(ctx):
        answer(
            {**showing.fields(found), "join": join, "stream": stream, "steps": steps},
            as_json=True,
        )
    else:
        most = None if full else showing.MOST_SHOWN
        showing.task(found, most, join, stream)
        showing.steps(steps, most)


@app.command(
    epilog="Examples: sokka task tree TASK_ID · sokka task tree TASK_ID --max-children 200 · "
    "sokka task list --group JOIN_ID --status failed (the candidates of one fan-out)"
)
def tree(
    ctx: typer.Context,
    task_id: TaskId,
    max_children: Annotated[
        int,
        typer.Option(
            "--max-children", min=1, max=MOST_IN_TREE, help="Children shown of each task."
        ),
    ] = 20,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a task and the tasks below it; of fan-outs, how far they are."""
    wanted = reading.task_id(task_id)
    with reach.store(ctx) as store:
        nodes = store.task_tree(wanted, MOST_IN_TREE, max_children)
        joins = _joins(store, nodes)
    if reach.as_json(ctx):
        answer({"tasks": nodes, "joins": list(joins.values())}, as_json=True)
        return
    trees.draw(nodes, joins)
    if sum(node.children for node in nodes) > len(nodes) - 1:
        note(
            "sokka: not all of it is shown: --max-children shows more, "
            f"up to {MOST_IN_TREE} tasks in all"
        )


def _joins(store: PgTaskStore, nodes: Sequence[TreeNode]) -> dict[UUID, Join]:
    """The fan-outs among these."""
    found = (store.join(node.task_id) for node in nodes if node.policy is not None)
    return {join.task_id: join for join in found if join is not None}


@app.command(epilog="Example: sokka task history TASK_ID")
def history(
    ctx: typer.Context,
    task_id: TaskId,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what happened to a task, in order, with the tokens of its leases."""
    wanted = reading.task_id(task_id)
    with reach.store(ctx) as store:
        events = store.history(wanted)
    if not events:
        raise _unknown(wanted)
    if reach.as_json(ctx):
        answer({"task_id": wanted, "events": events}, as_json=True)
    else:
        showing.history(events)


@app.command(epilog="Example: sokka task cancel TASK_ID --reason 'sent twice'")
def cancel(
    ctx: typer.Context,
    task_id: TaskId,
    reason: Reason = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Cancel a task: at once if it waits, by a request to its owner if it runs."""
    wanted = reading.task_id(task_id)
    with reach.store(ctx) as store:
        done = store.cancel(wanted, reason)
    said = {
        "cancelled": "cancelled",
        "requested": "it is running: its owner has been asked to stop",
        "already_requested": "its owner had been asked to stop before",
        "already_done": f"nothing to cancel: it is {done.status} already",
    }[done.outcome]
    _tell(ctx, wanted, done, said)


@app.command(
    epilog="Examples: sokka task revoke TASK_ID --record-ver 7 (from task show) · "
    "sokka task revoke TASK_ID --force"
)
def revoke(
    ctx: typer.Context,
    task_id: TaskId,
    record_ver: Annotated[
        int | None,
        typer.Option("--record-ver", help="The version you looked at; refused if it changed."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Whatever the version: reads the current one.")
    ] = False,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Take a running or snoozed task from its owner, whose writes are refused from then on."""
    wanted = reading.task_id(task_id)
    if force == (record_ver is not None):
        raise BadArgument.of(
            "--record-ver", "or --force is needed, not both (sokka task show prints record_ver)"
        )
    with reach.store(ctx) as store:
        version = record_ver if record_ver is not None else _found(store, task_id).record_ver
        done = store.revoke_lease(wanted, version)
    _tell(ctx, wanted, done, f"taken back: it is {done.status} again")


@app.command(epilog="Example: sokka task resubmit TASK_ID --reason 'the mail server is back'")
def resubmit(
    ctx: typer.Context,
    task_id: TaskId,
    reason: Reason = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Make a new task from a finished one, and print its id."""
    wanted = reading.task_id(task_id)
    with reach.store(ctx) as store:
        made = store.resubmit(wanted, reason)
    facts = {"task_id": made.task_id, "resubmit_of": wanted, "status": made.task.status}
    answer(facts, str(made.task_id), as_json=reach.as_json(ctx))


def _found(store: PgTaskStore, task_id: str) -> Task:
    wanted = reading.task_id(task_id)
    found = store.task(wanted)
    if found is None:
        raise _unknown(wanted)
    return found


def _unknown(wanted: object) -> NoTaskFound:
    return NoTaskFound(
        f"no task {wanted}, live or finished (within retention)", {"task_id": str(wanted)}
    )


def _tell(ctx: typer.Context, task_id: object, done: Any, said: str) -> None:
    facts = {"task_id": task_id, "status": done.status, "record_ver": done.record_ver}
    if hasattr(done, "outcome"):
        facts["outcome"] = done.outcome
    answer(facts, f"{task_id}: {said}", as_json=reach.as_json(ctx))

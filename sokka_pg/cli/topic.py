"""``sokka topic``: look at topics, and steer them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from sokka_pg.cli import completing, options, reach, reading, showing
from sokka_pg.cli.output import EXIT_CODES, answer, note
from sokka_pg.errors import BadArgument

app = typer.Typer(
    help="Look at topics, and steer them.",
    epilog="Examples: sokka topic list · sokka topic pause mail --reason 'server down' · "
    f"sokka topic set mail --lease 2m --retention 90d. {EXIT_CODES}",
    no_args_is_help=True,
)

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", autocompletion=completing.topics, show_default=False),
]
DEFAULT = "default"


@app.command("list", epilog="Examples: sokka topic list · sokka topic list mail --json")
def list_(
    ctx: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Only this one.", autocompletion=completing.topics,
            show_default=False,
        ),
    ] = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how much waits, runs and sleeps in each topic, and what is set for it."""
    with reach.store(ctx) as store:
        found = store.topics(topic)
    if reach.as_json(ctx):
        answer({"topics": found}, as_json=True)
    elif found:
        showing.topics(found)
    else:
        note("sokka: no topic has a live task or a setting")


@app.command(epilog="Example: sokka topic pause mail --reason 'the mail server is down'")
def pause(
    ctx: typer.Context,
    topic: Topic,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the act.")] = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Hand out nothing of a topic from now on; what runs goes on."""
    with reach.store(ctx) as store:
        state = store.pause_topic(topic, reason)
    facts = {"topic": state.topic, "paused_at": state.paused_at}
    answer(facts, f"{state.topic} is paused", as_json=reach.as_json(ctx))


@app.command(epilog="Example: sokka topic resume mail")
def resume(
    ctx: typer.Context,
    topic: Topic,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Lift the pause of a topic."""
    with reach.store(ctx) as store:
        state = store.resume_topic(topic)
    facts = {"topic": state.topic, "paused_at": state.paused_at}
    answer(facts, f"{state.topic} is not paused", as_json=reach.as_json(ctx))


@app.command(
    "set",
    epilog="Examples: sokka topic set mail --lease 2m · sokka topic set mail --retention 90d "
    "· sokka topic set mail --lease default",
)
def set_(
    ctx: typer.Context,
    topic: Topic,
    lease: Annotated[
        str | None,
        typer.Option("--lease", metavar="TIME|default", help="How long a lease is, unless named."),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention", metavar="TIME|default", help="How long finished tasks are kept."
        ),
    ] = None,
    database_url: options.DatabaseUrl = None,
    schema: options.Schema = None,
    as_json: options.AsJson = False,
) -> None:
    """Set a topic's own lease and retention; what is not named stays as it is."""
    if lease is None and retention is None:
        raise BadArgument.of("--lease", "or --retention is needed")
    with reach.store(ctx) as store:
        before = next(iter(store.topics(topic)), None)
        state = store.set_topic(
            topic,
            lease=_wanted(lease, "--lease", before.lease if before else None),
            retention=_wanted(retention, "--retention", before.retention if before else None),
        )
    facts = {"topic": state.topic, "lease": state.lease, "retention": state.retention}
    said = f"{topic}: lease {_shown(state.lease)}, finished tasks kept {_shown(state.retention)}"
    answer(facts, said, as_json=reach.as_json(ctx))


def _wanted(text: str | None, argument: str, before: timedelta | None) -> timedelta | None:
    if text is None:
        return before
    return None if text == DEFAULT else reading.duration(text, argument)


def _shown(length: timedelta | None) -> str:
    return "as everywhere" if length is None else showing.span(length)

"""What the shell offers for a half-typed topic or task id.

A completion must be quick and quiet: it asks only a database that the line or
the environment names, waits a moment for it, reads a bounded piece of an index,
and offers nothing where anything goes wrong.
"""

from __future__ import annotations

import re
from contextlib import closing

import psycopg
import typer

from sokka_pg import settings
from sokka_pg.cli import options
from sokka_pg.cli.output import printable
from sokka_pg.errors import SokkaError
from sokka_pg.schema import render

_LIMITS = "-c statement_timeout=1000 -c default_transaction_read_only=on"
_ANY_PREFIX = re.compile(r"[0-9a-f-]{0,36}")

# Hops from topic to topic along the index: its cost is the number of topics.
_TOPICS = """
    with recursive hop as (
        (select topic from sokka.tasks where status = 'starting' order by topic limit 1)
        union all
        select (select t.topic from sokka.tasks t
                 where t.status = 'starting' and t.topic > h.topic order by t.topic limit 1)
          from hop h where h.topic is not null
    )
    select topic from (
        (select topic from hop where topic is not null limit 200)
        union select topic from sokka.topics
    ) known
    where starts_with(topic, %(prefix)s) order by topic limit 50
"""
_SCHEDULES = """
    select name from sokka.all_schedules where starts_with(name, %(prefix)s) order by name limit 50
"""
_TASK_IDS = """
    select task_id::text from (
        (select task_id from sokka.tasks
          where task_id between %(first)s and %(last)s order by task_id desc limit 20)
        union
        (select task_id from sokka.finished_tasks
          where task_id between %(first)s and %(last)s order by task_id desc limit 20)
    ) found order by task_id desc limit 20
"""


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin like this."""
    return _ask(ctx, _TOPICS, {"prefix": incomplete})


def schedules(ctx: typer.Context, incomplete: str) -> list[str]:
    """Schedules whose name begins like this."""
    return _ask(ctx, _SCHEDULES, {"prefix": incomplete})


def task_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest tasks whose id begins like this."""
    prefix = incomplete.lower()
    if not _ANY_PREFIX.fullmatch(prefix):
        return []
    first, last = (
        prefix + pattern[len(prefix) :]
        for pattern in (
            "00000000-0000-0000-0000-000000000000",
            "ffffffff-ffff-ffff-ffff-ffffffffffff",
        )
    )
    return _ask(ctx, _TASK_IDS, {"first": first, "last": last})


def _ask(ctx: typer.Context, query: str, values: dict[str, str]) -> list[str]:
    try:
        target = settings.lookup(options.given(ctx, "database_url"))
        if target is None:
            return []
        text = render(query, options.schema_name(ctx)).encode()
        with closing(
            psycopg.connect(target.conninfo, connect_timeout=2, options=_LIMITS, autocommit=True)
        ) as connection:
            found = [str(value) for (value,) in connection.execute(text, values)]
    except (psycopg.Error, SokkaError, ValueError):
        return []
    return [text for text in found if text == printable(text)]

"""A stream whose consumer may die and start anew: it misses nothing, and doubles nothing.

    export DATABASE_URL=postgresql://localhost/shop     (after: sokka migrate)
    python examples/stream_restart.py produce           (prints the id of the stream)
    python examples/stream_restart.py consume ID        (elsewhere; kill it, start it again)

The producer tells of each function of Python's own sources. It is never more than
100 items ahead: while nobody reads, it waits.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psycopg

from sokka_pg import SyncTaskContext
from sokka_pg.workload import TaskSubmission, WorkloadScheduler

TABLE = """
    create table if not exists received (
        stream uuid, seq bigint, file text, line integer, name text, primary key (stream, seq))
"""


def functions() -> Iterator[dict[str, object]]:
    """The items, in an order that is the same every time."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            if found := re.match(r"\s*(?:async )?def (\w+)", line):
                yield {"file": path.name, "line": number, "name": found[1]}


def producer(context: SyncTaskContext) -> Iterator[dict[str, object]]:
    """What it yields is stored before it is asked for more. Were it started anew, it
    would go on after what is stored."""
    yield from islice(functions(), context.stream_position(), None)


def produce(url: str) -> None:
    with WorkloadScheduler(url) as scheduler:
        stream = scheduler.stream(TaskSubmission(kind="functions"), producer, max_items=100)
        print(stream.task_id, flush=True)
        scheduler.attach(stream.task_id).result()


def consume(url: str, stream_id: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection, WorkloadScheduler(url) as scheduler:
        connection.execute(TABLE)
        # Where to go on is kept with the rows: what was stored is not asked for again.
        kept = connection.execute("select max(seq) from received where stream = %s", (stream_id,))
        stream = scheduler.attach_stream(stream_id, after=kept.fetchall()[0][0] or 0)
        for item in stream:
            row = (stream_id, stream.position, item["file"], item["line"], item["name"])
            connection.execute("insert into received values (%s, %s, %s, %s, %s)", row)
        print(f"the end, after item {stream.position}")


def main(command: str, *stream_id: str) -> int:
    url = os.environ["DATABASE_URL"]
    if command == "produce":
        produce(url)
    else:
        consume(url, *stream_id)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Import a CSV file so that each row arrives once, however often this is killed.

    export DATABASE_URL=postgresql://localhost/shop     (after: sokka migrate)
    python examples/resumable_import.py FILE.csv        (two columns: name, amount)

Kill it, also with -9, and start it again: it goes on after the last rows that it
committed, as soon as the lease of the one that died is over. Started again when all
is done, it does nothing.
"""

from __future__ import annotations

import csv
import os
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import psycopg

from sokka_pg import SyncTaskContext
from sokka_pg.errors import TaskAlreadyExists
from sokka_pg.workload import TaskSubmission, WorkloadScheduler

ROWS_AT_ONCE = 100
TABLE = "create table if not exists imported (file text, name text, amount bigint)"


def import_rows(context: SyncTaskContext) -> dict[str, int]:
    """Rows and the point up to which they are there go into one commit, under the lease."""
    file = context.task.data["file"]
    done = context.last_checkpoint or 0
    with Path(file).open(newline="", encoding="utf-8") as lines:
        rows = islice(csv.reader(lines), done, None)
        while batch := list(islice(rows, ROWS_AT_ONCE)):
            with context.transaction() as fenced, fenced.connection.cursor() as cursor:
                cursor.executemany(
                    "insert into imported values (%s, %s, %s)",
                    [(file, name, int(amount)) for name, amount in batch],
                )
                done += len(batch)
                context.checkpoint(done, connection=fenced.connection)
            context.progress({"message": f"{done} rows"})
    return {"rows": done}


def main(file: Path) -> int:
    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
    task_id = uuid5(NAMESPACE_URL, file.resolve().as_uri())
    submission = TaskSubmission(
        kind="import", payload={"file": str(file.resolve())}, task_id=task_id
    )
    # With an id of its own a scheduler takes up what its predecessor left.
    with WorkloadScheduler(url, scheduler_id="imports", lease=3) as scheduler:
        with suppress(TaskAlreadyExists):  # begun before: it goes on from its checkpoint
            scheduler.submit_one_way(submission, import_rows)
        print(f"{scheduler.attach(task_id).result()['rows']} rows imported")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

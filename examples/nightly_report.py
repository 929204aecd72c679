"""A report made by the clock, about the queue itself: what the tasks of a day did.

    export DATABASE_URL=postgresql://localhost/shop     (after: sokka migrate)
    python examples/nightly_report.py                   (any number of them)
    sokka schedule preview report                       (when it is due)
    sokka schedule trigger report                       (one more, now)

Each night at two, Berlin time, one of the running processes counts the events of the
day before, from the history that the queue keeps of every task. Were all processes
down at two, the report is made when the first is up again.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import psycopg

from sokka_pg import Sokka, SyncTaskContext

BERLIN = ZoneInfo("Europe/Berlin")
TABLE = """
    create table if not exists reports (
        day date, topic text, event text, events bigint, primary key (day, topic, event))
"""
# Made again for the same day, a report replaces the first one.
FORGET = "delete from reports where day = %s"
REPORT = """
    insert into reports
    select %s, topic, event, count(*)
      from sokka.task_history join sokka.all_tasks using (task_id)
     where at >= %s and at < %s and topic <> 'reports'
     group by topic, event
"""

app = Sokka(os.environ.get("DATABASE_URL"), name="nightly report")


@app.periodic("0 0 2 * * *", tz="Europe/Berlin", topic="reports", retry=5)
def report(context: SyncTaskContext, days_back: int = 1) -> None:
    """Count the events of one day, in the transaction that ends this task."""
    due = context.fire_at or context.task.created_at
    day = due.astimezone(BERLIN).date() - timedelta(days=days_back)
    # By the calendar: where the clock is turned, a day has 23 or 25 hours.
    start, end = (datetime.combine(day + timedelta(days=n), time(), BERLIN) for n in (0, 1))
    with context.transaction(terminate=True) as fenced:
        fenced.connection.execute(FORGET, (day,))
        fenced.connection.execute(REPORT, (day, start, end))
        fenced.result = day.isoformat()


def main() -> int:
    with app.lock("reports", wait=60), psycopg.connect(app.database_url) as connection:
        connection.execute(TABLE)
    app.run_worker()
    app.store.close()
    app.locker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Three replicas, one that works: when the holder dies, another takes over.

    export DATABASE_URL=postgresql://localhost/shop     (after: sokka migrate)
    python examples/leased_singleton.py 1000            (in three terminals; kill one)

Numbers 1 to 1000, each with its square, are written in order by whoever holds the
lock. Each row is written under the lock, so none is missing, doubled or written by
a holder whose time was over.
"""

from __future__ import annotations

import os
import sys

import psycopg

from sokka_pg import Sokka
from sokka_pg.errors import LeaseLost
from sokka_pg.scheduler import KeptLease

TABLE = """
    create table if not exists squares (
        number bigint primary key, square bigint, token bigint, process integer)
"""
NEXT = """
    insert into squares
    select n, n * n, %s, %s from (select coalesce(max(number), 0) + 1 as n from squares) last
     where n <= %s returning number
"""


def write(connection: psycopg.Connection, lease: KeptLease, most: int) -> None:
    """Write squares until all are there. Raises LeaseLost when somebody took over."""
    while True:
        with connection.transaction():
            lease.assert_held(connection)
            row = connection.execute(NEXT, (lease.token, os.getpid(), most)).fetchone()
        if row is None:
            return


def main(most: str) -> int:
    app = Sokka(os.environ["DATABASE_URL"])
    with psycopg.connect(app.database_url, autocommit=True) as connection:
        while True:
            try:
                # free at the latest two seconds after its holder's death
                with app.lock("squares", ttl=2, wait=3600) as lease:
                    connection.execute(TABLE)
                    print(f"holds the lock, token {lease.token}", flush=True)
                    write(connection, lease, int(most))
                break
            except LeaseLost as lost:
                print(f"lost it: {lost}", flush=True)
    app.locker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

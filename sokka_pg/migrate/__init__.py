"""Bring a database's schema to a revision: the API behind ``sokka migrate``.

Each run is one transaction: all of it, or nothing. Two runs at once are safe,
within one database and across machines: the second waits for the first and
then finds nothing left to do. No run waits long for a lock that the queue's
users hold, since everyone would queue up behind it: after ``lock_timeout`` it
gives up its own locks, pauses, and tries again.
"""

from sokka_pg.migrate.checks import Check, check, current, fence_only
from sokka_pg.migrate.hosting import ignore_name, ignore_object, version_location
from sokka_pg.migrate.runs import Moved, Run, downgrade, move, upgrade
from sokka_pg.migrate.scripts import fence_sql, revision, revision_below, revisions, sql

__all__ = [
    "Check",
    "Moved",
    "Run",
    "check",
    "current",
    "downgrade",
    "fence_only",
    "fence_sql",
    "ignore_name",
    "ignore_object",
    "move",
    "revision",
    "revision_below",
    "revisions",
    "sql",
    "upgrade",
    "version_location",
]

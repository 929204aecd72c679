"""Bring a database's schema to a revision: the API behind ``sokka migrate``.

Each run is one transaction: all of it, or nothing. Two runs at once are safe,
within one database and across machines: the second waits for the first and
then finds nothing left to do. No run waits long for a lock that the queue's
users hold, since everyone would queue up behind it: after ``lock_timeout`` it
gives up its own locks, pauses, and tries again.

Names are imported when they are first used: alembic and SQLAlchemy take 0.3 s to
load, and most commands need neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sokka_pg.migrate.checks import Check, check, current, fence_only
    from sokka_pg.migrate.hosting import ignore_name, ignore_object, version_location
    from sokka_pg.migrate.runs import Moved, Run, downgrade, move, upgrade
    from sokka_pg.migrate.scripts import fence_sql, revision, revision_below, revisions, sql

_HOMES = {
    "Check": "checks", "check": "checks", "current": "checks", "fence_only": "checks",
    "ignore_name": "hosting", "ignore_object": "hosting", "version_location": "hosting",
    "Moved": "runs", "Run": "runs", "downgrade": "runs", "move": "runs", "upgrade": "runs",
    "fence_sql": "scripts", "revision": "scripts", "revision_below": "scripts",
    "revisions": "scripts", "sql": "scripts",
}

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


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)

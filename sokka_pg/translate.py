"""Driver errors become ours, here and nowhere else, by their SQLSTATE.

Messages never carry a connection string: what libpq says of a server names
host, port and user; what it says of a malformed string quotes it, so that is
not passed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from sokka_pg.errors import (
    BY_SQLSTATE,
    BadArgument,
    DatabaseUnavailable,
    SchemaMismatch,
    SokkaError,
    TransactionConflict,
    UnexpectedDatabaseError,
    UsageError,
)

CONFLICTS = frozenset({"40001", "40P01"})
_LOST_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25006"})
_LOST_CLASSES = frozenset({"08", "53", "58", "F0"})
_MISSING = frozenset({"3F000", "42883", "42P01", "42703", "42704"})


@dataclass(frozen=True, slots=True)
class Report:
    """What any driver says of a failed statement."""

    sqlstate: str | None
    message: str
    detail: str | None


def unavailable(sqlstate: str | None) -> bool:
    """Whether this SQLSTATE means that the connection or its server is of no use."""
    return sqlstate is not None and (sqlstate in _LOST_STATES or sqlstate[:2] in _LOST_CLASSES)


def checked_conninfo(database_url: str) -> dict[str, Any]:
    """The parts of a connection string. Raises BadArgument, without quoting it."""
    if not isinstance(database_url, str):
        raise BadArgument.of("database_url", "must be a str", database_url)
    # The names that SQLAlchemy users know.
    for prefix in ("postgresql+psycopg://", "postgresql+psycopg_async://"):
        if database_url.startswith(prefix):
            database_url = "postgresql://" + database_url[len(prefix) :]
    try:
        return dict(conninfo_to_dict(database_url))
    except psycopg.Error:
        raise BadArgument.of(
            "database_url", "is neither a postgresql:// URL nor a key=value string"
        ) from None


@contextmanager
def translated(*, sent: bool = True) -> Iterator[None]:
    """Raises ours for a driver's error inside; ``sent`` is False while connecting."""
    try:
        yield
    except SokkaError:
        raise
    except Exception as error:
        found = from_driver(error, sent=sent)
        if found is None:
            raise
        raise found from error


def from_driver(error: BaseException, *, sent: bool = True) -> SokkaError | None:
    """Ours for an error of psycopg, its pool, or a DBAPI driver under SQLAlchemy;
    None for anything else."""
    if isinstance(error, PoolTimeout | TooManyRequests | PoolClosed):
        return DatabaseUnavailable(
            "no database connection in time: all are in use, or the server cannot be"
            f" reached ({error})",
            {"sent": False},
        )
    if isinstance(error, psycopg.Error):
        return from_psycopg(error, sent=sent)
    original = getattr(error, "orig", None)
    if isinstance(original, psycopg.Error):
        return from_psycopg(original, sent=sent)
    if isinstance(original, BaseException) and hasattr(error, "connection_invalidated"):
        return _from_report(
            _report_of(original), sent=sent, broken=bool(error.connection_invalidated)
        )
    return None


def from_psycopg(error: psycopg.Error, *, sent: bool = True) -> SokkaError:
    """Ours for an error of psycopg."""
    report = Report(
        error.sqlstate,
        error.diag.message_primary or str(error).strip() or type(error).__name__,
        error.diag.message_detail,
    )
    broken = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return _from_report(report, sent=sent, broken=broken and error.sqlstate is None)


def from_connecting(error: psycopg.Error) -> SokkaError:
    """Ours for an error of psycopg while connecting. No wait mends a pooler that was
    not told of, so that is a UsageError."""
    if "unsupported startup parameter" in str(error):
        return UsageError(
            "the server is a pooler that accepts no session settings: use"
            " ConnectionOptions(pooler=True), or --pooler of `sokka worker`"
        )
    return from_psycopg(error, sent=False)


def _report_of(original: BaseException) -> Report:
    """From psycopg2 (pgcode, diag), asyncpg (sqlstate, cause.detail) or pg8000 (a dict)."""
    fields = original.args[0] if original.args and isinstance(original.args[0], dict) else {}
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    diag = getattr(original, "diag", None)
    cause = original.__cause__
    detail = getattr(diag, "message_detail", None) or getattr(cause, "detail", None)
    message = getattr(diag, "message_primary", None) or getattr(cause, "message", None)
    return Report(
        state or fields.get("C"),
        str(message or fields.get("M") or original).strip(),
        detail or fields.get("D"),
    )


def _from_report(report: Report, *, sent: bool, broken: bool) -> SokkaError:
    state = report.sqlstate
    if state in BY_SQLSTATE:
        return BY_SQLSTATE[state](report.message, _json_object(report.detail))
    if broken or unavailable(state):
        return DatabaseUnavailable(report.message, {"sqlstate": state, "sent": sent})
    if state in CONFLICTS:
        return TransactionConflict(report.message, {"sqlstate": state})
    if state in _MISSING:
        return SchemaMismatch(
            f"the schema is missing or of another version, run `sokka migrate`: {report.message}",
            {"sqlstate": state},
        )
    return UnexpectedDatabaseError(report.message, {"sqlstate": state})


def _json_object(detail: str | None) -> dict[str, Any]:
    try:
        found = json.loads(detail or "{}")
    except ValueError:
        # PostgreSQL's own 55P03 and 22023 carry prose, or nothing.
        return {"server_detail": detail}
    return found if isinstance(found, dict) else {"server_detail": detail}

"""Which database: the one order in which every door looks for it.

A URL or connection string is also the likeliest place for a password, so this
module holds the one redactor that every message goes through.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from sokka_pg import schema
from sokka_pg.errors import UsageError

_URL_VARIABLES = ("SOKKA_DATABASE_URL", "DATABASE_URL")
# The ones that say where to go; PGPASSWORD or PGSSLMODE alone name no database.
_LIBPQ_VARIABLES = ("PGSERVICE", "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER")
_SCHEME = re.compile(r"\s*(?P<dialect>[A-Za-z][\w.]*)(?P<driver>\+\w+)?://")
_SECRETS = (
    # user:password@; greedy up to the last @, for passwords that hold one
    (re.compile(r"(://[^\s:/@?]*:)\S*@"), r"\1***@"),
    (
        re.compile(r"(?i)\b((?:ssl)?password|passfile)(\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s&]+)"),
        r"\1\2***",
    ),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A database to connect to, and which setting named it.

    ``conninfo`` is what libpq takes: a URL, key=value pairs, or the empty
    string where the ``PG*`` variables say it all.
    """

    conninfo: str
    source: str


def lookup(explicit: str | None = None, environ: Mapping[str, str] | None = None) -> Target | None:
    """The database asked for, or None where nothing names one.

    The order: ``explicit``, then ``SOKKA_DATABASE_URL``, ``DATABASE_URL``, then
    libpq's ``PG*`` variables. An empty variable counts as unset. Raises
    :class:`UsageError` for text that is no connection string of PostgreSQL.
    """
    env = os.environ if environ is None else environ
    if explicit is not None:
        return Target(normalise(explicit, "--database-url"), "--database-url")
    for name in _URL_VARIABLES:
        if env.get(name):
            return Target(normalise(env[name], name), name)
    if any(env.get(name) for name in _LIBPQ_VARIABLES):
        return Target("", "PG* variables")
    return None


def schema_name(explicit: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """The schema asked for: ``explicit``, ``SOKKA_SCHEMA``, else ``sokka``."""
    env = os.environ if environ is None else environ
    return schema.check_name(explicit or env.get("SOKKA_SCHEMA") or schema.DEFAULT)


def normalise(url: str, source: str = "database URL") -> str:
    """``url`` as libpq takes it; a driver named in SQLAlchemy's way is dropped.

    Accepts ``postgresql://``, ``postgres://``, either with ``+driver``, and
    key=value pairs. Raises :class:`UsageError`, which never repeats the text.
    """
    if not url.strip():
        raise UsageError(f"{source}: is empty")
    found = _SCHEME.match(url)
    if found:
        if found["dialect"].lower() not in ("postgresql", "postgres"):
            raise UsageError(f"{source}: must begin with postgresql://")
        url = f"postgresql://{url[found.end() :].strip()}"
    try:
        conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        raise UsageError(
            f"{source}: is neither a URL (postgresql://user@host:port/database) "
            "nor key=value pairs (host=... dbname=...)"
        ) from None
    return url


def redact(text: str) -> str:
    """``text`` with the password of every URL and key=value pair replaced by ``***``."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text

"""A call on the database, before anything is sent.

A ``Statement`` is one SQL statement without its schema and parameter style; a
``Call`` adds parameters and the way to read the answer. Everything crosses the
border in forms that no session setting and no driver reads differently:
parameters as text under an explicit cast, JSON as text, intervals as seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar
from uuid import UUID

from sokka_pg import payload
from sokka_pg.errors import BadArgument, Refused
from sokka_pg.model import Status

T = TypeVar("T")
Row = Sequence[Any]
Reader = Callable[[Any], Any]

SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_STATUSES = {status.value: status for status in Status}


def checked_schema(schema: str) -> str:
    """The schema's name, if it is one that may stand in SQL. Raises BadArgument."""
    if not isinstance(schema, str) or not SCHEMA_NAME.fullmatch(schema):
        raise BadArgument.of(
            "schema", "must be 1 to 40 of a-z, 0-9 and _, not starting with a digit", schema
        )
    return schema


@dataclass(frozen=True)
class Column:
    """One output column: how it is selected and how its value is read.

    ``read`` serves our own connections, whose session settings we know;
    ``read_foreign`` any driver and any session. None: the value as it is. SQL NULL
    is None without being read.
    """

    expression: str
    read: Reader | None = None
    read_foreign: Reader | None = None


@dataclass(frozen=True, eq=False)
class Statement:
    """``select columns from schema.source(arguments)``, or from a view."""

    source: str
    columns: tuple[Column, ...]
    arguments: tuple[tuple[str, str], ...] = ()
    """Name (without ``p_``) and SQL type of each argument, in the order sent."""
    view: bool = False
    suffix: str = ""
    """What follows the source; ``{name}`` stands for an argument."""

    def text(self, schema: str, style: str) -> str:
        """The SQL for one schema and one parameter style, a template with ``{}``."""
        return _render(self, checked_schema(schema), style)

    @cached_property
    def _readers(self) -> tuple[tuple[int, Reader], ...]:
        return _only(column.read for column in self.columns)

    @cached_property
    def _foreign_readers(self) -> tuple[tuple[int, Reader], ...]:
        return _only(column.read_foreign for column in self.columns)

    def read(self, rows: Iterable[Row], *, foreign: bool) -> list[Any]:
        """Raw rows as values of ``sokka_pg.model``."""
        readers = self._foreign_readers if foreign else self._readers
        return [_read(row, readers) for row in rows] if readers else list(rows)


def _only(readers: Iterable[Reader | None]) -> tuple[tuple[int, Reader], ...]:
    """Those that read something, each with its place: most columns are taken as they are."""
    return tuple((i, reader) for i, reader in enumerate(readers) if reader is not None)


def _read(row: Row, readers: tuple[tuple[int, Reader], ...]) -> Row:
    values = list(row)
    for place, reader in readers:
        if values[place] is not None:
            values[place] = reader(values[place])
    return values


@dataclass(frozen=True)
class Call(Generic[T]):
    """One statement with its parameters, and what its rows mean.

    ``repeatable`` calls may be sent once more by a store whose connection broke
    before the answer came. Where the repeat is then refused, ``after_loss`` says
    whether the refusal proves the first try's success, and how to read the
    answer that was lost. ``binary``: ask for the answer in binary, which is quicker for
    many ids and times, where the connection is our own.
    """

    statement: Statement
    params: Mapping[str, str | None]
    decode: Callable[[list[Any]], T]
    repeatable: bool = False
    after_loss: Callable[[Refused], Call[T] | None] | None = None
    binary: bool = False


@lru_cache(maxsize=1024)
def _render(statement: Statement, schema: str, style: str) -> str:
    # First as text: a driver that looks at types (asyncpg) would want its own
    # Python class for an interval or an instant.
    casts = {
        name: f"cast(cast({style.format(name)} as text) as {kind})"
        for name, kind in statement.arguments
    }
    columns = ", ".join(column.expression for column in statement.columns)
    source = f"{schema}.{statement.source}"
    if not statement.view:
        source += "(" + ", ".join(f"p_{name} => {cast}" for name, cast in casts.items()) + ")"
    suffix = statement.suffix.format(**casts)
    return f"select {columns} from {source} r {suffix}".rstrip()  # noqa: S608


# How each kind of column travels.


def plain(name: str) -> Column:
    return Column(f"r.{name}")


def json_column(name: str) -> Column:
    return Column(f"cast(r.{name} as text)", payload.decode, payload.decode)


def seconds_column(name: str) -> Column:
    expression = f"cast(extract(epoch from r.{name}) as double precision)"
    return Column(expression, _timedelta, _timedelta)


def status_column(name: str) -> Column:
    return Column(f"r.{name}", _STATUSES.__getitem__, _STATUSES.__getitem__)


def uuid_column(name: str) -> Column:
    return Column(f"r.{name}", None, _uuid)


def instant_column(name: str) -> Column:
    return Column(f"r.{name}", None, _utc)


_JSON_FIELDS = frozenset(
    {
        "data", "headers", "retry", "progress", "checkpoint", "result", "error", "detail",
        "value", "item",
    }
)  # fmt: skip
_UUID_FIELDS = frozenset({"task_id", "task_group_id", "resubmit_of", "parent_task_id"})
_SECONDS_FIELDS = frozenset({"timeout", "lease", "retention"})


def column(name: str) -> Column:
    """The column of a field of the model, by its name."""
    if name in _JSON_FIELDS:
        return json_column(name)
    if name in _UUID_FIELDS:
        return uuid_column(name)
    if name in _SECONDS_FIELDS:
        return seconds_column(name)
    if name == "status":
        return status_column(name)
    return instant_column(name) if name == "at" or name.endswith("_at") else plain(name)


def columns_of(kind: type, *, inside: str = "") -> tuple[Column, ...]:
    """The columns that the fields of a model class read, in their order;
    ``inside`` names the composite column that holds them."""
    found = tuple(column(field.name) for field in fields(kind))
    if not inside:
        return found
    return tuple(
        Column(part.expression.replace("r.", f"(r.{inside}).", 1), part.read, part.read_foreign)
        for part in found
    )


# How parameters travel: as text, so that every driver sends them alike.


def array_text(values: Iterable[str | None]) -> str:
    """A one-dimensional PostgreSQL array literal."""
    return "{" + ",".join(map(_element, values)) + "}"


def plain_array_text(values: Iterable[object]) -> str:
    """An array literal of values whose text never needs quotes: ids, numbers."""
    return "{" + ",".join(map(str, values)) + "}"


def _element(value: str | None) -> str:
    if value is None:
        return "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _timedelta(value: Any) -> timedelta:
    return timedelta(seconds=float(value))


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def _utc(value: Any) -> datetime:
    if isinstance(value, datetime) and value.tzinfo is UTC:
        return value
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    if moment.tzinfo is None:
        raise TypeError("the driver dropped the time zone of a timestamptz")
    return moment.astimezone(UTC)

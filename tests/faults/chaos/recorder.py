"""Records what a process of the run calls, and what it is told.

Each call is two lines of a file, the first written before anything is sent, each by one
``os.write``: a process that is killed loses no call that may have happened. What is not
answered stays unknown. A call is filed as ``fail`` only where the server itself said, in
an error that ends no session, that it did nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from tests.faults.chaos.clock import monotonic_ns
from tests.faults.chaos.words import FAIL, INFO, OK

FOLDER = "SOKKA_CHAOS_HISTORY"
NAME = "SOKKA_CHAOS_NAME"
PID = "SOKKA_CHAOS_PID"

# After these a statement's fate is unknown: the session ended around it, or worse.
_UNKNOWN = frozenset({"57P01", "57P02", "57P05", "XX000", "40003"})
_COLUMN = re.compile(r"\br\.(\w+)\)?(?:\.(\w+))?")


def outcome_of(sqlstate: str | None, severity: str | None) -> str:
    """What an error says of its statement: ``fail`` (nothing was done), or ``info``."""
    if not sqlstate or severity not in (None, "ERROR"):
        return INFO
    if sqlstate in _UNKNOWN or sqlstate[:2] == "08":
        return INFO
    return FAIL


def outcome_of_error(error: BaseException) -> str:
    """The same of an exception, ours or the driver's."""
    said = _driver_error(error)
    if said is None:
        return INFO
    return outcome_of(said.sqlstate, said.diag.severity_nonlocalized)


def column_names(expressions: list[str]) -> list[str]:
    """The names of a statement's columns, by the expressions that select them."""
    found = []
    for n, expression in enumerate(expressions):
        seen = _COLUMN.search(expression)
        found.append((seen[2] or seen[1]) if seen else f"column{n}")
    return found


# --- the record ---------------------------------------------------------------


def append(path: Path) -> int:
    """A descriptor for whole lines, whoever else writes to the file."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


class Recorder:
    """The file of one process."""

    def __init__(self, folder: Path, name: str, pid: str) -> None:
        self.process = f"{name}-{os.getpid()}"
        self._file = append(folder / f"{self.process}.jsonl")
        self._lock = threading.Lock()
        self._calls = self._transactions = 0
        self._held: dict[int, Held] = {}
        self.write({"k": "process", "process": self.process, "pid": pid, "t": monotonic_ns()})

    def write(self, said: dict[str, Any]) -> None:
        line = json.dumps(said, default=_plain, separators=(",", ":"), ensure_ascii=True)
        os.write(self._file, line.encode() + b"\n")

    def invoke(self, connection: Any, function: str, arguments: dict[str, Any]) -> int:
        with self._lock:
            self._calls += 1
            number = self._calls
            held = self._held.get(id(connection))
        self.write({
            "k": "invoke", "n": number, "f": function, "a": arguments,
            "x": None if held is None else held.begun(), "t": monotonic_ns(),
        })
        return number

    def answered(self, number: int, rows: list[dict[str, Any]]) -> None:
        self.write({"k": OK, "n": number, "r": rows, "t": monotonic_ns()})

    def refused(self, number: int, error: BaseException) -> None:
        said = _driver_error(error)
        detail = None if said is None else _json(said.diag.message_detail)
        self.write({
            "k": outcome_of_error(error), "n": number, "t": monotonic_ns(),
            "s": (said.sqlstate or "") if said else "",
            "m": str(error)[:500] or type(error).__name__, "d": detail,
        })

    def next_transaction(self) -> int:
        with self._lock:
            self._transactions += 1
            return self._transactions

    def hold(self, connection: Any, held: Held) -> None:
        with self._lock:
            self._held[id(connection)] = held

    def let_go(self, connection: Any) -> None:
        with self._lock:
            self._held.pop(id(connection), None)

    def holds(self, connection: Any) -> bool:
        with self._lock:
            return id(connection) in self._held


class Held:
    """A transaction block of psycopg on some connection. It is recorded from the first
    call of the product inside it; others are nobody's business here."""

    def __init__(self, recorder: Recorder, connection: Any, inner: Any) -> None:
        self._recorder, self._connection, self._inner = recorder, connection, inner
        self._number: int | None = None
        self._began = 0

    def begun(self) -> int:
        if self._number is None:
            self._number = self._recorder.next_transaction()
            self._recorder.write({"k": "begin", "n": self._number, "t": self._began})
        return self._number

    def _ended(self, outcome: str) -> None:
        self._recorder.let_go(self._connection)
        if self._number is not None:
            self._recorder.write(
                {"k": "commit", "n": self._number, "o": outcome, "t": monotonic_ns()}
            )

    def _will_roll_back(self, kind: object) -> bool:
        # COMMIT of a failed transaction is answered with ROLLBACK, and no error
        status = self._connection.info.transaction_status
        return kind is not None or status == TransactionStatus.INERROR

    def _entering(self) -> None:
        self._began = monotonic_ns()
        self._recorder.hold(self._connection, self)

    def __enter__(self) -> Any:
        self._entering()
        try:
            return self._inner.__enter__()
        except BaseException:
            self._ended(FAIL)
            raise

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        outcome = FAIL if self._will_roll_back(kind) else INFO
        try:
            done = self._inner.__exit__(kind, error, trace)
        except BaseException as raised:
            self._ended(outcome if outcome == FAIL else outcome_of_error(raised))
            raise
        self._ended(outcome if outcome == FAIL else OK)
        return done

    async def __aenter__(self) -> Any:
        self._entering()
        try:
            return await self._inner.__aenter__()
        except BaseException:
            self._ended(FAIL)
            raise

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any:
        outcome = FAIL if self._will_roll_back(kind) else INFO
        try:
            done = await self._inner.__aexit__(kind, error, trace)
        except BaseException as raised:
            self._ended(outcome if outcome == FAIL else outcome_of_error(raised))
            raise
        self._ended(outcome if outcome == FAIL else OK)
        return done


# --- how the product is made to tell ------------------------------------------

_installed: Recorder | None = None


def install(folder: Path, name: str, pid: str = "") -> Recorder:
    """Record all calls of this process from now on."""
    global _installed
    first = _installed is None
    _installed = Recorder(folder, name, pid)
    if first:
        _wrap_sending()
        _wrap_transactions()
    return _installed


def install_from_environment() -> Recorder | None:
    """The same for a worker, and for each child process that it starts."""
    if _installed is None and FOLDER in os.environ:
        install(Path(os.environ[FOLDER]), os.environ[NAME], os.environ.get(PID, ""))
    return _installed


def _wrap_sending() -> None:
    """Where the functions that send are used by name. An old release has not all of them."""
    from sokka_pg import lease_keeper
    from sokka_pg.connections import pools, sending
    from sokka_pg.worker import link

    wraps = {
        "send": _recorded, "send_explicit": _recorded,
        "send_async": _recorded_async, "send_explicit_async": _recorded_async,
    }
    for name, wrap in wraps.items():
        if hasattr(sending, name):
            wrapped = wrap(getattr(sending, name))
            for module in (sending, pools, lease_keeper, link):
                if hasattr(module, name):
                    setattr(module, name, wrapped)
    if hasattr(link, "send_on"):
        link.send_on = _recorded_on_wire(link.send_on)


class _Told:
    """A call's answer on its way to the one who reads it."""

    def __init__(self, connection: Any, call: Any) -> None:
        assert _installed is not None
        self._recorder, self._call, self._seen = _installed, call, False
        self._number = _installed.invoke(connection, call.statement.source, dict(call.params))

    @property
    def call(self) -> Any:
        return dataclasses.replace(self._call, decode=self._decode)

    def _decode(self, rows: list[list[Any]]) -> Any:
        columns = self._call.statement.columns
        names = column_names([column.expression for column in columns])
        # JSON that the call reads later, or not at all, comes here as text
        texts = [each.read is None and each.expression.startswith("cast(") for each in columns]
        self._recorder.answered(
            self._number,
            [
                {
                    name: json.loads(value) if text and isinstance(value, str) else value
                    for name, text, value in zip(names, texts, row, strict=True)
                }
                for row in rows
            ],
        )
        self._seen = True
        return self._call.decode(rows)

    def failed(self, error: BaseException) -> None:
        if not self._seen:
            self._recorder.refused(self._number, error)


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    def send(connection: Any, call: Any, schema: str, **reading: bool) -> Any:
        told = _Told(connection, call)
        try:
            return original(connection, told.call, schema, **reading)
        except BaseException as error:
            told.failed(error)
            raise

    return send


def _recorded_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def send_async(connection: Any, call: Any, schema: str, **reading: bool) -> Any:
        told = _Told(connection, call)
        try:
            return await original(connection, told.call, schema, **reading)
        except BaseException as error:
            told.failed(error)
            raise

    return send_async


def _recorded_on_wire(original: Callable[..., Any]) -> Callable[..., Any]:
    async def send_on(wire: Any, call: Any) -> Any:
        told = _Told(wire.connection, call)
        try:
            return await original(wire, told.call)
        except BaseException as error:
            told.failed(error)
            raise

    return send_on


def _wrap_transactions() -> None:
    for kind in (psycopg.Connection, psycopg.AsyncConnection):
        kind.transaction = _held(kind.transaction)  # type: ignore[method-assign]


def _held(original: Callable[..., Any]) -> Callable[..., Any]:
    def transaction(self: Any, *args: Any, **options: Any) -> Any:
        inner = original(self, *args, **options)
        if _installed is None or _installed.holds(self):
            return inner  # a savepoint: the outer one decides
        return Held(_installed, self, inner)

    return transaction


# --- small print --------------------------------------------------------------


def _driver_error(error: BaseException) -> psycopg.Error | None:
    for found in (error, error.__cause__):
        if isinstance(found, psycopg.Error):
            return found
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def _json(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text or "")
    except ValueError:
        return None if text is None else {"text": text}
    return found if isinstance(found, dict) else {"text": text}

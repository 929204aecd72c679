"""A connection whose statement can be begun, and its answer awaited, apart; in one thread."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

DEADLINE_S = 30.0
# Nobody waits on the wall's clock: the simulator ends waits, by cancelling them.
OPTIONS = "-c deadlock_timeout=120s -c lock_timeout=0 -c client_min_messages=warning"


class Wire:
    """One session. At most one statement is under way."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.busy = False
        self._open()

    def _open(self) -> None:
        self._connection = psycopg.connect(self._url, autocommit=True, options=OPTIONS)
        self._pg = self._connection.pgconn
        self.backend = self._connection.info.backend_pid

    def send(self, text: str) -> None:
        assert not self.busy
        self._pg.send_query(text.encode())
        self.busy = True
        self._answer: Answer | None = None

    def answered(self, patience_s: float = 0.0) -> bool:
        """Whether the answer is complete, within this time."""
        until = time.monotonic() + patience_s
        while not self._take():
            left = until - time.monotonic()
            if left <= 0:
                return False
            select.select([self._pg.socket], [], [], left)
        return True

    def _take(self) -> bool:
        with suppress(psycopg.OperationalError):
            self._pg.consume_input()
        while not self._pg.is_busy():
            result = self._pg.get_result()
            if result is None:
                self.busy = False
                return True
            self._read(result)
        return False

    def _read(self, result: Any) -> None:
        if result.status in (ExecStatus.FATAL_ERROR, ExecStatus.NONFATAL_ERROR):
            self._answer = Answer(
                sqlstate=_text(result.error_field(67)) or "08006",
                message=_text(result.error_field(77)),
                detail=_text(result.error_field(68)),
            )
        elif result.status == ExecStatus.TUPLES_OK and (
            self._answer is None or not self._answer.sqlstate
        ):
            value = result.get_value(0, 0) if result.ntuples else None
            self._answer = Answer(text=_text(value))

    def answer(self) -> Answer:
        return self._answer or Answer()

    def run(self, text: str) -> Answer:
        """Send what cannot wait for a lock, and wait for its answer."""
        self.send(text)
        assert self.answered(DEADLINE_S), f"no answer within {DEADLINE_S} s: {text}"
        return self.answer()

    def leave(self) -> None:
        """Give up whatever a play that broke off has left: it would hold up the next one."""
        if self.busy or self._pg.transaction_status != TransactionStatus.IDLE:
            self.reopen()

    def reopen(self) -> None:
        """After the server ended the session."""
        self._connection.close()
        self.busy = False
        self._open()

    def close(self) -> None:
        self._connection.close()


class Answer:
    """The last row's first column, or how the statement was refused."""

    def __init__(
        self, text: str = "", sqlstate: str = "", message: str = "", detail: str = ""
    ) -> None:
        self.text = text
        self.sqlstate = sqlstate
        self.message = message
        self.detail = detail

    @property
    def rows(self) -> list[dict[str, Any]]:
        return json.loads(self.text) if self.text.startswith("[") else []


def _text(value: bytes | None) -> str:
    return value.decode() if value is not None else ""


def literal(value: Any) -> str:
    """A value as SQL of an unknown type, which takes that of its parameter."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Json):
        return f"'{_quoted(json.dumps(value.value))}'::jsonb"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if any(isinstance(member, Json) for member in value):
            return f"array[{', '.join(literal(member) for member in value)}]::jsonb[]"
        members = ",".join("NULL" if member is None else f'"{member}"' for member in value)
        return f"'{_quoted('{' + members + '}')}'"
    return f"'{_quoted(str(value))}'"


def _quoted(text: str) -> str:
    return text.replace("'", "''")


class Json:
    """A value that is sent as jsonb."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return json.dumps(self.value)


def call_of(function: str, arguments: Mapping[str, Any]) -> str:
    named = ", ".join(f"p_{name} => {literal(value)}" for name, value in arguments.items())
    return f"select coalesce(json_agg(r), '[]')::text from sokka.{function}({named}) r"

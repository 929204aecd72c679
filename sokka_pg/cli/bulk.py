"""Many tasks from a file: a stream in, batches out, memory bounded.

Each batch is one commit, and the next one is read while the server works on it. A line
that is refused takes its batch with it and ends the run; the message names the line, and
from which line on nothing was stored.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from sokka_pg.cli import reach, reading
from sokka_pg.cli.output import answer, console, note
from sokka_pg.errors import BadArgument, DatabaseUnavailable, SokkaError
from sokka_pg.model import CreatedId

_INSTANTS = ("run_at", "expires_at")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file, read: its number from 1, its bytes, its task."""

    number: int
    size: int
    spec: Mapping[str, Any]


def enqueue(ctx: typer.Context, file_name: str, defaults: Mapping[str, Any]) -> None:
    """Create a task for each line of ``file_name`` (``-``: standard input)."""
    with _opened(file_name) as (file, size), reach.store(ctx) as store, _bar(size) as bar:
        run = _Run(file, defaults, bar, as_json=reach.as_json(ctx))
        try:
            made = store.create_tasks_in_batches(run.specs(), each=run.stored)
        except SokkaError as error:
            raise run.ended(error) from error
    if not reach.as_json(ctx):
        held = f"; {made.existing} were there already (unique key)" if made.existing else ""
        answer({}, f"{made.created} tasks created{held}", as_json=False)
    else:
        note(f"sokka: {made.created} created, {made.existing} there already")


class _Run:
    """The lines of one file on their way: read, but not yet known to be stored."""

    def __init__(
        self, file: BinaryIO, defaults: Mapping[str, Any], bar: _Bar, *, as_json: bool
    ) -> None:
        self._lines = _lines(file, defaults)
        self._bar, self._as_json = bar, as_json
        self._open: deque[tuple[int, int]] = deque()

    def specs(self) -> Iterator[Mapping[str, Any]]:
        for line in self._lines:
            self._open.append((line.number, line.size))
            yield line.spec

    def stored(self, batch: list[CreatedId]) -> None:
        size = 0
        for made in batch:
            number, bytes_ = self._open.popleft()
            size += bytes_
            if self._as_json:
                facts = {"line": number, "task_id": made.task_id, "created": made.created}
                answer(facts, as_json=True)
        self._bar.advance(size)

    def ended(self, error: SokkaError) -> SokkaError:
        """The error in words of lines. All that is stored was told of."""
        if "line" in error.detail:
            return _ended(error, int(error.detail["line"]), "the lines before it are stored")
        first = self._open[0][0] if self._open else 1
        stored = error.detail.get("stored", 0)
        if isinstance(error, DatabaseUnavailable):
            fate = f"lines from {first} on were not stored"
            if "unknown" in error.detail:
                last = self._open[error.detail["unknown"][1] - stored - 1][0]
                fate = f"whether lines {first} to {last} were stored is not known"
            return _ended(error, None, f"the lines before {first} are stored, {fate}")
        position = error.detail.get("position")
        bad = self._open[position - stored - 1][0] if isinstance(position, int) else None
        return _ended(error, bad, f"nothing is stored from line {first} on")


@contextmanager
def _opened(file_name: str) -> Iterator[tuple[BinaryIO, int | None]]:
    if file_name == "-":
        yield sys.stdin.buffer, None
        return
    try:
        file = Path(file_name).open("rb")  # noqa: SIM115  (closed below)
        size = Path(file_name).stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name"
        raise BadArgument.of("--bulk", f"the file cannot be read: {reason}") from None
    with file:
        yield file, size or None


def _lines(file: BinaryIO, defaults: Mapping[str, Any]) -> Iterator[Line]:
    number = 0
    # A line is read only as far as it may go: the whole may not fit in memory.
    while content := _read_line(file, number + 1):
        number += 1
        if content.strip():
            yield Line(number, len(content), _spec(content, number, defaults))


def _read_line(file: BinaryIO, number: int) -> bytes:
    try:
        content = file.readline(reading.MOST_BYTES + 1)
    except OSError as error:
        raise BadArgument.of("--bulk", f"the file cannot be read: {error.strerror}") from None
    if len(content) > reading.MOST_BYTES:
        raise _bad_line(number, f"is larger than {reading.MOST_BYTES} bytes")
    return content


def _spec(content: bytes, number: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = reading.json_value(content.decode(), "line")
    except UnicodeDecodeError as error:
        raise _bad_line(number, f"is not UTF-8 (byte {error.start})") from None
    except BadArgument as refused:
        raise _bad_line(number, refused.detail["rule"]) from None
    if not isinstance(value, dict):
        raise _bad_line(number, f"must be a JSON object, not {type(value).__name__}")
    try:
        return {**defaults, **{name: _member(name, each) for name, each in value.items()}}
    except BadArgument as refused:
        raise _bad_line(number, refused.message) from None


def _member(name: str, value: Any) -> Any:
    if not isinstance(value, str | int | dict) or name == "data":
        return value
    if name in _INSTANTS and isinstance(value, str):
        return reading.instant(value, name)
    if name == "timeout" and isinstance(value, str):
        return reading.duration(value, name)
    return reading.retry_policy(value, name) if name == "retry" else value


def _bad_line(number: int, rule: str) -> BadArgument:
    return BadArgument(f"line {number}: {rule}", {"line": number, "rule": rule})


def _ended(error: SokkaError, line: int | None, fate: str) -> SokkaError:
    where = "" if line is None else f"line {line}: "
    message = error.message.removeprefix(where)
    position = error.detail.get("position")
    if isinstance(position, int):
        message = message.removeprefix(f"specs[{position}].").removeprefix(f"specs[{position}]: ")
    told = ("position", "stored", "unknown")
    detail = {key: value for key, value in error.detail.items() if key not in told}
    return type(error)(f"{where}{message}; {fate}", {**detail, "line": line})


class _Bar:
    """Bytes of the file done, shown on a terminal."""

    def __init__(self, progress: Progress, row: TaskID) -> None:
        self._progress, self._row = progress, row

    def advance(self, size: int) -> None:
        self._progress.advance(self._row, size)


@contextmanager
def _bar(size: int | None) -> Iterator[_Bar]:
    shown = sys.stderr.isatty()
    progress = Progress(
        TextColumn("enqueue"), BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=console(stderr=True), disable=not shown, transient=True,
    )  # fmt: skip
    with progress:
        yield _Bar(progress, progress.add_task("enqueue", total=size))

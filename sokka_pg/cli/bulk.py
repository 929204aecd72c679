"""Many tasks from a file: a stream in, batches out, memory bounded.

Each batch is one commit. A line that is refused takes its batch with it and ends
the run; the message names the line, and from which line on nothing was stored.
"""

from __future__ import annotations

import sys
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
from sokka_pg.store import PgTaskStore

BATCH_LINES = 1_000
BATCH_BYTES = 4 * 1024 * 1024
_INSTANTS = ("run_at", "expires_at")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the file, read: its number from 1, its bytes, its task."""

    number: int
    size: int
    spec: Mapping[str, Any]


def enqueue(ctx: typer.Context, file_name: str, defaults: Mapping[str, Any]) -> None:
    """Create a task for each line of ``file_name`` (``-``: standard input)."""
    as_json = reach.as_json(ctx)
    created = existing = 0
    with _opened(file_name) as (file, size), reach.store(ctx) as store, _bar(size) as bar:
        for batch in _batches(_lines(file, defaults)):
            answers = _stored(store, batch)
            for line, made in zip(batch, answers, strict=True):
                created += made.created
                existing += not made.created
                if as_json:
                    facts = {
                        "line": line.number, "task_id": made.task_id, "created": made.created,
                    }  # fmt: skip
                    answer(facts, as_json=True)
            bar.advance(sum(line.size for line in batch))
    if not as_json:
        held = f"; {existing} were there already (unique key)" if existing else ""
        answer({}, f"{created} tasks created{held}", as_json=False)
    else:
        note(f"sokka: {created} created, {existing} there already")


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


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    """Batches; what stands before a bad line still goes, so that the message is short."""
    batch: list[Line] = []
    size = 0
    refused: BadArgument | None = None
    try:
        for line in lines:
            if batch and (len(batch) >= BATCH_LINES or size + line.size > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(line)
            size += line.size
    except BadArgument as error:
        refused = error
    if batch:
        yield batch
    if refused is not None:
        raise _ended(refused, int(refused.detail["line"]), "the lines before it are stored")


def _stored(store: PgTaskStore, batch: list[Line]) -> list[Any]:
    try:
        return list(store.create_tasks([line.spec for line in batch]))
    except DatabaseUnavailable as error:
        first, last = batch[0].number, batch[-1].number
        fate = f"lines {first} to {last} were not stored"
        if error.detail.get("sent") is not False:
            fate = f"whether lines {first} to {last} were stored is not known"
        raise _ended(error, None, f"the lines before {first} are stored, {fate}") from error
    except SokkaError as error:
        first = batch[0].number
        position = error.detail.get("position")
        bad = batch[position - 1].number if isinstance(position, int) else None
        raise _ended(error, bad, f"nothing is stored from line {first} on") from error


def _ended(error: SokkaError, line: int | None, fate: str) -> SokkaError:
    where = "" if line is None else f"line {line}: "
    message = error.message.removeprefix(where)
    position = error.detail.get("position")
    if isinstance(position, int):
        message = message.removeprefix(f"specs[{position}].").removeprefix(f"specs[{position}]: ")
    detail = {key: value for key, value in error.detail.items() if key != "position"}
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
